#include "collectives/peer_connections.h"

#include <algorithm>

#include "base/check.h"
#include "collectives/error_text.h"
#include "collectives/immediate.h"

namespace softmrc::collectives {
namespace {

constexpr std::uint32_t receives_posted = 2048;
constexpr std::uint32_t highest_qpn = 0xFFFFFF;
constexpr std::uint32_t max_draws = 1'000'000;

}  // namespace

PeerConnections::PeerConnections(ChannelIdentity self, const ChannelResources& resources,
                                 const GroupDirectory& directory, std::span<const proto::Domain> domains,
                                 std::uint64_t seed, FailureMonitor& failures, proto::LazyAccept& acceptor)
    : self_(self),
      resources_(resources),
      driver_(*resources.driver),
      qp_factory_(*resources.qp_factory),
      directory_(directory),
      domains_(domains),
      failures_(failures),
      acceptor_(acceptor),
      prng_(seed, "rkeys", self.number),
      peers_(self.size) {}

// Numbers are random, and so is the first key: who has not read the store must not be able to guess them.
PeerEndpoint PeerConnections::reserve(proto::Endpoint& engine) {
  const std::uint32_t pairs = 2 * self_.size;
  const std::uint32_t choices = highest_qpn / resources_.lanes;
  SOFTMRC_CHECK(pairs + 4 < choices);
  proto::QpnReservation kept{0, resources_.lanes, pairs, 0, self_.size};
  for (std::uint32_t draws = 0; !is_reserved_; ++draws) {
    SOFTMRC_CHECK(draws < max_draws);
    kept.first_qpn = resources_.lane + resources_.lanes * (4 + prng_.below(choices - pairs - 4));
    kept.first_rkey = 1 + prng_.below(~0u - self_.size);
    is_reserved_ = engine.reserve(kept, acceptor_);
  }
  return reserved_ = {0, kept.first_qpn, kept.stride, kept.first_rkey};
}

PeerConnection& PeerConnections::open(proto::Endpoint& engine, std::uint32_t p, std::uint32_t rkey,
                                      const proto::LazyAccept* by) {
  SOFTMRC_CHECK(!peers_[p]);
  PeerConnection& peer = *(peers_[p] = std::make_unique<PeerConnection>());
  peer.ring.open(self_.is_first() ? MessageRing::wide_ring : MessageRing::narrow_ring);
  peer.ring_rkey = rkey;
  SOFTMRC_CHECK(engine.add_region({peer.ring.inbound(), 0, peer.ring.ring_bytes(), rkey, nullptr, domains_[p]}, by));
  return peer;
}

PeerConnection& PeerConnections::get_or_open(proto::Endpoint& engine, std::uint32_t p) {
  return peers_[p] ? *peers_[p] : open(engine, p, new_rkeys(engine, 1), nullptr);
}

void PeerConnections::join(proto::Endpoint& engine, std::uint32_t p, std::uint32_t message_qpn, std::uint32_t bulk_qpn,
                           std::uint32_t remote_rkey) {
  PeerConnection& peer = *peers_[p];
  peer.ring.connect(message_qpn, remote_rkey);
  peer.bulk_qpn = bulk_qpn;
  owners_[message_qpn] = {p, false};
  owners_[bulk_qpn] = {p, true};
  ++stats_.peers_met;
  engine.post_receives(message_qpn, receive_request_of(p, false), receives_posted);
  engine.post_receives(bulk_qpn, receive_request_of(p, true), receives_posted);
}

// From the directory both ends derive the same connection, whichever begins, or if both do at once.
PeerConnection& PeerConnections::connect(proto::Endpoint& engine, Time now, std::uint32_t p) {
  const PeerInfo& member = directory_.members[p];
  const PeerEndpoint& remote = member.ends[self_.number];
  PeerConnection& peer = open(engine, p, reserved_.ring_rkey(p), &acceptor_);
  const std::uint32_t node = qp_factory_.admit(remote.place);
  const auto give_up = [&](const char* why) -> PeerConnection& {
    peer.is_broken = true;
    failures_.suspect(now, p, rank_name(p) + " cannot be reached: " + why);
    return peer;
  };
  if (node == proto::no_peer) return give_up("another is where it was said to be");
  proto::InitAttributes init;
  init.ev_profile = resources_.ev_profile;
  init.cc_profile = resources_.cc_profile;
  init.send_cq = init.recv_cq = resources_.cq;
  init.domain = domains_[p];
  if (member.paths) SOFTMRC_CHECK(!engine.add_ev_profile(member.paths, init.ev_profile));
  for (const bool is_bulk : {false, true}) {
    const std::uint32_t qpn = reserved_.qpn(p, is_bulk);
    SOFTMRC_CHECK(!engine.create_qp(qpn, &acceptor_) &&
                  !qp_factory_.init(engine, now, qpn, init, member.paths != nullptr));
    if (qp_factory_.connect(engine, now, qpn, directory_.receiving(self_.number, p, is_bulk, node))) {
      for (const bool other : {false, true}) qp_factory_.destroy(engine, now, reserved_.qpn(p, other));
      if (member.paths) engine.remove_ev_profile(init.ev_profile);
      return give_up("other queue pairs to it are encrypted, or this one is");
    }
    SOFTMRC_CHECK(!engine.modify_rts(now, qpn, directory_.sending(self_.number, p, is_bulk)));
    for (const std::uint32_t ev : member.denied) engine.deny_ev(now, qpn, ev);
  }
  if (member.paths) engine.remove_ev_profile(init.ev_profile);
  join(engine, p, reserved_.qpn(p, false), reserved_.qpn(p, true), remote.ring_rkey(self_.rank));
  return peer;
}

// The driver says from which node a packet came, and a rank connects for the rank of that node alone. A packet to the
// node itself (queue pair 2) comes before the peer's first to a queue pair; where paths to it are its own, the answer
// needs them.
std::optional<std::uint32_t> PeerConnections::accept(proto::Endpoint& engine, Time now, std::uint32_t node,
                                                     std::uint32_t qpn) {
  if (!is_started_ || driver_.is_closed()) return std::nullopt;
  const std::uint32_t place = qp_factory_.place_of(node);
  const auto is_at = [&](std::uint32_t rank) { return directory_.members[rank].ends[self_.number].place == place; };
  std::uint32_t p = 0;
  if (qpn == wire::endpoint_qpn) {
    while (p < self_.size && (p == self_.rank || !directory_.members[p].paths || !is_at(p))) ++p;
  } else {
    p = reserved_.rank_of(qpn);
  }
  if (p >= self_.size || p == self_.rank || peers_[p] || !is_at(p)) return std::nullopt;
  connect(engine, now, p);
  return p;
}

void PeerConnections::close_bulk(proto::Endpoint& engine, Time now, std::uint32_t p) {
  if (peers_[p] && peers_[p]->is_connected()) engine.modify_error(now, peers_[p]->bulk_qpn);
}

void PeerConnections::destroy(proto::Endpoint& engine, Time now) {
  engine.release(acceptor_);
  for (std::uint32_t p = 0; p < self_.size; ++p) {
    const PeerConnection* const peer = peers_[p].get();
    if (peer) engine.remove_region(peer->ring_rkey);
    if (!is_reserved_ && !(peer && peer->is_connected())) continue;
    // Those too that never were: a driver may keep keys for them.
    qp_factory_.destroy(engine, now, is_reserved_ ? reserved_.qpn(p, false) : peer->ring.qpn());
    qp_factory_.destroy(engine, now, is_reserved_ ? reserved_.qpn(p, true) : peer->bulk_qpn);
  }
}

bool PeerConnections::is_empty() const {
  return std::none_of(peers_.begin(), peers_.end(), [](const auto& peer) { return peer != nullptr; });
}

bool PeerConnections::has_answered(const proto::Endpoint& engine, std::uint32_t p) const {
  const PeerConnection& peer = *peers_[p];
  const proto::QueuePair* pair = peer.is_connected() ? engine.qp(peer.ring.qpn()) : nullptr;
  return pair && (pair->requester().live_ports() & engine.up_ports()) == engine.up_ports();
}

const PeerConnections::QueuePairOwner* PeerConnections::owner_of(std::uint32_t qpn) const {
  const auto found = owners_.find(qpn);
  return found == owners_.end() ? nullptr : &found->second;
}

std::uint32_t PeerConnections::new_rkeys(proto::Endpoint& engine, std::uint32_t count) {
  for (;;) {
    const std::uint32_t first = static_cast<std::uint32_t>(prng_.bits()) | 1;
    bool is_free = first + count > first;
    for (std::uint32_t i = 0; i < count && is_free; ++i) is_free = engine.is_rkey_free(first + i);
    if (is_free) return first;
  }
}

}  // namespace softmrc::collectives
