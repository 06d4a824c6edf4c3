#include "sim/router.h"

#include "base/prng.h"

namespace softmrc::sim {

SimRoute Router::route_of(const SimPacket& p) const {
  SimRoute route;
  unsigned place = 0;
  const auto via = [&](Tier tier, std::uint32_t index) { route.append(place++, fabric_.usid({tier, p.plane, index})); };
  const std::uint32_t from = fabric_.leaf_of(p.source);
  const std::uint32_t to = fabric_.leaf_of(p.destination);
  const std::uint32_t spines = fabric_.config().spines;
  const std::uint32_t spine = p.entropy % spines;
  via(Tier::t0, from);
  if (from != to && !fabric_.has_three_tiers()) {
    via(Tier::t1, spine);
    via(Tier::t0, to);
  } else if (from != to) {
    const std::uint32_t cores = fabric_.config().cores_per_spine;
    const std::uint32_t from_pod = fabric_.pod_of_leaf(from);
    const std::uint32_t to_pod = fabric_.pod_of_leaf(to);
    via(Tier::t1, from_pod * spines + spine);
    if (from_pod != to_pod) {
      via(Tier::t2, spine * cores + p.entropy / spines % cores);
      via(Tier::t1, to_pod * spines + spine);
    }
    via(Tier::t0, to);
  }
  via(Tier::host, p.destination);
  return route;
}

// uN: the first uSID is this switch's own; shift, and look the next one up in the static table, which here is
// arithmetic on the ranges that uSIDs are allotted from.
LinkId Router::by_usid(const FabricNode& at, const SimPacket& p) const {
  if (p.route.front() != fabric_.usid(at)) return no_link;
  SimRoute shifted = p.route;
  shifted.shift();
  const std::uint32_t next = shifted.front();
  const FabricConfig& f = fabric_.config();
  const std::uint32_t spine = at.index % f.spines;
  if (at.tier == Tier::t0) {
    if (next >= 0x1000) return fabric_.host_down(at.plane, at.index * f.hosts_per_leaf + (next - 0x1000));
    if (next >= 0x0300 && next < 0x0500) return fabric_.leaf_up(at.plane, at.index, (next - 0x0300) % f.spines);
    return no_link;
  }
  if (at.tier == Tier::t1) {
    if (next >= 0x0100 && next < 0x0300) return fabric_.leaf_down(at.plane, next - 0x0100, spine);
    if (next >= 0x0500 && next < 0x1000) return fabric_.t1_up(at.plane, at.index, (next - 0x0500) % f.cores_per_spine);
    return no_link;
  }
  if (next >= 0x0300 && next < 0x0500) return fabric_.t1_down(at.plane, next - 0x0300, at.index % f.cores_per_spine);
  return no_link;
}

// Down if the destination lies below, else up by choice.
LinkId Router::by_choice(const FabricNode& at, const SimPacket& p) const {
  const FabricConfig& f = fabric_.config();
  const std::uint32_t leaf = fabric_.leaf_of(p.destination);
  if (at.tier == Tier::t0 && at.index == leaf) return fabric_.host_down(at.plane, p.destination);
  if (at.tier == Tier::t1) {
    const std::uint32_t spine = at.index % f.spines;
    if (!fabric_.has_three_tiers() || fabric_.pod_of_leaf(leaf) == at.index / f.spines)
      return fabric_.leaf_down(at.plane, leaf, spine);
  }
  if (at.tier == Tier::t2) {
    const std::uint32_t t1 = fabric_.pod_of_leaf(leaf) * f.spines + at.index / f.cores_per_spine;
    return fabric_.t1_down(at.plane, t1, at.index % f.cores_per_spine);
  }
  return choose_uplink(at, p);
}

LinkId Router::choose_uplink(const FabricNode& at, const SimPacket& p) const {
  const FabricConfig& f = fabric_.config();
  const std::uint32_t count = at.tier == Tier::t0 ? f.spines : f.cores_per_spine;
  const auto uplink = [&](std::uint32_t i) {
    return at.tier == Tier::t0 ? fabric_.leaf_up(at.plane, at.index, i) : fabric_.t1_up(at.plane, at.index, i);
  };
  if (forwarding_ == Forwarding::structured)
    return uplink(at.tier == Tier::t0 ? p.entropy % count : p.entropy / f.spines % count);
  std::uint64_t state = static_cast<std::uint64_t>(p.entropy) << 32 ^ static_cast<std::uint64_t>(p.source) << 16 ^
                        p.destination ^ static_cast<std::uint64_t>(at.tier) << 61 ^
                        static_cast<std::uint64_t>(at.index) << 40;
  const auto hash = static_cast<std::uint32_t>(splitmix64(state) >> 33);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t choice = (hash + i) % count;
    const bool way_down_lives = at.tier != Tier::t0 || fabric_.has_three_tiers() ||
                                is_routable(fabric_.leaf_down(at.plane, fabric_.leaf_of(p.destination), choice));
    if (is_routable(uplink(choice)) && way_down_lives) return uplink(choice);
  }
  return no_link;
}

}  // namespace softmrc::sim
