// Packets closed by a cipher: the sessions of a lane's queue pairs, and which of them a packet belongs to. What a node says
// that is no queue pair's (probes, words about ports) goes under the key of one that both still have.
//
// A peer is sealed or it is not: once a queue pair to it has a session, nothing of that peer's is taken without.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "seal/session.h"
#include "udp/seal.h"

namespace softmrc::udp {

struct SealPlan {
  seal::Rekeying rekeying;
};

// What two queue pairs agreed on.
struct SealKeys {
  seal::Cipher cipher = seal::Cipher::aes_256_gcm;
  seal::Secret send{};
  seal::Secret receive{};
};

class SessionSeal final : public Seal {
 public:
  explicit SessionSeal(const SealPlan& plan) : plan_(plan) {}

  void add(Time now, std::uint32_t qpn, std::uint32_t peer, std::uint32_t dest_qpn, const SealKeys& keys);
  // The queue pair is gone. What it still has to say, it can for a while.
  void end(Time now, std::uint32_t qpn);
  void remove(std::uint32_t qpn);
  void remove_peer(std::uint32_t peer);
  // Has a queue pair that works and is sealed, or one that has gone and still answers.
  bool covers(std::uint32_t peer) const { return by_peer_.contains(peer); }
  // Has one that was not ended.
  bool has_live(std::uint32_t peer) const;
  std::size_t sessions() const { return by_qpn_.size(); }

  std::uint32_t overhead() const override { return static_cast<std::uint32_t>(wire::sealed_data_overhead); }
  void seal(Time now, Outgoing& packet) override;
  void begin(const Origin& origin) override { origin_ = origin; }
  proto::Integrity open(Time now, wire::MutableBytes& packet) override;
  void on_peers_removed() override {}

 private:
  // A little longer than the engine answers for a queue pair that is gone.
  static constexpr Duration afterlife = seconds(4);
  // While the peer uses a key it has it; after that it may not, and others are tried in turn.
  static constexpr Duration heard_lately = seconds(1);

  struct Session {
    std::uint32_t qpn;
    std::uint32_t peer;
    std::uint32_t dest_qpn;
    seal::Outbound out;
    seal::Inbound in;
    Time heard_at;
    Time ends_at = Time::never();
  };
  static std::uint64_t towards(std::uint32_t peer, std::uint32_t dest_qpn) { return std::uint64_t{peer} << 32 | dest_qpn; }
  Session& session_for(Time now, const proto::Transmit& transmit);
  void drop_ended(Time now);

  SealPlan plan_;
  std::shared_ptr<const seal::ForkGuard> guard_ = std::make_shared<seal::ForkGuard>();
  std::unordered_map<std::uint32_t, std::unique_ptr<Session>> by_qpn_;
  std::unordered_map<std::uint64_t, Session*> by_dest_;
  std::unordered_map<std::uint32_t, std::vector<Session*>> by_peer_;
  std::uint32_t turn_ = 0;
  Origin origin_;
};

}  // namespace softmrc::udp
