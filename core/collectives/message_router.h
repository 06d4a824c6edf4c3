// Control messages between this channel and its peers, by rank. It decides whether a received message is well-formed,
// connects a peer that a message is to go to, keeps what finds no space until it does, and decides which peers are
// notified of a failure of the group and of its end. What a message means is left to those it is dispatched to by the
// Channel.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "collectives/failure_monitor.h"
#include "collectives/message_ring.h"
#include "collectives/peer_connections.h"

namespace softmrc::collectives {

class MessageRouter {
 public:
  MessageRouter(ChannelIdentity self, PeerConnections& connections, FailureMonitor& failures)
      : self_(self), connections_(connections), failures_(failures) {}

  // See MessageRing::send.
  void send(proto::Endpoint& engine, Time now, std::uint32_t peer, MessageHeader header,
            std::span<const std::uint8_t> payload = {}, std::uint64_t wr_id = 0);
  // A message that says no more than every header does: it connects the peer, or shows whether it still answers.
  void send_empty(proto::Endpoint& engine, Time now, std::uint32_t peer);
  void give_credit(proto::Endpoint& engine, Time now, std::uint32_t peer);
  bool has_unsent() const { return has_unsent_; }
  void flush(proto::Endpoint& engine, Time now);

  // Nothing where it was malformed, which fails the group, or where the group has failed.
  std::optional<MessageRing::Received> receive(proto::Endpoint& engine, Time now, std::uint32_t peer,
                                               std::uint32_t length);

  // The group has failed: on the first channel peers are notified, and bulk data ends.
  void on_group_failure(proto::Endpoint& engine, Time now, const GroupFailure& failure);
  // From here on this rank is leaving, and peers are notified.
  void leave(proto::Endpoint& engine, Time now);
  bool is_leaving() const { return is_leaving_; }
  // Sends what a peer that was connected only now has missed.
  void send_missed(proto::Endpoint& engine, Time now, std::uint32_t peer);
  // All that was sent has been acknowledged, except to those that are gone.
  bool is_drained(const proto::Endpoint& engine) const;
  const ChannelStats& stats() const { return stats_; }

 private:
  bool is_notified(std::uint32_t peer, const GroupFailure& failure) const;
  void send_error(proto::Endpoint& engine, Time now, std::uint32_t peer);
  void send_bye(proto::Endpoint& engine, Time now, std::uint32_t peer);

  const ChannelIdentity self_;
  PeerConnections& connections_;
  FailureMonitor& failures_;
  bool has_unsent_ = false;  // a message, or credit, found no space
  bool is_leaving_ = false;
  ChannelStats stats_;
};

}  // namespace softmrc::collectives
