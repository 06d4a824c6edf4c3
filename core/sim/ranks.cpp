#include "sim/ranks.h"

#include <algorithm>

#include "base/check.h"

namespace softmrc::sim {

using collectives::Header;
using collectives::Group;

Ranks::Ranks(Mesh& mesh, const RanksConfig& config, std::shared_ptr<const proto::EvProfile> evs, std::shared_ptr<const proto::CcProfile> window)
    : mesh_(mesh), config_(config), groups_(mesh.sides()) {
  mesh_.set_forger(this);
  for (std::uint32_t rank = 0; rank < size(); ++rank) prepare(rank, evs, window);
}

void Ranks::prepare(std::uint32_t rank, const std::shared_ptr<const proto::EvProfile>& evs, const std::shared_ptr<const proto::CcProfile>& window) {
  proto::Endpoint& engine = mesh_.side(rank);
  std::uint32_t id = 0;
  SOFTMRC_CHECK(!engine.add_ev_profile(evs, id) && !engine.add_cc_profile(window, id));
  const std::uint32_t cq = engine.create_cq();
  std::vector<proto::Domain> domains(size());
  for (proto::Domain& domain : domains) domain = engine.create_domain();
  for (std::uint32_t peer = 0; peer < size(); ++peer) {
    if (peer == rank) continue;
    for (std::uint32_t bulk = 0; bulk < 2; ++bulk) {
      proto::InitAttributes init;
      init.send_cq = init.recv_cq = cq;
      init.domain = domains[peer];
      SOFTMRC_CHECK(!engine.create_qp(qpn(rank, peer) + bulk) && !engine.modify_init(qpn(rank, peer) + bulk, init));
    }
  }
  groups_[rank] = std::make_unique<Group>(std::vector<collectives::Home>{{&mesh_.stage(rank), cq}}, collectives::Place{rank, size(), config_.unit},
                                          domains, config_.seed * 0x9E3779B97F4A7C15u + rank, std::make_shared<collectives::Port>());
}

void Ranks::join(std::uint32_t rank) {
  for (std::uint32_t peer = 0; peer < size(); ++peer) {
    if (peer == rank) continue;
    for (std::uint32_t bulk = 0; bulk < 2; ++bulk) connect(rank, peer, qpn(rank, peer) + bulk, qpn(peer, rank) + bulk);
    groups_[rank]->connect(0, peer, qpn(rank, peer), qpn(rank, peer) + 1, groups_[peer]->ring_rkey(0, rank));
  }
  groups_[rank]->start(config_.unit);
}

void Ranks::connect(std::uint32_t rank, std::uint32_t peer, std::uint32_t qpn, std::uint32_t dest_qpn) {
  proto::Endpoint& engine = mesh_.side(rank);
  proto::RtrAttributes rtr;
  rtr.peer = Mesh::peer_id(rank, peer);
  rtr.dest_qpn = dest_qpn;
  rtr.first_psn = first_psn(dest_qpn);
  rtr.mtu = config_.mtu;
  rtr.mpr_dest = config_.mpr;
  rtr.max_wimm_dest = config_.max_wimm;
  proto::RtsAttributes rts;
  rts.first_psn = first_psn(qpn);
  rts.mpr = config_.mpr;
  rts.max_wimm = config_.max_wimm;
  rts.timeout = config_.timeout;
  rts.retry_linear = config_.retry_linear;
  rts.retry_exponential = config_.retry_exponential;
  rts.max_send_wr = config_.max_send_wr;
  SOFTMRC_CHECK(!engine.modify_rtr(mesh_.now(), qpn, rtr) && !engine.modify_rts(mesh_.now(), qpn, rts));
}

// Messages begin with their header, in the first packet of a write to a ring.
void Ranks::forge(std::uint32_t sender, std::uint32_t receiver, const wire::Packet& packet, std::span<std::uint8_t> payload) {
  if (packet.bth.dqp != qpn(receiver, sender) || packet.bth.retransmission || payload.size() < sizeof(Header)) return;
  for (auto lie = lies_.begin(); lie != lies_.end(); ++lie) {
    if (lie->rank != sender || lie->to != receiver || lie->after-- > 0) continue;
    payload[lie->offset % sizeof(Header)] ^= lie->flips;
    ++lies_told_;
    lies_.erase(lie);
    return;
  }
}

}  // namespace softmrc::sim
