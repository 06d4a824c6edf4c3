// Peers of which the network said that nobody is there any more (ICMP: port unreachable). Anybody can forge that, so it
// decides nothing: the peer is asked for a sign of life on every plane, at once and again and again, and is given up only
// if nothing at all has come from it by the end of a shorter patience than the timers have.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/time.h"

namespace softmrc::proto {

// spec: unreachable
class Doubts {
 public:
  struct Ask {
    std::uint32_t peer = 0;
    std::uint8_t port = 0;
  };

  bool empty() const { return doubts_.empty(); }

  bool contains(std::uint32_t peer) const {
    return std::any_of(doubts_.begin(), doubts_.end(), [peer](const Doubt& doubt) { return doubt.peer == peer; });
  }
  // One doubt at a time: whoever forges reports must not make us ask more often than this.
  void add(Time now, std::uint32_t peer, std::uint32_t ports, Duration patience) {
    if (!contains(peer)) doubts_.push_back({peer, ports, now, now + patience, false});
  }

  // Nobody knows this peer any more.
  void remove(std::uint32_t peer) {
    std::erase_if(doubts_, [peer](const Doubt& doubt) { return doubt.peer == peer; });
  }
  // Something came from this peer, whatever it was.
  void on_heard(std::uint32_t peer) {
    for (Doubt& doubt : doubts_)
      if (doubt.peer == peer) doubt.gives_up_at = Time::never();
  }

  // The next question, on a port that has room. A port that has none is asked in the next round.
  std::optional<Ask> poll(Time now, std::uint32_t free_ports, std::uint32_t up_ports) {
    for (Doubt& doubt : doubts_) {
      if (doubt.gives_up_at == Time::never() || doubt.asks_at > now) continue;
      const std::uint32_t ports = doubt.ports & free_ports;
      const auto port = static_cast<std::uint8_t>(std::countr_zero(ports));
      doubt.ports = ports & (ports - 1);
      if (doubt.ports == 0) {
        doubt.ports = up_ports;
        doubt.asks_at = now + interval;
      }
      if (ports) return Ask{doubt.peer, port};
    }
    return std::nullopt;
  }

  void on_asked(std::uint32_t peer) {
    for (Doubt& doubt : doubts_)
      if (doubt.peer == peer) doubt.was_asked = true;
  }

  // A peer that was asked to no avail for as long as it was worth. Call until there is none.
  std::optional<std::uint32_t> given_up(Time now) {
    std::erase_if(doubts_, [now](const Doubt& d) { return d.gives_up_at <= now && !d.was_asked; });
    for (std::size_t i = 0; i < doubts_.size(); ++i) {
      if (doubts_[i].gives_up_at > now) continue;
      const std::uint32_t peer = doubts_[i].peer;
      doubts_.erase(doubts_.begin() + static_cast<std::ptrdiff_t>(i));
      return peer;
    }
    std::erase_if(doubts_, [now](const Doubt& d) { return d.gives_up_at == Time::never() && d.asks_at <= now; });
    return std::nullopt;
  }

  // The next moment after `now` at which something is to be done.
  Time deadline(Time now) const {
    Time at = Time::never();
    for (const Doubt& doubt : doubts_)
      for (const Time due : {doubt.asks_at, doubt.gives_up_at})
        if (due > now) at = std::min(at, due);
    return at;
  }

 private:
  static constexpr Duration interval = milliseconds(50);

  struct Doubt {
    std::uint32_t peer = 0;
    std::uint32_t ports = 0;  // that this round has yet to ask
    Time asks_at{};
    Time gives_up_at{};       // never: it was heard; the entry then only keeps the next doubt waiting
    bool was_asked = false;   // where nothing may be said, silence means nothing
  };
  std::vector<Doubt> doubts_;
};

}  // namespace softmrc::proto
