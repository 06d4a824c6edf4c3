// What one endpoint, and whoever drives it, carries of a group: its stripes of operations, over queue pairs, two to
// every peer that it has spoken with. One has the messages, the other the bulk data, so that a small operation, or bad
// news, never waits behind gigabytes.
//
// Everything here happens with the engine to itself: in the thread that drives it, or in a caller's. Nothing waits, and
// no other channel is touched: what concerns them all the owner is told, and what the owner has for this channel comes
// by mail. Any failure is final: it ends the group, and everything under way here ends with the words that ended it.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/prng.h"
#include "collectives/group_directory.h"
#include "collectives/message_ring.h"
#include "collectives/operation.h"
#include "collectives/plan.h"
#include "collectives/shm_ring.h"
#include "collectives/stripes.h"
#include "collectives/work.h"
#include "proto/driver.h"
#include "proto/qp_factory.h"

namespace softmrc::collectives {

// How often a rank that is waited for is asked whether it means the same.
constexpr Duration inquiry_interval = milliseconds(300);

#define SOFTMRC_CHANNEL_COUNTERS(X) \
  X(sends)                          \
  X(receives)                       \
  X(messages)                       \
  X(slices)                         \
  X(slices_shared)                  \
  X(bytes_granted)                  \
  X(inquiries)                      \
  X(peers_met)

struct ChannelStats {
#define X(name) std::uint64_t name = 0;
  SOFTMRC_CHANNEL_COUNTERS(X)
#undef X
};

// Why everything ends.
struct GroupFailure {
  std::string why;
  bool is_ours = true;  // or another rank said it, and tells those that it speaks with
};

// What a channel is given to do.
struct QueuedWork {
  std::vector<std::unique_ptr<Operation>> operations;  // to begin, in the order of their numbers
  std::optional<GroupFailure> ending;                  // from now on
};

// The group, as its channels know it. They call with their engine to themselves; nothing is waited for.
class ChannelOwner {
 public:
  virtual ~ChannelOwner() = default;
  virtual bool has_work(std::uint32_t channel) const = 0;
  virtual QueuedWork pop_all(std::uint32_t channel) = 0;
  // A stripe has ended, well or not.
  virtual void on_ended(std::uint32_t channel, Operation& stripe, bool is_well) = 0;
  // Something ended it all, here or on another channel before: what counts.
  virtual GroupFailure on_failure(std::uint32_t channel, const std::string& why, bool is_ours) = 0;
  // What was issued and may not start yet: until when all of it has time, and what to say of it that has none left, if
  // any.
  virtual Time waits_until() const = 0;
  virtual std::string overdue(Time now) = 0;
};

// Where a channel lives: a driver, and what is its own of an endpoint there.
struct ChannelResources {
  proto::Driver* driver = nullptr;
  proto::QpFactory* qp_factory = nullptr;
  std::uint32_t cq = 0;
  std::uint32_t ev_profile = 0;
  std::uint32_t cc_profile = 0;
  std::uint32_t lane = 0;  // numbers of queue pairs there are this, and every so many from it on
  std::uint32_t lanes = 1;
};

class Channel final : public proto::ProgressHandler, private proto::LazyAccept {
 public:
  // `domains` are by rank, and so is the roll; both outlive it.
  Channel(ChannelOwner& owner, std::uint32_t number, const ChannelResources& home, RankInfo place,
          const GroupDirectory& roll, std::span<const proto::Domain> domains, std::uint64_t seed);
  ~Channel() override;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Keeps numbers for all peers. From start on those are met that speak, or are spoken to; the roll is complete by
  // then.
  PeerEndpoint reserve();
  // True when it has answered on every port that is up here, within so long.
  bool connect_now(std::uint32_t peer, Duration patience);
  // Or somebody else makes the queue pairs. The key to the ring that this peer writes messages to:
  std::uint32_t ring_rkey(std::uint32_t peer);
  void connect(std::uint32_t peer, std::uint32_t message_qpn, std::uint32_t bulk_qpn, std::uint32_t remote_rkey);
  // From here on the peers' messages are taken.
  void start();
  // And from here on they are not. False when somebody has been met.
  bool stop();

