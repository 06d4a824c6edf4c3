#include "udp/session_seal.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/check.h"

namespace softmrc::udp {

void SessionSeal::add(Time now, std::uint32_t qpn, std::uint32_t peer, std::uint32_t dest_qpn, const SealKeys& keys) {
  drop_ended(now);
  remove(qpn);
  auto made = std::unique_ptr<Session>(new Session{qpn, peer, dest_qpn, {keys.cipher, keys.send, dest_qpn, plan_.rekeying, guard_},
                                                   {keys.cipher, keys.receive}, Time::long_ago()});
  by_peer_[peer].push_back(made.get());
  by_dest_[towards(peer, dest_qpn)] = made.get();
  by_qpn_[qpn] = std::move(made);
}

void SessionSeal::end(Time now, std::uint32_t qpn) {
  if (const auto found = by_qpn_.find(qpn); found != by_qpn_.end()) found->second->ends_at = now + afterlife;
}

void SessionSeal::remove(std::uint32_t qpn) {
  const auto found = by_qpn_.find(qpn);
  if (found == by_qpn_.end()) return;
  Session* session = found->second.get();
  const auto of_peer = by_peer_.find(session->peer);
  std::erase(of_peer->second, session);
  if (of_peer->second.empty()) by_peer_.erase(of_peer);
  // The peer may have given the number to another queue pair since.
  if (const auto there = by_dest_.find(towards(session->peer, session->dest_qpn)); there != by_dest_.end() && there->second == session)
    by_dest_.erase(there);
  by_qpn_.erase(found);
}

void SessionSeal::remove_peer(std::uint32_t peer) {
  while (covers(peer)) remove(by_peer_.at(peer).back()->qpn);
}

void SessionSeal::drop_ended(Time now) {
  std::vector<std::uint32_t> ended;
  for (const auto& [qpn, session] : by_qpn_)
    if (session->ends_at <= now) ended.push_back(qpn);
  for (const std::uint32_t qpn : ended) remove(qpn);
}

bool SessionSeal::has_live(std::uint32_t peer) const {
  const auto found = by_peer_.find(peer);
  return found != by_peer_.end() && std::any_of(found->second.begin(), found->second.end(), [](const Session* session) {
    return session->ends_at == Time::never();
  });
}

SessionSeal::Session& SessionSeal::session_for(Time now, const proto::Transmit& transmit) {
  const auto exact = by_dest_.find(towards(transmit.peer, transmit.packet.bth.dqp));
  if (exact != by_dest_.end()) return *exact->second;
  const std::vector<Session*>& known = by_peer_.at(transmit.peer);
  Session* newest = *std::max_element(known.begin(), known.end(), [](const Session* a, const Session* b) { return a->heard_at < b->heard_at; });
  return now - newest->heard_at < heard_lately ? *newest : *known[turn_++ % known.size()];
}

void SessionSeal::seal(Time now, Outgoing& packet) {
  constexpr std::array<std::uint8_t, 4> zeros{};
  Session& session = session_for(now, packet.transmit);
  const bool has_imm = wire::has_imm(packet.transmit.packet.bth.opcode);
  std::array<std::uint8_t, 4> imm{};
  std::size_t clear = packet.front_size;
  if (has_imm) {
    clear -= imm.size();
    std::copy_n(packet.front + clear, imm.size(), imm.begin());
  }
  const seal::Bytes hidden_imm(imm.data(), has_imm ? imm.size() : 0);
  const seal::Bytes padding(zeros.data(), padding_of(packet.payload_size));
  const std::size_t size = session.out.seal(now, packet.front, clear, hidden_imm, {packet.payload, packet.payload_size}, padding);
  packet.front_size = static_cast<std::uint32_t>(size);
  packet.payload_size = 0;
}

// What names no queue pair of this peer's is nobody's, however well it is sealed.
proto::Integrity SessionSeal::open(Time now, wire::MutableBytes& packet) {
  const std::size_t clear = wire::clear_size(packet, origin_.is_trimmed);
  if (clear == 0) return proto::Integrity::unsealed;
  const std::uint32_t qpn = wire::SealKey::parse(packet.data() + clear).qpn;
  const std::uint32_t dqp = wire::load24(packet.data() + 5);
  const auto found = by_qpn_.find(qpn);
  if (found == by_qpn_.end() || found->second->peer != origin_.peer || (dqp != qpn && dqp != wire::endpoint_qpn))
    return proto::Integrity::forged;
  Session& session = *found->second;
  switch (session.in.open(now, packet, origin_.is_trimmed)) {
    case seal::Opened::fresh: break;
    case seal::Opened::unsealed: return proto::Integrity::unsealed;
    case seal::Opened::forged: return proto::Integrity::forged;
    case seal::Opened::replayed: return proto::Integrity::replayed;
  }
  session.heard_at = now;
  return proto::Integrity::verified;
}

}  // namespace softmrc::udp
