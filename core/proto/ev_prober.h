// How withdrawn EVs return: each is probed in the background and returns after enough answers in a row.
// A first fall is probed at once and as fast as answers come, since most losses are accidents; an EV that keeps falling
// waits twice as long each time (flap damping). With no EV left at all, everything is probed and one answer is enough.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/time.h"
#include "proto/config.h"

namespace softmrc::proto {

// spec: ev-revival ev-fast-return ev-flap-damping ev-none-left
class EvProber {
 public:
  void configure(const EndpointConfig& config) {
    interval_ = config.probe_interval;
    interval_max_ = config.probe_interval_max;
    answers_needed_ = config.revival_answers;
  }

  void add(std::uint16_t ev, std::uint8_t port, std::uint8_t damping, Time now);
  // A good EV that is probed while no answer comes from the peer, and no longer.
  void add_check(std::uint16_t ev, std::uint8_t port, Time now);
  void remove(std::uint16_t ev);
  bool contains(std::uint16_t ev) const;
  bool empty() const { return withdrawn_.empty(); }

  // Every EV is gone: probe all of them now, trust the first that answers.
  void set_none_left(bool desperate, Time now);
  // The port works again: do not wait for the next slow probe.
  void probe_port_now(std::uint8_t port, Time now);

  // The EV to probe now, on a port that is live and has room; what was due but stayed unanswered is backed off. A port
  // that is merely busy keeps its patients due: on a loaded port an interval's wait each time would be for ever.
  // An answer is given a round trip to come, however short the interval.
  std::optional<std::uint16_t> next_due(Time now, std::uint32_t live_ports, std::uint32_t free_ports,
                                        Duration round_trip);
  // True when this answer makes the EV trustworthy again; the caller then removes it.
  bool on_answer(std::uint16_t ev, Time now);

  Time deadline() const { return deadline_; }

 private:
  struct WithdrawnEv {
    std::uint16_t ev = 0;
    std::uint8_t port = 0;
    std::uint8_t damping = 0;
    std::uint8_t answers = 0;
    bool awaiting = false;
    bool is_check = false;
    Duration interval{};
    Time due{};
  };

  void refresh_deadline();

  std::vector<WithdrawnEv> withdrawn_;
  Time deadline_ = Time::never();
  Duration interval_ = milliseconds(1);
  Duration interval_max_ = seconds(1);
  std::uint32_t answers_needed_ = 3;
  bool none_left_ = false;
};

}  // namespace softmrc::proto
