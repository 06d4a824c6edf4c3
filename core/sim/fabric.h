// The shape of the network: several equal planes, each a Clos of two or three tiers, and which link follows which.
// Everything here is arithmetic on indexes, so memory grows with links and never with hosts times switches.
//
//   two tiers      host -- T0 (leaf) -- T1 (spine)                every leaf has one link to every spine
//   three tiers    host -- T0 (edge) -- T1 (aggregation) -- T2    pods of edges and aggregations; a core meets one
//                                                                 aggregation of every pod
//
// Links are directed. The two directions of a cable lie at the same place of twin ranges, so one names the other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/time.h"

namespace softmrc::sim {

struct FabricConfig {
  std::uint32_t planes = 1;
  std::uint32_t hosts = 16;
  std::uint32_t hosts_per_leaf = 4;
  std::uint32_t spines = 4;           // per plane; with three tiers: aggregations per pod
  std::uint32_t pods = 0;             // 0: two tiers
  std::uint32_t cores_per_spine = 0;  // three tiers: cores that each aggregation reaches
  std::uint64_t host_link_bps = 100'000'000'000;
  std::uint64_t fabric_link_bps = 100'000'000'000;
  std::uint32_t cables_per_link =
      1;  // in parallel, between T0 and T1; together they are one link, so many times as fast
  std::uint32_t cables_per_core_link = 1;  // the same between T1 and T2
  Duration link_delay = microseconds(1);
};

// A refusal names the key, its value, and what it must be.
struct FabricProblem {
  std::string field;
  std::string value;
  std::string expected;
};
std::optional<FabricProblem> validate(const FabricConfig& config);

enum class Tier : std::uint8_t { host, t0, t1, t2 };

struct FabricNode {
  Tier tier = Tier::host;
  std::uint8_t plane = 0;
  std::uint32_t index = 0;  // of the host; of the switch within its tier and plane
  bool operator==(const FabricNode&) const = default;
};

using LinkId = std::uint32_t;
constexpr LinkId no_link = 0xFFFFFFFF;
constexpr std::uint32_t no_host = 0xFFFFFFFF;

class Fabric {
 public:
  explicit Fabric(const FabricConfig& config);

  const FabricConfig& config() const { return config_; }
  bool has_three_tiers() const { return config_.pods != 0; }
  std::uint32_t leaves() const { return leaves_; }   // per plane
  std::uint32_t t1_switches() const { return t1_; }  // per plane
  std::uint32_t t2_switches() const { return t2_; }  // per plane
  std::uint32_t uplinks_of_leaf() const { return config_.spines; }
  std::uint32_t links() const { return links_per_plane_ * config_.planes; }

  std::uint32_t leaf_of(std::uint32_t host) const { return host / config_.hosts_per_leaf; }
  std::uint32_t pod_of_leaf(std::uint32_t leaf) const { return leaf / leaves_per_pod_; }

  // The links, by their ends.
  LinkId host_up(std::uint32_t plane, std::uint32_t host) const { return base(plane) + host; }
  LinkId host_down(std::uint32_t plane, std::uint32_t host) const { return base(plane) + config_.hosts + host; }
  // `spine` is the spine's index with two tiers, the aggregation's index inside the pod with three.
  LinkId leaf_up(std::uint32_t plane, std::uint32_t leaf, std::uint32_t spine) const {
    return base(plane) + 2 * config_.hosts + leaf * config_.spines + spine;
  }
  LinkId leaf_down(std::uint32_t plane, std::uint32_t leaf, std::uint32_t spine) const {
    return leaf_up(plane, leaf, spine) + leaves_ * config_.spines;
  }
  // `t1` is the aggregation's index in its plane, `up` which of its cores.
  LinkId t1_up(std::uint32_t plane, std::uint32_t t1, std::uint32_t up) const {
    return base(plane) + 2 * config_.hosts + 2 * leaves_ * config_.spines + t1 * config_.cores_per_spine + up;
  }
  LinkId t1_down(std::uint32_t plane, std::uint32_t t1, std::uint32_t up) const {
    return t1_up(plane, t1, up) + t1_ * config_.cores_per_spine;
  }

  LinkId twin(LinkId link) const;
  FabricNode from(LinkId link) const;
  FabricNode to(LinkId link) const { return from(twin(link)); }
  bool is_first_hop(LinkId link) const { return place_in_plane(link) < config_.hosts; }
  bool is_last_hop(LinkId link) const { return place_in_plane(link) - config_.hosts < config_.hosts; }
  std::uint32_t cables(LinkId link) const;
  // When nothing is wrong with it.
  std::uint64_t rate_bps(LinkId link) const {
    return cables(link) * (place_in_plane(link) < 2 * config_.hosts ? config_.host_link_bps : config_.fabric_link_bps);
  }
  // The host where a first hop begins.
  std::uint32_t host_before(LinkId link) const { return place_in_plane(link); }
  std::uint32_t plane_of(LinkId link) const { return link / links_per_plane_; }

  // Switches on the way between two hosts: 1 under the same leaf, 3 under the same spines, 5 across cores.
  std::uint32_t switches_between(std::uint32_t a, std::uint32_t b) const;
  std::uint32_t diameter_links() const { return has_three_tiers() ? 6 : 4; }
  // How many ways lead from one host to another in a plane, where they do not share a leaf.
  std::uint32_t paths() const { return has_three_tiers() ? config_.spines * config_.cores_per_spine : config_.spines; }

  // The uSIDs of a path, for the switches' tables.
  std::uint16_t usid(const FabricNode& node) const;
  // Whether a switch or a downlink of a leaf has it.
  bool is_usid(std::uint16_t usid) const {
    return usid - 0x0100u < leaves_ || usid - 0x0300u < t1_ || usid - 0x0500u < t2_ ||
           usid - 0x1000u < config_.hosts_per_leaf;
  }
  std::uint16_t host_usid(std::uint32_t host) const {
    return static_cast<std::uint16_t>(0x1000 + host % config_.hosts_per_leaf);
  }

 private:
  LinkId base(std::uint32_t plane) const { return plane * links_per_plane_; }
  std::uint32_t place_in_plane(LinkId link) const { return link % links_per_plane_; }

  FabricConfig config_;
  std::uint32_t leaves_ = 0;
  std::uint32_t leaves_per_pod_ = 0;
  std::uint32_t t1_ = 0;
  std::uint32_t t2_ = 0;
  std::uint32_t links_per_plane_ = 0;
};

}  // namespace softmrc::sim
