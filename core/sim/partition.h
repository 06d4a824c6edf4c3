// Which shard simulates which node of a fabric. Hosts stay with the leaves that they hang on, of all planes;
// aggregations are near the leaves of their pod. Whatever passes from one shard to another crosses a link, and so takes
// a link's delay.
#pragma once

#include <algorithm>
#include <cstdint>

#include "sim/fabric.h"

namespace softmrc::sim {

class Partition {
 public:
  Partition(const Fabric& fabric, std::uint32_t shards) : fabric_(&fabric), shards_(shards) {}

  // As many as make sense: a leaf each. Links without a delay hold everything together.
  static std::uint32_t most(const Fabric& fabric) {
    return fabric.config().link_delay.ps > 0 ? std::min(fabric.leaves(), max_shards) : 1;
  }

  std::uint32_t shards() const { return shards_; }
  std::uint32_t of_host(std::uint32_t host) const { return part(fabric_->leaf_of(host), fabric_->leaves()); }
  std::uint32_t of(const FabricNode& node) const {
    switch (node.tier) {
      case Tier::host: return of_host(node.index);
      case Tier::t0: return part(node.index, fabric_->leaves());
      case Tier::t1:
        return fabric_->has_three_tiers() ? part(node.index, fabric_->t1_switches())
                                          : spread(node, fabric_->t1_switches());
      case Tier::t2: return spread(node, fabric_->t2_switches());
    }
    return 0;
  }

 private:
  static constexpr std::uint32_t max_shards = 255;

  std::uint32_t part(std::uint64_t index, std::uint32_t count) const {
    return static_cast<std::uint32_t>(index * shards_ / count);
  }
  std::uint32_t spread(const FabricNode& node, std::uint32_t count) const {
    return part(static_cast<std::uint64_t>(node.plane) * count + node.index, count * fabric_->config().planes);
  }

  const Fabric* fabric_;
  std::uint32_t shards_;
};

}  // namespace softmrc::sim