  // Takes its mail in the caller's thread.
  void catch_up();
  void send(Part from, DType dtype, std::uint32_t to, std::uint32_t tag, double timeout_s,
            const std::shared_ptr<Work>& work);
  void receive(Part to, DType dtype, std::int32_t source, std::uint32_t tag, double timeout_s,
               const std::shared_ptr<Work>& work);
  // Sends and receives are under way.
  bool is_busy();

  void say_goodbye();
  // Waits until all that was said has been heard.
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
  struct Peer {
    MessageRing ring;
    std::uint32_t ring_rkey = 0;
    std::uint32_t bulk_qpn = 0;
    std::unique_ptr<ShmRing> from, to;  // through memory, of neighbours that have bulk data for each other
    bool is_shm_offered = false;
    std::vector<EarlyMessage> early_messages;  // for collectives that have not started here
    bool has_left = false;
    bool is_broken = false;  // its message queue pair is in error
  };
  // A send, until its data is acknowledged.
  struct SendOp {
    std::uint32_t id = 0;
    std::uint32_t peer = 0;
    std::uint32_t tag = 0;
    Part from;
    Time issued_at{};
    Time deadline{};
    double timeout_s = 0;
    std::shared_ptr<Work> work;
    bool is_accepted = false;
    std::uint32_t rkey = 0;    // where it may go, once it is accepted
    std::uint64_t posted = 0;  // of its bytes
    bool is_written() const { return is_accepted && posted == from.bytes; }
  };
  struct RecvOp {
    std::int32_t source = -1;  // -1: anybody, until somebody is found
    std::uint32_t tag = 0;
    Part to;
    DType dtype{};
    std::uint32_t id = 0;    // of the sender's offer
    std::uint32_t rkey = 0;  // 0: not matched yet
    Time issued_at{};
    Time deadline{};
    double timeout_s = 0;
    std::shared_ptr<Work> work;
  };
  struct UnexpectedSend {
    std::uint32_t peer = 0;
    MessageHeader header;
    std::vector<std::uint8_t> payload;
  };
  // A peer whose bulk queue pair broke, or who left another channel than the first: its own words, if they come, say
  // more.
  struct SuspectedPeer {
    std::uint32_t peer = 0;
    Time until = Time::never();
    std::string why;
  };
  using Engine = proto::Endpoint;
  // Ranks that an operation waits for: that have said nothing of it, and that have.
  struct Missing {
    std::string absent, slow;
  };
  using Operations = std::list<std::unique_ptr<Operation>>;

  bool has_failed() const { return !error_.empty(); }
  std::string name_of(std::uint32_t rank) const { return "rank " + std::to_string(rank); }

  // peers.cpp: from the first word to somebody, or from him.
  Peer& open(Engine& engine, std::uint32_t peer, std::uint32_t rkey, const proto::LazyAccept* by);
  void join(Engine& engine, std::uint32_t peer, std::uint32_t message_qpn, std::uint32_t bulk_qpn,
            std::uint32_t remote_rkey);
  Peer& meet(Engine& engine, Time now, std::uint32_t peer);
  void on_first_packet(Engine& engine, Time now, std::uint32_t node, std::uint32_t qpn) override;
  Peer& get_or_connect(Engine& engine, Time now, std::uint32_t peer) {
    return peers_[peer] ? *peers_[peer] : meet(engine, now, peer);
  }
  bool has_left(std::uint32_t peer) const { return peers_[peer] && peers_[peer]->has_left; }

