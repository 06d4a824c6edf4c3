// A group of ranks in memory: the collectives that are shipped, each rank over its endpoint of a mesh. What the network
// and the processes do to them is the mesh's business; here they are introduced to each other, and may be made to lie.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/prng.h"
#include "collectives/group.h"
#include "sim/mesh.h"

namespace softmrc::sim {

struct RanksConfig {
  std::uint64_t seed = 1;
  std::uint32_t mtu = 4096;
  std::uint32_t unit = 4096;  // what bulk data is cut by
  std::uint32_t mpr = 16;
  std::uint32_t max_wimm = 1024;
  std::uint32_t max_send_wr = 1024;
  std::uint32_t timeout = 8;
  std::uint32_t retry_linear = 4;
  std::uint32_t retry_exponential = 5;
};

// A byte of a message's header that is not what the rank meant.
struct Lie {
  std::uint32_t rank = 0;
  std::uint32_t to = 0;
  std::uint32_t after = 0;   // messages that are true
  std::uint32_t offset = 0;  // of the byte
  std::uint8_t flips = 0;    // its bits that change
};

class Ranks final : private Mesh::Forger {
 public:
  // One on each side. They know of each other, but none has joined.
  Ranks(Mesh& mesh, const RanksConfig& config, std::shared_ptr<const proto::EvProfile> evs,
        std::shared_ptr<const proto::CcProfile> window);
  ~Ranks() override { mesh_.set_forger(nullptr); }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  std::uint32_t size() const { return static_cast<std::uint32_t>(groups_.size()); }
  collectives::Group& group(std::uint32_t rank) { return *groups_[rank]; }
  const proto::Endpoint& engine(std::uint32_t rank) const { return mesh_.side(rank); }
  // It takes part from here on.
  void join(std::uint32_t rank) { groups_[rank]->start(config_.unit); }
  void tell(const Lie& lie) { lies_.push_back(lie); }
  std::uint32_t lies_told() const { return lies_told_; }

 private:
  void forge(std::uint32_t sender, std::uint32_t receiver, const wire::Packet& packet,
             std::span<std::uint8_t> payload) override;
  void prepare(std::uint32_t rank, const std::shared_ptr<const proto::EvProfile>& evs,
               const std::shared_ptr<const proto::CcProfile>& window);
  void introduce(std::uint32_t rank);

  Mesh& mesh_;
  const RanksConfig config_;
  std::vector<Lie> lies_;
  std::uint32_t lies_told_ = 0;
  std::vector<std::unique_ptr<collectives::Group>> groups_;
  std::vector<collectives::PeerEndpoint> ends_;  // what each keeps for the others
};

}  // namespace softmrc::sim
