// Which protector is a peer's: the device's plain one, or that of sessions, where its queue pairs have keys. A peer
// that was encrypted stays so when its last session is gone: then nothing is taken from it, and nothing sent.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "udp/aead_protector.h"
#include "udp/icrc_protector.h"

namespace softmrc::udp {

class ProtectorTable {
 public:
  ProtectorTable(bool has_icrc, const SealConfig& plan)
      : plain_(has_icrc ? static_cast<PacketProtector*>(&icrc_) : &blank_), sessions_(plan) {}
  ProtectorTable(const ProtectorTable&) = delete;
  ProtectorTable& operator=(const ProtectorTable&) = delete;

  PacketProtector& of(std::uint32_t peer) {
    return is_sealed(peer) ? static_cast<PacketProtector&>(sessions_) : *plain_;
  }

  bool is_sealed(std::uint32_t peer) const { return peer < is_sealed_.size() && is_sealed_[peer]; }
  bool has_sessions() const { return sessions_.sessions() > 0; }
  bool has_other(std::uint32_t qpn, std::uint32_t peer, std::uint32_t dest_qpn) const {
    return sessions_.has_other(qpn, peer, dest_qpn);
  }
  void add(std::uint32_t qpn, std::uint32_t peer, std::uint32_t dest_qpn, SealKeys& keys) {
    sessions_.add(qpn, peer, dest_qpn, keys);
    mark(peer);
  }
  // Keys of a queue pair to come with the peer at a place: from when it is admitted on, nothing of it is taken
  // unencrypted.
  void expect(std::uint32_t qpn, std::uint32_t place, std::uint32_t dest_qpn, SealKeys& keys) {
    sessions_.expect(qpn, place, dest_qpn, keys);
    if (sealed_places_.size() <= place) sealed_places_.resize(place + 1);
    sealed_places_[place] = true;
  }
  bool is_to_be_sealed(std::uint32_t place) const { return place < sealed_places_.size() && sealed_places_[place]; }
  // `has_plain`: a queue pair to this peer works without encryption, and is not to be cut off.
  void admit(std::uint32_t place, std::uint32_t peer, bool has_plain) {
    sessions_.place_is(place, peer);
    if (is_to_be_sealed(place) && !has_plain) mark(peer);
  }
  void forget_place(std::uint32_t place) {
    sessions_.place_is(place, proto::no_peer);
    if (place < sealed_places_.size()) sealed_places_[place] = false;
  }
  std::size_t expected() const { return sessions_.expected(); }
  bool is_expected(std::uint32_t qpn) const { return sessions_.is_expected(qpn); }
  void begin_expected(std::uint32_t qpn, std::uint32_t peer) {
    sessions_.begin_expected(qpn, peer);
    mark(peer);
  }
  void end(Time now, std::uint32_t qpn) { sessions_.end(now, qpn); }
  // Our side wants it plain from here on, or its number becomes another's.
  void forget(std::uint32_t peer) {
    sessions_.remove_peer(peer);
    if (is_sealed(peer)) is_sealed_[peer] = false;
  }
  void on_peers_removed(std::span<const std::uint32_t> gone) {
    for (const std::uint32_t peer : gone) forget(peer);
    plain_->on_peers_removed();
  }
  std::optional<Time> received_at(std::uint32_t qpn) const { return sessions_.received_at(qpn); }
  Time deadline() const { return sessions_.deadline(); }
  void handle_timeout(Time now) { sessions_.handle_timeout(now); }

 private:
  void mark(std::uint32_t peer) {
    if (is_sealed_.size() <= peer) is_sealed_.resize(peer + 1);
    is_sealed_[peer] = true;
  }

  IcrcProtector icrc_;
  NullProtector blank_;
  PacketProtector* plain_;
  AeadProtector sessions_;
  std::vector<bool> is_sealed_;      // by peer
  std::vector<bool> sealed_places_;  // where keys are expected, by place
};

}  // namespace softmrc::udp
