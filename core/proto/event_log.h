// Where events go: notable ones into a bounded queue for poll_event, all of them to a TraceSink while one listens.
#pragma once

#include "base/ring.h"
#include "proto/event.h"
#include "proto/stats.h"
#include "proto/transmit.h"

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
  // Packets that waited together are being handed in one by one. Verdicts that compare paths wait for the last of them:
  // what lies in the same batch unread is no evidence of loss.
  bool in_batch = false;
  // Queue pairs of this endpoint with messages that are not yet confirmed: they share what may be in flight.
  std::uint32_t senders = 0;

 private:
  Ring<Event> queue_;
  TraceSink* sink_ = nullptr;
  std::uint32_t wanted_ = 0;
  std::uint32_t max_events_;
};

// How many packets a message makes. One without bytes is a packet, too.
constexpr std::uint32_t packets_of(std::uint32_t length, std::uint32_t mtu) {
  return length ? (length - 1) / mtu + 1 : 1;
}

// What both halves of a queue pair know about it.
struct QpContext {
  std::uint32_t qpn = 0;
  std::uint32_t dest_qpn = 0;
  std::uint32_t peer = no_peer;  // until RTR names one
  std::uint32_t mtu = 0;
  bool dynamic_mpr = false;  // SACKs carry the window
  EventLog* event_log = nullptr;
  std::uint64_t domain = 0;   // of memory, which the peer may write to
  std::uint32_t sharers = 1;  // queue pairs that the first window is meant for, by the hints
  QpStats stats;

  Event event(EventType type, Time now) const {
    Event e;
    e.at_ps = now.ps;
    e.qpn = qpn;
    e.type = type;
    return e;
  }
  void refused(Time now, RefusedPacket why, std::uint32_t psn, std::uint32_t entropy = 0, std::uint8_t port = 0) const {
    Event e = event(EventType::packet_refused, now);
    e.code = static_cast<std::uint32_t>(why);
    e.psn = psn;
    e.ev = entropy;
    e.port = port;
    event_log->record(e);
  }
};

}  // namespace softmrc::proto
