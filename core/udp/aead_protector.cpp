#include "udp/aead_protector.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/check.h"

namespace softmrc::udp {

void AeadProtector::add(std::uint32_t qpn, std::uint32_t peer, std::uint32_t dest_qpn, SealKeys& keys) {
  remove(qpn);
  auto made = std::unique_ptr<Session>(new Session{qpn,
                                                   peer,
                                                   dest_qpn,
                                                   {keys.cipher, keys.send, dest_qpn, plan_.key_update, guard_},
                                                   {keys.cipher, keys.receive},
                                                   Time::long_ago()});
  keys.use_up();
  by_peer_[peer].push_back(made.get());
  by_qpn_[qpn] = std::move(made);
}

void AeadProtector::expect(std::uint32_t qpn, std::uint32_t place, std::uint32_t dest_qpn, SealKeys& keys) {
  remove(qpn);
  expected_.insert_or_assign(qpn, PendingSession{place, dest_qpn, keys});
  keys.use_up();
}

void AeadProtector::place_is(std::uint32_t place, std::uint32_t peer) {
  if (peers_at_.size() <= place) peers_at_.resize(place + 1, proto::no_peer);
  peers_at_[place] = peer;
}

bool AeadProtector::begin_expected(std::uint32_t qpn, std::uint32_t peer) {
  const auto found = expected_.find(qpn);
  if (found == expected_.end() || found->second.place >= peers_at_.size() || peers_at_[found->second.place] != peer)
    return false;
  add(qpn, peer, found->second.dest_qpn, found->second.keys);
  expected_.erase(found);
  return true;
}

void AeadProtector::end(Time now, std::uint32_t qpn) {
  expected_.erase(qpn);
  const auto found = by_qpn_.find(qpn);
  if (found == by_qpn_.end()) return;
  found->second->ends_at = now + afterlife;
  tidies_at_ = std::min(tidies_at_, found->second->ends_at);
}

void AeadProtector::remove(std::uint32_t qpn) {
  const auto found = by_qpn_.find(qpn);
  if (found == by_qpn_.end()) return;
  Session* session = found->second.get();
  const auto of_peer = by_peer_.find(session->peer);
  std::erase(of_peer->second, session);
  if (of_peer->second.empty()) by_peer_.erase(of_peer);
  by_qpn_.erase(found);
}

void AeadProtector::remove_peer(std::uint32_t peer) {
  while (by_peer_.contains(peer)) remove(by_peer_.at(peer).back()->qpn);
}

void AeadProtector::handle_timeout(Time now) {
  std::vector<std::uint32_t> ended;
  tidies_at_ = Time::never();
  for (const auto& [qpn, session] : by_qpn_) {
    if (session->ends_at <= now) ended.push_back(qpn);
    session->in.drop_old(now);
    for (const Time at : {session->ends_at, session->in.old_until()})
      if (at > now) tidies_at_ = std::min(tidies_at_, at);
  }
  for (const std::uint32_t qpn : ended) remove(qpn);
}

bool AeadProtector::has_other(std::uint32_t qpn, std::uint32_t peer, std::uint32_t dest_qpn) const {
  const auto found = by_peer_.find(peer);
  return found != by_peer_.end() &&
         std::any_of(found->second.begin(), found->second.end(), [&](const Session* session) {
    return session->qpn != qpn && session->dest_qpn == dest_qpn && session->ends_at == Time::never();
  });
}

// What a queue pair says goes under its own keys or not at all, and an answer under those of the question. For the node
// any will do that the peer has.
AeadProtector::Session* AeadProtector::session_for(Time now, const proto::Transmit& transmit) {
  const auto own = by_qpn_.find(transmit.qpn);
  if (own != by_qpn_.end() && own->second->peer == transmit.peer) return own->second.get();
  return transmit.packet.bth.dqp == wire::endpoint_qpn ? any_session_to(now, transmit.peer) : nullptr;
}

// In turn, so that the one with the most packets does not stand for all: it may be another's who poses as this peer.
AeadProtector::Session* AeadProtector::any_session_to(Time now, std::uint32_t peer) {
  const auto found = by_peer_.find(peer);
  if (found == by_peer_.end()) return nullptr;
  const std::vector<Session*>& known = found->second;
  Session* chosen = nullptr;
  for (std::size_t i = 0; i < known.size() && !chosen; ++i) {
    Session* next = known[(turn_ + i) % known.size()];
    if (now - next->received_at < recent) chosen = next;
  }
  if (!chosen) chosen = known[turn_ % known.size()];
  turn_ = static_cast<std::uint32_t>(std::find(known.begin(), known.end(), chosen) - known.begin()) + 1;
  return chosen;
}

bool AeadProtector::seal(Time now, OutgoingPacket& packet) {
  constexpr std::array<std::uint8_t, 4> zeros{};
  Session* session = session_for(now, packet.transmit);
  if (!session) return false;
  const bool has_imm = wire::has_imm(packet.transmit.packet.bth.opcode);
  std::array<std::uint8_t, 4> imm{};
  std::size_t clear = packet.front_size;
  if (has_imm) {
    clear -= imm.size();
    std::copy_n(packet.front + clear, imm.size(), imm.begin());
  }
  const crypto::Bytes hidden_imm(imm.data(), has_imm ? imm.size() : 0);
  const crypto::Bytes padding(zeros.data(), padding_of(packet.payload_size));
  const std::size_t size = session->out.seal(now, packet.front, clear, hidden_imm,
                                             {packet.payload, packet.payload_size}, padding);
  packet.front_size = static_cast<std::uint32_t>(size);
  packet.payload_size = 0;
  return true;
}

// A packet that names no queue pair of this peer's is refused, even if its tag is right. One that is expected has keys
// from the first packet that names it: its author can have made what the peer would have, and no more.
proto::Integrity AeadProtector::open(Time now, wire::MutableBytes& packet, std::uint32_t& opened_by) {
  const std::size_t clear = wire::clear_size(packet, origin_.is_trimmed);
  if (clear == 0) return proto::Integrity::unsealed;
  const std::uint32_t qpn = wire::SealHeader::parse(packet.data() + clear).qpn;
  const std::uint32_t dqp = wire::load24(packet.data() + 5);
  auto found = by_qpn_.find(qpn);
  if (found == by_qpn_.end() && begin_expected(qpn, origin_.peer)) found = by_qpn_.find(qpn);
  if (found == by_qpn_.end() || found->second->peer != origin_.peer || (dqp != qpn && dqp != wire::endpoint_qpn))
    return proto::Integrity::forged;
  Session& session = *found->second;
  switch (session.in.open(now, packet, origin_.is_trimmed)) {
    case crypto::OpenStatus::fresh: break;
    case crypto::OpenStatus::unsealed: return proto::Integrity::unsealed;
    case crypto::OpenStatus::forged: return proto::Integrity::forged;
    case crypto::OpenStatus::replayed: return proto::Integrity::replayed;
  }
  session.received_at = now;
  session.out.on_heard(session.in.epoch());
  tidies_at_ = std::min(tidies_at_, session.in.old_until());
  opened_by = qpn;
  return proto::Integrity::verified;
}

}  // namespace softmrc::udp
