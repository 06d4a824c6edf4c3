// Packets closed by a cipher: the sessions of a lane's queue pairs, and which of them a packet belongs to. What a node
// says that is no queue pair's (probes, port status) goes under the key of one that both still have.
//
// Which session a packet leaves under, our own queue pair says: what a peer calls its own it may have from another.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "crypto/packet_sealer.h"
#include "udp/packet_protector.h"

namespace softmrc::udp {

struct SealConfig {
  crypto::KeyUpdatePolicy key_update;
};

// What two queue pairs agreed on: good for one session, since numbers restart with the next.
struct SealKeys {
  crypto::Cipher cipher = crypto::Cipher::aes_256_gcm;
  crypto::Secret send{};
  crypto::Secret receive{};
  bool is_used = false;

  void use_up() {
    for (crypto::Secret* secret : {&send, &receive}) crypto::secure_zero(secret->data(), secret->size());
    is_used = true;
  }
  ~SealKeys() { use_up(); }
};

class AeadProtector final : public PacketProtector {
 public:
  explicit AeadProtector(const SealConfig& plan) : plan_(plan) {}

  // Uses the keys up.
  void add(std::uint32_t qpn, std::uint32_t peer, std::uint32_t dest_qpn, SealKeys& keys);
  // Keys of a queue pair to come with the peer at a place: used up when either end first speaks.
  void expect(std::uint32_t qpn, std::uint32_t place, std::uint32_t dest_qpn, SealKeys& keys);
  std::size_t expected() const { return expected_.size(); }
  bool is_expected(std::uint32_t qpn) const { return by_qpn_.contains(qpn) || expected_.contains(qpn); }
  // Who is at a place; no_peer: no peer yet, or no longer.
  void place_is(std::uint32_t place, std::uint32_t peer);
  // Makes a session of what was expected of this peer, once; false where nothing was expected.
  bool begin_expected(std::uint32_t qpn, std::uint32_t peer);
  // The queue pair is gone, or will never be. What it still has to say, it can for a while.
  void end(Time now, std::uint32_t qpn);
  void remove(std::uint32_t qpn);
  void remove_peer(std::uint32_t peer);
  // Another queue pair than this one has a session with that one of the peer's, and was not ended.
  bool has_other(std::uint32_t qpn, std::uint32_t peer, std::uint32_t dest_qpn) const;
  // Sessions that are over, and old keys, go when it is time.
  Time deadline() const { return tidies_at_; }
  void handle_timeout(Time now);
  std::size_t sessions() const { return by_qpn_.size(); }
  // When something authentic came under this queue pair's keys, if it has some.
  std::optional<Time> received_at(std::uint32_t qpn) const {
    const auto found = by_qpn_.find(qpn);
    if (found == by_qpn_.end()) return {};
    return found->second->received_at;
  }

  std::uint32_t overhead() const override { return static_cast<std::uint32_t>(wire::sealed_data_overhead); }
  bool seal(Time now, OutgoingPacket& packet) override;
  void begin(const Origin& origin) override { origin_ = origin; }
  proto::Integrity open(Time now, wire::MutableBytes& packet, std::uint32_t& opened_by) override;
  void on_peers_removed() override {}

 private:
  // A little longer than the engine answers for a queue pair that is gone.
  static constexpr Duration afterlife = seconds(4);
  // While the peer uses a key it has it; after that it may not, and all are tried in turn.
  static constexpr Duration recent = seconds(1);

  struct Session {
    std::uint32_t qpn;
    std::uint32_t peer;
    std::uint32_t dest_qpn;
    crypto::PacketSealer out;
    crypto::PacketOpener in;
    Time received_at;
    Time ends_at = Time::never();
  };
  struct PendingSession {
    std::uint32_t place = 0;
    std::uint32_t dest_qpn = 0;
    SealKeys keys;
  };
  // Null: there is none.
  Session* session_for(Time now, const proto::Transmit& transmit);
  Session* any_session_to(Time now, std::uint32_t peer);

  SealConfig plan_;
  std::shared_ptr<const crypto::ForkGuard> guard_ = std::make_shared<crypto::ForkGuard>();
  std::unordered_map<std::uint32_t, std::unique_ptr<Session>> by_qpn_;
  std::unordered_map<std::uint32_t, std::vector<Session*>> by_peer_;
  std::unordered_map<std::uint32_t, PendingSession> expected_;  // by queue pair
  std::vector<std::uint32_t> peers_at_;                         // by place
  std::uint32_t turn_ = 0;
  Time tidies_at_ = Time::never();
  Origin origin_;
};

}  // namespace softmrc::udp
