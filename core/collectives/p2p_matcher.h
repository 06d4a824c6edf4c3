// Point-to-point: sends and receives of this rank, on the first channel. The sender offers, with the data if it is
// small; the receiver accepts, and then the data is written. It decides which offer a receive takes, when data goes
// with the offer, and when either has ended or is late. What is written between two acknowledgements, and how messages
// travel, is left to the engine and to MessageRouter.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collectives/message_router.h"
#include "collectives/plan.h"
#include "collectives/work.h"

namespace softmrc::collectives {

class P2pMatcher {
 public:
  P2pMatcher(ChannelIdentity self, PeerConnections& connections, MessageRouter& router, FailureMonitor& failures)
      : self_(self), connections_(connections), router_(router), failures_(failures) {}

  void send(proto::Endpoint& engine, Time now, Part from, DType dtype, std::uint32_t to, std::uint32_t tag,
            double timeout_s, const std::shared_ptr<Work>& work);
  void receive(proto::Endpoint& engine, Time now, Part to, DType dtype, std::int32_t source, std::uint32_t tag,
               double timeout_s, const std::shared_ptr<Work>& work);

  void on_offer(proto::Endpoint& engine, Time now, std::uint32_t peer, const MessageHeader& header,
                std::span<const std::uint8_t> payload);
  void on_accept(proto::Endpoint& engine, Time now, std::uint32_t peer, const MessageHeader& header);
  // The last data of a peer's send is here.
  void on_received(proto::Endpoint& engine, std::uint32_t peer, std::uint32_t id);
  // The last data of an own send was acknowledged.
  void on_sent(std::uint32_t id);
  // The peer has left, and has received all that was written to it.
  void on_bye(proto::Endpoint& engine, Time now, std::uint32_t peer);
  // Fails all that is under way.
  void end(proto::Endpoint& engine, const std::string& why);

  bool has_unposted() const { return has_unposted_; }
  void post_all(proto::Endpoint& engine, Time now);
  bool is_busy() const { return !sends_.empty() || !receives_.empty(); }
  Time deadline() const;
  void check_deadlines(proto::Endpoint& engine, Time now);
  // Sends a message to all peers that are waited for, except those that have one already.
  void inquire(proto::Endpoint& engine, Time now, std::vector<bool>& is_asked);
  const ChannelStats& stats() const { return stats_; }

 private:
  // A send, until its data is acknowledged.
  struct SendOp {
    std::uint32_t id = 0;
    std::uint32_t peer = 0;
    std::uint32_t tag = 0;
    Part from;
    Time deadline{};
    double timeout_s = 0;
    std::shared_ptr<Work> work;
    bool is_accepted = false;
    std::uint32_t rkey = 0;    // where it may go, once it is accepted
    std::uint64_t posted = 0;  // of its bytes
    bool is_written() const { return is_accepted && posted == from.bytes; }
  };
  struct RecvOp {
    std::int32_t source = -1;  // -1: any, until it is matched
    std::uint32_t tag = 0;
    Part to;
    DType dtype{};
    std::uint32_t id = 0;    // of the sender's offer
    std::uint32_t rkey = 0;  // 0: not matched yet
    Time deadline{};
    double timeout_s = 0;
    std::shared_ptr<Work> work;
  };
  struct UnexpectedSend {
    std::uint32_t peer = 0;
    MessageHeader header;
    std::vector<std::uint8_t> payload;
  };

  bool match(proto::Endpoint& engine, Time now, RecvOp& receive, std::uint32_t peer, const MessageHeader& header,
             std::span<const std::uint8_t> payload);
  void post(proto::Endpoint& engine, Time now, SendOp& send);

  const ChannelIdentity self_;
  PeerConnections& connections_;
  MessageRouter& router_;
  FailureMonitor& failures_;
  std::list<SendOp> sends_;
  std::list<RecvOp> receives_;
  std::list<UnexpectedSend> unexpected_;  // offers that matched no receive yet, as they came
  std::uint32_t next_offer_ = 1;
  bool has_unposted_ = false;  // a send queue was full
  ChannelStats stats_;
};

}  // namespace softmrc::collectives
