// Which seal is a peer's: the device's plain one, or that of sessions, where its queue pairs have keys.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "udp/icrc_seal.h"
#include "udp/session_seal.h"

namespace softmrc::udp {

class Seals {
 public:
  Seals(bool has_icrc, const SealPlan& plan) : plain_(has_icrc ? static_cast<Seal*>(&icrc_) : &blank_), sessions_(plan) {}
  Seals(const Seals&) = delete;
  Seals& operator=(const Seals&) = delete;

  Seal& of(std::uint32_t peer) { return peer < by_peer_.size() ? *by_peer_[peer] : *plain_; }

  bool is_sealed(std::uint32_t peer) const { return sessions_.has_live(peer); }
  bool has_sessions() const { return sessions_.sessions() > 0; }
  void add(Time now, std::uint32_t qpn, std::uint32_t peer, std::uint32_t dest_qpn, const SealKeys& keys) {
    sessions_.add(now, qpn, peer, dest_qpn, keys);
    if (by_peer_.size() <= peer) by_peer_.resize(peer + 1, plain_);
    refresh();
  }
  void end(Time now, std::uint32_t qpn) { sessions_.end(now, qpn); }
  void remove(std::uint32_t qpn) {
    sessions_.remove(qpn);
    refresh();
  }
  void forget(std::uint32_t peer) {
    sessions_.remove_peer(peer);
    refresh();
  }
  void on_peers_removed(std::span<const std::uint32_t> gone) {
    for (const std::uint32_t peer : gone) sessions_.remove_peer(peer);
    refresh();
    plain_->on_peers_removed();
  }

 private:
  void refresh() {
    for (std::uint32_t peer = 0; peer < by_peer_.size(); ++peer) by_peer_[peer] = sessions_.covers(peer) ? static_cast<Seal*>(&sessions_) : plain_;
  }

  IcrcSeal icrc_;
  BlankSeal blank_;
  Seal* plain_;
  SessionSeal sessions_;
  std::vector<Seal*> by_peer_;  // of those that are or were sealed; the others have the plain one
};

}  // namespace softmrc::udp
