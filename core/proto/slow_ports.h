// Which ports are so much slower than the others that they hold everything up.
// Spraying gives every port the same share, so a connection is as fast as its slowest port, times their number. Where
// switches mark congestion, marks steer away from such a port. Where nothing does (a cable that fell back to a tenth of
// its rate, a long detour), round trips tell.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/time.h"
#include "proto/config.h"

namespace softmrc::proto {

// spec: slow-port
class SlowPorts {
 public:
  void build(std::uint32_t ports) { ports_.assign(ports, PortRtt{}); }

  // A packet on this port took so long. True when the port is slow, compared with `others`, a mask, and has been for a
  // while. Only those are a measure that have answered to a packet sent later than this one: when all ports slow down
  // together, one is the first to tell, and its packets say nothing about it alone.
  bool on_round_trip(Time now, std::uint8_t port, Duration took, Duration base, std::uint32_t others) {
    PortRtt& facts = ports_[port];
    facts.newest_sent_at = std::max(facts.newest_sent_at, now - took);
    return judge(facts, now, took, base, others);
  }
  // It took so long or longer, which says nothing where that much is usual.
  bool on_longer_round_trip(Time now, std::uint8_t port, Duration least, Duration base, std::uint32_t others) {
    PortRtt& facts = ports_[port];
    return (facts.samples == 0 || least > facts.round_trip) && judge(facts, now, least, base, others);
  }

  // How long a round trip may take where these ports, by answers to what was sent since then, are the measure: their
  // median, since one that has just come back has no queue yet, and all that carried its share in that time have.
  std::optional<Duration> limit(Duration base, std::uint32_t others, Time since = Time::long_ago()) const {
    std::array<Duration, max_ports> found;
    std::size_t count = 0;
    for (others &= (1u << ports_.size()) - 1; others; others &= others - 1) {
      const PortRtt& facts = ports_[static_cast<std::size_t>(std::countr_zero(others))];
      if (facts.samples < enough || facts.newest_sent_at < since) continue;
      found[count++] = std::max({facts.round_trip, facts.latest, base});
    }
    if (count == 0) return std::nullopt;
    std::nth_element(found.begin(), found.begin() + count / 2, found.begin() + count);
    return found[count / 2] * factor;
  }

  // The port is left, and measured again when it is back. How many times its wait is doubled: a port that answers
  // probes in time but cannot carry its share falls again and again.
  std::uint8_t leave(std::uint8_t port, Time now) {
    PortRtt& facts = ports_[port];
    facts.falls = now - facts.left_at > memory ? first_wait : std::min<std::uint8_t>(facts.falls + 1, last_wait);
    facts.left_at = now;
    facts.samples = facts.in_a_row = 0;
    return facts.falls;
  }

 private:
  static constexpr std::int64_t factor = 3;
  static constexpr std::uint8_t enough = 16;
  static constexpr std::uint8_t first_wait = 7, last_wait = 10;
  static constexpr Duration memory = seconds(8);

  struct PortRtt {
    Time left_at = Time::long_ago();
    Time newest_sent_at = Time::long_ago();  // of what was answered
    Duration round_trip{0};
    Duration latest{0};
    std::uint8_t samples = 0;
    std::uint8_t in_a_row = 0;
    std::uint8_t falls = 0;
  };

  bool judge(PortRtt& facts, Time now, Duration took, Duration base, std::uint32_t others) {
    facts.latest = took;
    facts.round_trip = facts.samples ? facts.round_trip + (took - facts.round_trip) / 16 : took;
    if (facts.samples < enough) ++facts.samples;
    const auto most = limit(base, others, now - took);
    const bool is_slow = most && facts.round_trip > base * factor && facts.round_trip > *most;
    facts.in_a_row = is_slow && facts.samples == enough ? facts.in_a_row + 1 : 0;
    return facts.in_a_row == enough;
  }

  std::vector<PortRtt> ports_;
};

}  // namespace softmrc::proto
