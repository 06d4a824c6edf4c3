#include "sim/ranks.h"

#include <algorithm>

#include "base/check.h"

namespace softmrc::sim {

using collectives::Group;
using collectives::MessageHeader;

Ranks::Ranks(Mesh& mesh, const RanksConfig& config, std::shared_ptr<const proto::EvProfile> evs,
             std::shared_ptr<const proto::CcProfile> window)
    : mesh_(mesh), config_(config), groups_(mesh.sides()) {
  mesh_.set_forger(this);
  for (std::uint32_t rank = 0; rank < size(); ++rank) prepare(rank, evs, window);
  for (std::uint32_t rank = 0; rank < size(); ++rank) introduce(rank);
}

void Ranks::prepare(std::uint32_t rank, const std::shared_ptr<const proto::EvProfile>& evs,
                    const std::shared_ptr<const proto::CcProfile>& window) {
  proto::Endpoint& engine = mesh_.side(rank);
  std::uint32_t id = 0;
  SOFTMRC_CHECK(!engine.add_ev_profile(evs, id) && !engine.add_cc_profile(window, id));
  const std::uint32_t cq = engine.create_cq();
  std::vector<proto::Domain> domains(size());
  for (proto::Domain& domain : domains) domain = engine.create_domain();
  groups_[rank] = std::make_unique<Group>(
      std::vector<collectives::ChannelResources>{{&mesh_.driver(rank), &mesh_.driver(rank).qp_factory(), cq}},
      collectives::RankInfo{rank, size(), config_.unit}, domains, config_.seed * 0x9E3779B97F4A7C15u + rank,
      std::make_shared<collectives::CompletionNotifier>());
  ends_.push_back(groups_[rank]->reserve()[0]);
}

void Ranks::introduce(std::uint32_t rank) {
  collectives::GroupParams params;
  params.key = {config_.seed, 1};
  params.receiving.mtu = config_.mtu;
  params.receiving.mpr_dest = config_.mpr;
  params.receiving.max_wimm_dest = config_.max_wimm;
  params.sending.timeout = config_.timeout;
  params.sending.retry_linear = config_.retry_linear;
  params.sending.retry_exponential = config_.retry_exponential;
  params.sending.max_send_wr = config_.max_send_wr;
  groups_[rank]->set_params(params);
  for (std::uint32_t peer = 0; peer < size(); ++peer) {
    if (peer == rank) continue;
    collectives::PeerInfo member{{ends_[peer]}, config_.mpr, config_.max_wimm, nullptr, {}, {}};
    member.ends[0].place = Mesh::peer_id(rank, peer);
    SOFTMRC_CHECK(!groups_[rank]->set_peer(peer, std::move(member)));
  }
}

// Messages begin with their header, in the first packet of a write to a ring.
void Ranks::forge(std::uint32_t sender, std::uint32_t receiver, const wire::Packet& packet,
                  std::span<std::uint8_t> payload) {
  if (packet.bth.dqp != ends_[receiver].qpn(sender, false) || packet.bth.retransmission ||
      payload.size() < sizeof(MessageHeader))
    return;
  for (auto lie = lies_.begin(); lie != lies_.end(); ++lie) {
    if (lie->rank != sender || lie->to != receiver || lie->after-- > 0) continue;
    payload[lie->offset % sizeof(MessageHeader)] ^= lie->flips;
    ++lies_told_;
    lies_.erase(lie);
    return;
  }
}

}  // namespace softmrc::sim
