// How links are broken, and what that does to a packet on one of them. How fast a broken link is, and how much it
// queues, is kept with the link (links.h).
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/time.h"
#include "sim/fabric.h"
#include "sim/link_rng.h"
#include "sim/sim_packet.h"

namespace softmrc::sim {

enum class FaultKind : std::uint8_t {
  down,         // both ends of the cable notice
  black_hole,   // neither end notices
  loss,         // value: probability
  corrupt,      // value: probability; the receiver's ICRC refuses the packet
  slow,         // value: share of the rate that is left; queues and their thresholds stay
  slow_scaled,  // the same, and the queues and thresholds shrink with the rate
  ev_loss,      // value: probability, for one EV only: that of the next data packet to take the link
  heal,         // everything above ends
};

struct Fault {
  Time at{};
  FaultKind kind = FaultKind::down;
  LinkId link = 0;
  double value = 0;
};

class LinkFaults {
 public:
  explicit LinkFaults(std::uint32_t links) : state_(links) {}

  void apply(Time now, const Fault& fault);

  bool is_down(LinkId link) const { return state_[link] & down_bit; }
  // Packets may be lost or broken on it.
  bool is_faulty(LinkId link) const { return state_[link] & faulty_bit; }
  // Of a faulty link: does this packet vanish, or break, on it?
  bool swallows(LinkId link, const SimPacket& packet_id, LinkRng& draw);
  bool corrupts(LinkId link, LinkRng& draw) const;
  // ECMP groups leave out a link so long after it went down.
  bool is_routable(LinkId link, Time now, Duration convergence_delay) const {
    if (!is_faulty(link)) return true;
    const Time dead = kinds_.at(link).dead_since;
    return dead == Time::never() || dead + convergence_delay > now;
  }

 private:
  static constexpr std::uint8_t down_bit = 1;
  static constexpr std::uint8_t faulty_bit = 2;

  struct Kinds {
    Time dead_since = Time::never();
    float loss = 0;
    float corrupt = 0;
    float ev_loss = 0;
    std::optional<std::uint32_t> lossy_ev;  // the EV that ev_loss hits; none until a packet names it
    bool is_black_hole = false;
  };

  std::vector<std::uint8_t> state_;          // by link: asked of every packet
  std::unordered_map<LinkId, Kinds> kinds_;  // asked, never walked
};

}  // namespace softmrc::sim
