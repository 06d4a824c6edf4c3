// What one endpoint and its driver carry of a group, over two queue pairs to every peer. One has the messages, the
// other the bulk data, so that a small operation, or an error, never waits behind gigabytes. A channel owns the parts
// that do the work, dispatches completions and messages to them, and calls them in a fixed order when the engine has
// made progress, when something is late, when the group fails and when it is closed.
//
// Everything here happens with the engine to itself: in the thread that drives it, or in a caller's. Nothing waits, and
// no other channel is touched: what concerns them all is reported to the owner, which queues what it has for this
// channel. Any failure is final: it ends the group, and everything under way here ends with its error.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/channel_owner.h"
#include "collectives/collective_transfers.h"
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
#include "proto/qp_factory.h"

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
  // Or the caller makes the queue pairs. The key to the ring that this peer writes messages to:
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
  using Engine = proto::Endpoint;

  void on_first_packet(Engine& engine, Time now, std::uint32_t node, std::uint32_t qpn) override;
  void on_group_failure(Engine& engine, Time now, const GroupFailure& failure) override;
  void handle(Engine& engine, Time now, const proto::Completion& completion);
  void handle_failure(Engine& engine, Time now, const proto::Completion& completion);
  void handle_message(Engine& engine, Time now, std::uint32_t peer, std::uint32_t length);
  void handle_bye(Engine& engine, Time now, std::uint32_t peer, bool is_well);
  void check_deadlines(Engine& engine, Time now);

  const ChannelIdentity self_;
  const std::uint32_t cq_;
  proto::Driver& driver_;
  Engine* engine_ = nullptr;  // for calls while waiting, when the waiting thread has it alone
  FailureMonitor failures_;
  PeerConnections connections_;
  MessageRouter router_;
  ShmRings shm_;
  CollectiveTransfers transfers_;
  P2pMatcher p2p_;
  bool has_left_ = false;
};

}  // namespace softmrc::collectives
