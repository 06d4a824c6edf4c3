// The connections of a channel: two queue pairs, a message ring and the keys, made when a peer is first sent to or
// first heard from. It decides how a connection is made, which packet may cause one, and which keys peers are given.
// What travels over a connection is left to MessageRouter and to the transfers; that a peer cannot be reached is
// reported to the FailureMonitor.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/prng.h"
#include "collectives/channel_owner.h"
#include "collectives/failure_monitor.h"
#include "collectives/group_directory.h"
#include "collectives/message_ring.h"
#include "proto/driver.h"

namespace softmrc::collectives {

struct PeerConnection {
  MessageRing ring;
  std::uint32_t ring_rkey = 0;  // by which the peer writes messages
  std::uint32_t bulk_qpn = 0;
  bool has_left = false;
  bool is_broken = false;  // its message queue pair is in error

  bool is_connected() const { return bulk_qpn != 0; }
};

class PeerConnections {
 public:
  struct QueuePairOwner {
    std::uint32_t peer = 0;
    bool is_bulk = false;
  };

  // `domains` are by rank, and so is the directory; both outlive it. `acceptor` is called for the first packets to what
  // is reserved.
  PeerConnections(ChannelIdentity self, const ChannelResources& resources, const GroupDirectory& directory,
                  std::span<const proto::Domain> domains, std::uint64_t seed, FailureMonitor& failures,
                  proto::LazyAccept& acceptor);

  // Keeps numbers for all peers. Without it, the caller makes the queue pairs: see join.
  PeerEndpoint reserve(proto::Endpoint& engine);
  void set_started(bool is_started) { is_started_ = is_started; }
  bool is_started() const { return is_started_; }
  bool may_connect() const { return is_reserved_ && is_started_ && !driver_.is_closed(); }

  PeerConnection& get_or_connect(proto::Endpoint& engine, Time now, std::uint32_t peer) {
    return peers_[peer] ? *peers_[peer] : connect(engine, now, peer);
  }
  // The peer whose first packet this was, if it is now connected because of it.
  std::optional<std::uint32_t> accept(proto::Endpoint& engine, Time now, std::uint32_t node, std::uint32_t qpn);
  // With a ring, but without queue pairs, which join adds.
  PeerConnection& get_or_open(proto::Endpoint& engine, std::uint32_t peer);
  void join(proto::Endpoint& engine, std::uint32_t peer, std::uint32_t message_qpn, std::uint32_t bulk_qpn,
            std::uint32_t remote_rkey);
  // Nothing may be written to the peer any longer, and nothing that it writes lands.
  void close_bulk(proto::Endpoint& engine, Time now, std::uint32_t peer);
  void destroy(proto::Endpoint& engine, Time now);

  bool is_empty() const;
  PeerConnection* find(std::uint32_t peer) { return peers_[peer].get(); }
  const PeerConnection* find(std::uint32_t peer) const { return peers_[peer].get(); }
  bool has_left(std::uint32_t peer) const { return peers_[peer] && peers_[peer]->has_left; }
  // On every port that is up here.
  bool has_answered(const proto::Endpoint& engine, std::uint32_t peer) const;
  const QueuePairOwner* owner_of(std::uint32_t qpn) const;

  // So many in a row that name no region yet.
  std::uint32_t new_rkeys(proto::Endpoint& engine, std::uint32_t count);
  std::uint64_t draw_token() { return prng_.bits(); }
  // A peer writes what was granted to it, and nothing that was granted to another.
  proto::Domain domain(std::uint32_t peer) const { return domains_[peer]; }
  const ChannelStats& stats() const { return stats_; }

 private:
  PeerConnection& open(proto::Endpoint& engine, std::uint32_t peer, std::uint32_t rkey, const proto::LazyAccept* by);
  PeerConnection& connect(proto::Endpoint& engine, Time now, std::uint32_t peer);

  const ChannelIdentity self_;
  const ChannelResources resources_;
  proto::Driver& driver_;
  proto::QpFactory& qp_factory_;
  const GroupDirectory& directory_;
  const std::span<const proto::Domain> domains_;
  FailureMonitor& failures_;
  proto::LazyAccept& acceptor_;
  Prng prng_;
  PeerEndpoint reserved_;
  bool is_reserved_ = false;
  bool is_started_ = false;
  std::vector<std::unique_ptr<PeerConnection>> peers_;        // by rank; null: not connected
  std::unordered_map<std::uint32_t, QueuePairOwner> owners_;  // by queue pair
  ChannelStats stats_;
};

}  // namespace softmrc::collectives
