// The last events of a lane, for those that ask later: taking them takes nothing from those that poll for events.
#pragma once

#include <algorithm>
#include <vector>

#include "base/ring.h"
#include "proto/event.h"

namespace softmrc::udp {

constexpr std::uint32_t notable_events = 0
#define X(name, notable, meaning) | (notable ? proto::wants(proto::EventType::name) : 0u)
    SOFTMRC_EVENTS(X)
#undef X
    ;

class FlightRecorder final : public proto::TraceSink {
 public:
  // Anybody can cause refusals, any number of them: a few are kept, and counters know of all.
  void on(const proto::Event& event) override {
    if (event.type == proto::EventType::packet_refused) {
      if (Time{event.at_ps} < refusals_from_) return;
      refusals_from_ = Time{event.at_ps} + between_refusals;
    }
    if (events_.size() == most) {
      events_.pop();
      ++first_;
    }
    events_.push(event);
  }

  // The number that the next one will have; the first is 0.
  std::uint64_t next() const { return first_ + events_.size(); }
  // Those of this number and later, oldest first; how many more there were.
  std::uint64_t copy(std::uint64_t from, std::vector<proto::Event>& out) const {
    const std::uint64_t begin = std::clamp(from, first_, next());
    for (std::uint64_t i = begin; i < next(); ++i) out.push_back(events_[static_cast<std::size_t>(i - first_)]);
    return from < begin ? begin - from : 0;
  }

 private:
  static constexpr std::size_t most = 1024;
  static constexpr Duration between_refusals = milliseconds(10);

  Ring<proto::Event> events_;
  std::uint64_t first_ = 0;
  Time refusals_from_{};
};

}  // namespace softmrc::udp
