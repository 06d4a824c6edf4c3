// Where events go: notable ones into a bounded queue for poll_event, all of them to a TraceSink while one listens.
#pragma once

#include "base/ring.h"
#include "proto/event.h"
#include "proto/stats.h"

namespace softmrc::proto {

class EventLog {
 public:
  explicit EventLog(std::uint32_t max_events) : max_events_(max_events) {}

  // Only the wanted types reach the sink, and only they cost anything.
  void set_sink(TraceSink* sink, std::uint32_t wanted) {
    sink_ = sink;
    wanted_ = sink ? wanted : 0;
  }
  bool traces(EventType type) const { return wanted_ >> static_cast<unsigned>(type) & 1; }

  // Anybody can cause refusals: once half of the queue is taken they are only counted, lest they push the rest out.
  void record(const Event& event) {
    if (traces(event.type)) sink_->on(event);
    if (event.type == EventType::packet_refused && queue_.size() >= (max_events_ + 1) / 2) {
      ++stats.events_dropped;
      return;
    }
    if (queue_.size() >= max_events_) {
      queue_.pop();
      ++stats.events_dropped;
    }
    queue_.push(event);
  }
  void trace(const Event& event) {
    if (traces(event.type)) [[unlikely]]
      sink_->on(event);
  }

  Ring<Event>& queue() { return queue_; }
  const Ring<Event>& queue() const { return queue_; }

  EndpointStats stats;

 private:
  Ring<Event> queue_;
  TraceSink* sink_ = nullptr;
  std::uint32_t wanted_ = 0;
  std::uint32_t max_events_;
};

}  // namespace softmrc::proto
