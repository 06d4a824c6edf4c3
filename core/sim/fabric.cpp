#include "sim/fabric.h"

#include <utility>

#include "base/check.h"

namespace softmrc::sim {
namespace {

// Ranges of uSIDs: leaves, first-tier spines or aggregations, cores, then a leaf's downlinks.
constexpr std::uint32_t t0_usid = 0x0100, max_t0 = 0x0200;
constexpr std::uint32_t t1_usid = 0x0300, max_t1 = 0x0200;
constexpr std::uint32_t t2_usid = 0x0500, max_t2 = 0x0400;
constexpr std::uint32_t max_downlinks = 0x0800;
constexpr std::uint32_t max_cables = 1024;

FabricProblem problem(const char* field, std::uint64_t value, std::string expected) {
  return {field, std::to_string(value), std::move(expected)};
}

}  // namespace

std::optional<FabricProblem> validate(const FabricConfig& c) {
  if (c.planes < 1 || c.planes > 16) return problem("planes", c.planes, "1 to 16");
  if (c.hosts < 2 || c.hosts > 1u << 20) return problem("hosts", c.hosts, "2 to 1048576");
  if (c.hosts_per_leaf < 1 || c.hosts_per_leaf > max_downlinks)
    return problem("hosts_per_leaf", c.hosts_per_leaf, "1 to " + std::to_string(max_downlinks));
  if (c.hosts % c.hosts_per_leaf)
    return problem("hosts", c.hosts, "a multiple of hosts_per_leaf = " + std::to_string(c.hosts_per_leaf));
  if (c.spines < 1) return problem("spines", c.spines, "at least 1");
  if (c.host_link_bps < 1'000'000) return problem("host_link_bps", c.host_link_bps, "at least 1000000");
  if (c.fabric_link_bps < 1'000'000) return problem("fabric_link_bps", c.fabric_link_bps, "at least 1000000");
  for (const auto& [field, cables] :
       {std::pair{"cables_per_link", c.cables_per_link}, {"cables_per_core_link", c.cables_per_core_link}})
    if (cables < 1 || cables > max_cables) return problem(field, cables, "1 to " + std::to_string(max_cables));
  const std::uint32_t leaves = c.hosts / c.hosts_per_leaf;
  if (leaves > max_t0)
    return problem("hosts", c.hosts,
                   "at most " + std::to_string(max_t0) + " leaves; these make " + std::to_string(leaves));
  if (c.pods == 0) {
    if (c.spines > max_t1) return problem("spines", c.spines, "at most " + std::to_string(max_t1));
    return std::nullopt;
  }
  if (leaves % c.pods) return problem("pods", c.pods, "a divisor of the " + std::to_string(leaves) + " leaves");
  if (c.cores_per_spine < 1) return problem("cores_per_spine", c.cores_per_spine, "at least 1 with three tiers");
  if (c.pods * c.spines > max_t1)
    return problem("pods", c.pods, "at most " + std::to_string(max_t1) + " aggregations in all");
  if (c.spines * c.cores_per_spine > max_t2)
    return problem("cores_per_spine", c.cores_per_spine, "at most " + std::to_string(max_t2) + " cores in all");
  return std::nullopt;
}

Fabric::Fabric(const FabricConfig& config) : config_(config) {
  SOFTMRC_CHECK(!validate(config));
  leaves_ = config.hosts / config.hosts_per_leaf;
  leaves_per_pod_ = config.pods ? leaves_ / config.pods : leaves_;
  t1_ = config.pods ? config.pods * config.spines : config.spines;
  t2_ = config.pods ? config.spines * config.cores_per_spine : 0;
  links_per_plane_ = 2 * config.hosts + 2 * leaves_ * config.spines +
                     (config.pods ? 2 * t1_ * config.cores_per_spine : 0);
}

std::uint32_t Fabric::cables(LinkId link) const {
  const std::uint32_t at = place_in_plane(link);
  if (at < 2 * config_.hosts) return 1;
  return at < 2 * config_.hosts + 2 * leaves_ * config_.spines ? config_.cables_per_link : config_.cables_per_core_link;
}

LinkId Fabric::twin(LinkId link) const {
  const std::uint32_t start = base(plane_of(link));
  std::uint32_t at = link - start;
  std::uint32_t origin = 0;
  for (const std::uint32_t half : {config_.hosts, leaves_ * config_.spines, t1_ * config_.cores_per_spine}) {
    if (at < 2 * half) return start + origin + (at < half ? at + half : at - half);
    at -= 2 * half;
    origin += 2 * half;
  }
  SOFTMRC_CHECK(false);
}

FabricNode Fabric::from(LinkId link) const {
  const auto plane = static_cast<std::uint8_t>(plane_of(link));
  std::uint32_t at = link - base(plane);
  if (at < config_.hosts) return {Tier::host, plane, at};
  at -= config_.hosts;
  if (at < config_.hosts) return {Tier::t0, plane, leaf_of(at)};
  at -= config_.hosts;
  const std::uint32_t leaf_links = leaves_ * config_.spines;
  if (at < leaf_links) return {Tier::t0, plane, at / config_.spines};
  at -= leaf_links;
  if (at < leaf_links) {
    const std::uint32_t spine = at % config_.spines;
    const std::uint32_t pod = has_three_tiers() ? pod_of_leaf(at / config_.spines) : 0;
    return {Tier::t1, plane, pod * config_.spines + spine};
  }
  at -= leaf_links;
  const std::uint32_t t1_links = t1_ * config_.cores_per_spine;
  if (at < t1_links) return {Tier::t1, plane, at / config_.cores_per_spine};
  at -= t1_links;
  const std::uint32_t aggregation = at / config_.cores_per_spine % config_.spines;
  return {Tier::t2, plane, aggregation * config_.cores_per_spine + at % config_.cores_per_spine};
}

std::uint32_t Fabric::switches_between(std::uint32_t a, std::uint32_t b) const {
  if (leaf_of(a) == leaf_of(b)) return 1;
  if (!has_three_tiers() || pod_of_leaf(leaf_of(a)) == pod_of_leaf(leaf_of(b))) return 3;
  return 5;
}

std::uint16_t Fabric::usid(const FabricNode& node) const {
  switch (node.tier) {
    case Tier::host: return host_usid(node.index);
    case Tier::t0: return static_cast<std::uint16_t>(t0_usid + node.index);
    case Tier::t1: return static_cast<std::uint16_t>(t1_usid + node.index);
    case Tier::t2: return static_cast<std::uint16_t>(t2_usid + node.index);
  }
  return 0;
}

}  // namespace softmrc::sim
