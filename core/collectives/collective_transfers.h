// Carries out this channel's stripes of collectives: small data in messages, bulk data in slices that are written to
// where the receiver granted. It decides what may be granted, posted and merged next, when a stripe has ended, and whom
// it still waits for when it is late. When an operation may start is left to the group; that a late operation fails it,
// to the FailureMonitor.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collectives/message_router.h"
#include "collectives/operation.h"
#include "collectives/shm_rings.h"

namespace softmrc::collectives {

class CollectiveTransfers {
 public:
  CollectiveTransfers(ChannelOwner& owner, ChannelIdentity self, PeerConnections& connections, MessageRouter& router,
                      ShmRings& shm, FailureMonitor& failures)
      : owner_(owner), self_(self), connections_(connections), router_(router), shm_(shm), failures_(failures) {}

  // Forgets what has ended, and begins what the owner has for this channel.
  void sweep(proto::Endpoint& engine, Time now);
  void on_message(proto::Endpoint& engine, Time now, std::uint32_t peer, const MessageHeader& header,
                  std::span<const std::uint8_t> payload);
  // A slice is here, by the network or in shared memory.
  void on_slice(proto::Endpoint& engine, Time now, std::uint32_t peer, std::uint32_t imm, std::uint32_t length);
  // What this work request sent was acknowledged.
  void on_sent(std::uint64_t wr_id);
  // The peer has left, and has received all that was written to it.
  void on_bye(proto::Endpoint& engine, Time now, std::uint32_t peer);
  // A peer reports that the group has failed: ends well what has.
  void on_peer_error();
  // Ends all that is under way; none of it well.
  void end(proto::Endpoint& engine);

  bool has_unposted() const { return has_unposted_; }
  void post_all(proto::Endpoint& engine, Time now);
  // Some of what is to be copied within this rank's memory, if there is any.
  bool has_copies() const { return has_copies_; }
  void copy(proto::Endpoint& engine, Time now);
  bool is_busy() const { return !operations_.empty(); }
  Time deadline() const;
  // True when the group has failed because of a late operation.
  bool check_deadlines(proto::Endpoint& engine, Time now);
  // Asks all peers that are waited for whether they are in the same operation.
  void inquire(proto::Endpoint& engine, Time now, std::vector<bool>& is_asked);
  const ChannelStats& stats() const { return stats_; }

 private:
  struct EarlyMessage {
    MessageHeader header;
    std::vector<std::uint8_t> payload;
  };

  Operation* find(std::uint32_t number);
  void begin(proto::Endpoint& engine, Time now, Operation& op);
  void grant(proto::Endpoint& engine, Time now, Operation& op);
  void deliver(proto::Endpoint& engine, Time now, Operation& op, std::uint32_t peer, const MessageHeader& header,
               std::span<const std::uint8_t> payload);
  void deliver_eager(proto::Endpoint& engine, Time now, Operation& op, std::uint32_t peer, const MessageHeader& header,
                     std::span<const std::uint8_t> payload);
  void deliver_grant(proto::Endpoint& engine, Time now, Operation& op, std::uint32_t peer, const MessageHeader& header);
  void send_eager(proto::Endpoint& engine, Time now, Operation& op, std::uint32_t index);
  void post(proto::Endpoint& engine, Time now, Operation& op, std::uint32_t index);
  void post_outs(proto::Endpoint& engine, Time now, Operation& op);
  void end_inbound(proto::Endpoint& engine, Inbound& in);
  void advance(proto::Endpoint& engine, Time now, Operation& op);
  void settle(Operation& op);
  void fail_open(proto::Endpoint& engine);
  void fail_different(proto::Endpoint& engine, Time now, std::uint32_t peer, const CollectiveFingerprint& remote,
                      const CollectiveFingerprint& local);
  void on_peer_left(proto::Endpoint& engine, Time now, std::uint32_t peer, const Operation& op);
  bool extend_deadline(Operation& op, Time now);

  ChannelOwner& owner_;
  const ChannelIdentity self_;
  PeerConnections& connections_;
  MessageRouter& router_;
  ShmRings& shm_;
  FailureMonitor& failures_;
  std::list<std::unique_ptr<Operation>> operations_;                   // in the order of issue, until they have ended
  std::uint32_t next_number_ = 1;                                      // no stripe to come has a lower one
  std::map<std::uint32_t, std::vector<EarlyMessage>> early_messages_;  // by peer: for what has not begun here
  bool has_ended_some_ = false;
  bool has_copies_ = false;
  bool has_unposted_ = false;  // a send queue, or a ring in shared memory, was full
  ChannelStats stats_;
};

}  // namespace softmrc::collectives
