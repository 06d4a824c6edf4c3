// What one endpoint and its driver carry of a group: its stripes of operations, over two queue pairs to every peer. One
// has the messages, the other the bulk data, so that a small operation, or an error, never waits behind gigabytes.
//
// Everything here happens with the engine to itself: in the thread that drives it, or in a caller's. Nothing waits, and
// no other channel is touched: what concerns them all the owner is told, and what the owner has for this channel it
// queues. Any failure is final: it ends the group, and everything under way here ends with its error.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/channel_owner.h"
#include "collectives/failure_monitor.h"
#include "collectives/group_directory.h"
#include "collectives/message_router.h"
#include "collectives/p2p_matcher.h"
#include "collectives/peer_connections.h"
#include "collectives/plan.h"
#include "collectives/shm_rings.h"
#include "collectives/stripes.h"
#include "collectives/work.h"
#include "proto/driver.h"

namespace softmrc::collectives {

class Channel final : public proto::ProgressHandler, private proto::LazyAccept, private FailureHandler {
 public:
  // `domains` are by rank, and so is the directory; both outlive it.
  Channel(ChannelOwner& owner, std::uint32_t number, const ChannelResources& resources, RankInfo place,
          const GroupDirectory& directory, std::span<const proto::Domain> domains, std::uint64_t seed);
  ~Channel() override;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Keeps numbers for all peers. From start on a peer is connected when one of the two sends to the other first; the
  // directory is complete by then.
  PeerEndpoint reserve();
  // True when it has answered on every port that is up here, before the timeout.
  bool connect_now(std::uint32_t peer, Duration timeout);
  // Or somebody else makes the queue pairs. The key to the ring that this peer writes messages to:
  std::uint32_t ring_rkey(std::uint32_t peer);
  void connect(std::uint32_t peer, std::uint32_t message_qpn, std::uint32_t bulk_qpn, std::uint32_t remote_rkey);
  // From here on the peers' messages are taken.
  void start();
  // And from here on they are not. False when a peer has been connected.
  bool stop();

  // Takes its queued work in the caller's thread.
  void catch_up();
  void send(Part from, DType dtype, std::uint32_t to, std::uint32_t tag, double timeout_s,
            const std::shared_ptr<Work>& work);
  void receive(Part to, DType dtype, std::int32_t source, std::uint32_t tag, double timeout_s,
               const std::shared_ptr<Work>& work);
  // Sends and receives are under way.
  bool is_busy();

  void say_goodbye();
  // Waits until all that was sent has been acknowledged.
  void linger(Duration timeout);
  // Nothing happens here any longer.
  void leave();
  ChannelStats stats();
  // The queue pairs for messages and bulk data, if there are any.
  std::optional<std::pair<std::uint32_t, std::uint32_t>> pair(std::uint32_t peer);
  proto::Driver& driver() { return driver_; }

  bool progress(proto::Endpoint& engine, Time now) override;
  Time deadline() const override;

 private:
  struct EarlyMessage {
    MessageHeader header;
    std::vector<std::uint8_t> payload;
  };
  using Engine = proto::Endpoint;
  // Ranks that an operation waits for: that have said nothing of it, and that have.
  struct Missing {
    std::string absent, slow;
  };
  using Operations = std::list<std::unique_ptr<Operation>>;

  void on_first_packet(Engine& engine, Time now, std::uint32_t node, std::uint32_t qpn) override;

  // channel.cpp: completions, messages, ends.
  void handle(Engine& engine, Time now, const proto::Completion& completion);
  void handle_failure(Engine& engine, Time now, const proto::Completion& completion);
  void handle_message(Engine& engine, Time now, std::uint32_t peer, std::uint32_t length);
  void handle_collective_message(Engine& engine, Time now, std::uint32_t peer, const MessageHeader& header,
                                 std::span<const std::uint8_t> payload);
  void handle_bye(Engine& engine, Time now, std::uint32_t peer, bool is_well);
  void handle_error(Engine& engine, Time now, const std::string& why);
  void on_group_failure(Engine& engine, Time now, const GroupFailure& ending) override;
  void end_operations(Engine& engine);
  void look_at_clock(Engine& engine, Time now);
  void send_inquiries(Engine& engine, Time now);
  void on_peer_left(Engine& engine, Time now, std::uint32_t peer, const Operation& op);
  void fail_different(Engine& engine, Time now, std::uint32_t peer, CollectiveFingerprint its,
                      const CollectiveFingerprint& ours);
  std::vector<std::uint32_t> open_peers(const Operation& op, bool also_blocked) const;
  Missing missing(const Operation& op) const;
  bool may_hear_more(Operation& op, Time now);

  // transfers.cpp: collectives.
  Operation* find(std::uint32_t number);
  void begin(Engine& engine, Time now, Operation& op);
  void grant(Engine& engine, Time now, Operation& op);
  void deliver(Engine& engine, Time now, Operation& op, std::uint32_t peer, const MessageHeader& header,
               std::span<const std::uint8_t> payload);
  void deliver_eager(Engine& engine, Time now, Operation& op, std::uint32_t peer, const MessageHeader& header,
                     std::span<const std::uint8_t> payload);
  void deliver_grant(Engine& engine, Time now, Operation& op, std::uint32_t peer, const MessageHeader& header);
  void handle_slice(Engine& engine, Time now, std::uint32_t peer, std::uint32_t imm, std::uint32_t length);
  void handle_sent(std::uint64_t wr_id);
  void send_eager(Engine& engine, Time now, Operation& op, std::uint32_t out);
  void post(Engine& engine, Time now, Operation& op, std::uint32_t out);
  void post_all(Engine& engine, Time now);
  void end_inbound(Engine& engine, Inbound& in);
  void advance(Engine& engine, Time now, Operation& op);
  bool copy_some(Operation& op);
  void settle(Operation& op);
  void sweep(Engine& engine, Time now);

  ChannelOwner& owner_;
  const ChannelIdentity self_;
  const std::uint32_t cq_;
  proto::Driver& driver_;
  Engine* engine_ = nullptr;  // for what is asked while waiting, which has it to itself
  FailureMonitor failures_;
  PeerConnections connections_;
  MessageRouter router_;
  ShmRings shm_;
  P2pMatcher p2p_;

  Operations operations_;          // stripes that have begun, in the order of issue, until they have ended
  std::uint32_t next_number_ = 1;  // no stripe to come has a lower one
  bool has_ended_some_ = false;
  bool has_copies_ = false;
  bool has_unposted_ = false;                                          // a send queue was full
  std::map<std::uint32_t, std::vector<EarlyMessage>> early_messages_;  // by peer: for what has not started here

  bool has_left_ = false;
  ChannelStats stats_;
};

}  // namespace softmrc::collectives
