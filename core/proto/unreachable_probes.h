// Peers that the network reported unreachable (ICMP: port unreachable). That can be forged, so it
// decides nothing: the peer is probed on every plane, at once and repeatedly, and is given up
// only if nothing at all has come from it by the end of a shorter timeout than the queue pairs have.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/time.h"

namespace softmrc::proto {

// spec: unreachable
class UnreachableProbes {
 public:
  struct Probe {
    std::uint32_t peer = 0;
    std::uint8_t port = 0;
  };

  bool empty() const { return unreachable_probes_.empty(); }

  bool contains(std::uint32_t peer) const {
    return std::any_of(unreachable_probes_.begin(), unreachable_probes_.end(),
                       [peer](const Suspect& suspect) { return suspect.peer == peer; });
  }
  // Each peer once: forged reports must not make us ask more often than this.
  void add(Time now, std::uint32_t peer, std::uint32_t ports, Duration patience) {
    if (!contains(peer)) unreachable_probes_.push_back({peer, ports, now, now + patience, false});
  }

  // The peer was removed.
  void remove(std::uint32_t peer) {
    std::erase_if(unreachable_probes_, [peer](const Suspect& suspect) { return suspect.peer == peer; });
  }
  // Something came from this peer, whatever it was.
  void on_received(std::uint32_t peer) {
    for (Suspect& suspect : unreachable_probes_)
      if (suspect.peer == peer) suspect.dead_at = Time::never();
  }

  // The next probe, on a port that has room. A port that has none is probed in the next round.
  std::optional<Probe> poll(Time now, std::uint32_t free_ports, std::uint32_t up_ports) {
    for (Suspect& suspect : unreachable_probes_) {
      if (suspect.dead_at == Time::never() || suspect.probe_at > now) continue;
      const std::uint32_t ports = suspect.ports & free_ports;
      const auto port = static_cast<std::uint8_t>(std::countr_zero(ports));
      suspect.ports = ports & (ports - 1);
      if (suspect.ports == 0) {
        suspect.ports = up_ports;
        suspect.probe_at = now + interval;
      }
      if (ports) return Probe{suspect.peer, port};
    }
    return std::nullopt;
  }

  void on_probed(std::uint32_t peer) {
    for (Suspect& suspect : unreachable_probes_)
      if (suspect.peer == peer) suspect.was_probed = true;
  }

  // A peer that was probed without an answer until its timeout. Call until there is none.
  std::optional<std::uint32_t> poll_dead(Time now) {
    std::erase_if(unreachable_probes_, [now](const Suspect& d) { return d.dead_at <= now && !d.was_probed; });
    for (std::size_t i = 0; i < unreachable_probes_.size(); ++i) {
      if (unreachable_probes_[i].dead_at > now) continue;
      const std::uint32_t peer = unreachable_probes_[i].peer;
      unreachable_probes_.erase(unreachable_probes_.begin() + static_cast<std::ptrdiff_t>(i));
      return peer;
    }
    std::erase_if(unreachable_probes_,
                  [now](const Suspect& d) { return d.dead_at == Time::never() && d.probe_at <= now; });
    return std::nullopt;
  }

  // The next moment after `now` at which something is to be done.
  Time deadline(Time now) const {
    Time at = Time::never();
    for (const Suspect& suspect : unreachable_probes_)
      for (const Time due : {suspect.probe_at, suspect.dead_at})
        if (due > now) at = std::min(at, due);
    return at;
  }

 private:
  static constexpr Duration interval = milliseconds(50);

  struct Suspect {
    std::uint32_t peer = 0;
    std::uint32_t ports = 0;  // that this round has yet to ask
    Time probe_at{};
    Time dead_at{};           // never: something came from it; the entry then only keeps the next suspect waiting
    bool was_probed = false;  // where nothing may be sent, no answer means nothing
  };
  std::vector<Suspect> unreachable_probes_;
};

}  // namespace softmrc::proto