  // channel.cpp: completions, messages, ends.
  void handle(Engine& engine, Time now, const proto::Completion& completion);
  void handle_failure(Engine& engine, Time now, const proto::Completion& completion);
  void handle_message(Engine& engine, Time now, std::uint32_t peer, std::uint32_t length);
  void handle_collective_message(Engine& engine, Time now, std::uint32_t peer, const MessageHeader& header,
                                 std::span<const std::uint8_t> payload);
  void handle_shm_offer(Engine& engine, Time now, std::uint32_t peer, std::span<const std::uint8_t> payload);
  void handle_bye(Engine& engine, Time now, std::uint32_t peer, bool is_well);
  void handle_error(Engine& engine, Time now, const std::string& why);
  void send_message(Engine& engine, Time now, std::uint32_t peer, MessageHeader header,
                    std::span<const std::uint8_t> payload = {}, std::uint64_t wr_id = 0);
  void flush_messages(Engine& engine, Time now);
  void give_credit(Engine& engine, Time now, std::uint32_t peer);
  void send_error(Engine& engine, Time now, std::uint32_t peer);
  void send_bye(Engine& engine, Time now, std::uint32_t peer);
  bool is_told(std::uint32_t peer, const GroupFailure& ending) const;
  void fail(Engine& engine, Time now, const std::string& why, bool is_ours = true);
  void end(Engine& engine, Time now, const GroupFailure& ending);
  void end_operations(Engine& engine);
  void look_at_clock(Engine& engine, Time now);
  void send_inquiries(Engine& engine, Time now);
  void fail_timeout(Engine& engine, Time now, const std::string& what, double timeout_s, const std::string& whom);
  void on_peer_left(Engine& engine, Time now, std::uint32_t peer, const Operation& op);
  void suspect_peer(Time now, std::uint32_t peer, const std::string& why);
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
  bool take_from_shm(Engine& engine, Time now, Inbound& in);
  void offer_shm(Engine& engine, Time now, std::uint32_t peer);
  void handle_sent(std::uint64_t wr_id);
  void send_eager(Engine& engine, Time now, Operation& op, std::uint32_t out);
  void post(Engine& engine, Time now, Operation& op, std::uint32_t out);
  void post_all(Engine& engine, Time now);
  void end_inbound(Engine& engine, Inbound& in);
  void advance(Engine& engine, Time now, Operation& op);
  bool copy_some(Operation& op);
  void settle(Operation& op);
  void sweep(Engine& engine, Time now);
  std::uint32_t new_rkeys(Engine& engine, std::uint32_t count);

  // send_receive.cpp: point to point.
  void handle_offer(Engine& engine, Time now, std::uint32_t peer, const MessageHeader& header,
                    std::span<const std::uint8_t> payload);
  bool match(Engine& engine, Time now, RecvOp& receiving, std::uint32_t peer, const MessageHeader& header,
             std::span<const std::uint8_t> payload);
  void post(Engine& engine, Time now, SendOp& sending);
  void handle_accept(Engine& engine, Time now, std::uint32_t peer, const MessageHeader& header);
  void handle_received(Engine& engine, std::uint32_t peer, std::uint32_t id);
  void handle_sending_done(std::uint32_t id);
  void end_p2p(Engine& engine, const std::string& why);
  void look_at_point_to_point(Engine& engine, Time now);

  bool is_first() const { return number_ == 0; }  // it speaks for all, and watches what has not started

  ChannelOwner& owner_;
  const std::uint32_t number_;
  const ChannelResources home_;
  proto::Driver& driver_;
  proto::QpFactory& qp_factory_;
  Engine* engine_ = nullptr;  // for questions asked while waiting, which has it to itself
  RankInfo place_;
  const GroupDirectory& roll_;
  const std::span<const proto::Domain>
      domains_;  // a peer's own: it writes what was granted to it, and nothing that was to another
  Prng prng_;
  PeerEndpoint end_;                          // what is kept for peers
  bool meets_ = false;                        // there is; else somebody else makes queue pairs
  std::vector<std::unique_ptr<Peer>> peers_;  // null: nothing has been said
  std::unordered_map<std::uint32_t, std::pair<std::uint32_t, bool>>
      owners_;  // queue pair: its peer, and whether it is bulk

  Operations operations_;          // stripes that have begun, in the order of issue, until they have ended
  std::uint32_t next_number_ = 1;  // no stripe to come has a lower one
  bool has_ended_some_ = false;
  bool has_copies_ = false;
  bool has_unposted_ = false;  // a send queue was full
  bool has_unsaid_ = false;    // a message found no room

  std::list<SendOp> send_ops_;
  std::list<RecvOp> recv_ops_;
  std::list<UnexpectedSend> offers_;  // that found no receiver yet, as they came
  std::uint32_t next_offer_ = 1;

  std::vector<SuspectedPeer> suspects_;
  std::string error_;
  Time inquires_at_ = Time::never();
  bool is_leaving_ = false;
  bool is_started_ = false;
  bool has_left_ = false;
  ChannelStats stats_;
};

// What the error messages call an operation.
std::string describe(const CollectiveFingerprint& descriptor);
constexpr const char* closed_message = "the group is closed";
std::string timeout_message(const std::string& what, std::uint32_t rank, double timeout_s, const std::string& whom);
// As a caller says how long it may take.
Time deadline_of(Time now, double timeout_s);

}  // namespace softmrc::collectives
