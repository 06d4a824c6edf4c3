// A rank's part in a group: one channel or several, each over its own endpoint, and what they have in common,
// which is the order of operations, who waits for whose memory, and how it all ends. While data moves they share
// nothing.
//
// The mutex orders all of it. Channels take it with their engine to themselves; no thread that holds it asks for an
// engine, and none that has an engine for another. So work for a channel is queued, and its driver woken.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "collectives/channel.h"
#include "collectives/plan.h"

namespace softmrc::collectives {

#define SOFTMRC_COLLECTIVE_COUNTERS(X) \
  X(operations)                        \
  X(operations_small)                  \
  X(operations_striped)                \
  SOFTMRC_CHANNEL_COUNTERS(X)

struct GroupStats {
#define X(name) std::uint64_t name = 0;
  SOFTMRC_COLLECTIVE_COUNTERS(X)
#undef X
};

constexpr std::size_t max_channels = 64;

class Group final : private ChannelOwner {
 public:
  // `domains` are by rank: what the queue pairs to it are in, on every channel.
  Group(const std::vector<ChannelResources>& resources, RankInfo place, std::vector<proto::Domain> domains,
        std::uint64_t seed, std::shared_ptr<CompletionNotifier> notifier);
  ~Group() override;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Either peers are connected when they are first needed: each rank reserves numbers, and knows the others' before it
  // starts.
  std::vector<PeerEndpoint> reserve();
  // Another rank has fewer channels: the rest is given back, before it starts.
  void narrow(std::uint32_t channels) { channels_.resize(channels); }
  proto::MaybeError set_peer(std::uint32_t peer, PeerInfo member);
  void set_params(const GroupParams& params) { directory_.params = params; }
  // Now, and not with the first message.
  bool meet(std::uint32_t channel, std::uint32_t peer, Duration patience) {
    return channels_[channel]->connect_now(peer, patience);
  }
  // Or the caller makes all queue pairs.
  std::uint32_t ring_rkey(std::uint32_t channel, std::uint32_t peer) { return channels_[channel]->ring_rkey(peer); }
  proto::Domain domain(std::uint32_t peer) const { return domains_[peer]; }
  void connect(std::uint32_t channel, std::uint32_t peer, std::uint32_t message_qpn, std::uint32_t bulk_qpn,
               std::uint32_t remote_rkey);
  // From here on the peers' messages are taken. `unit` is what all ranks cut bulk data by.
  void start(std::uint32_t unit, std::uint32_t side_by_side = 1);
  // As before start: what is known of the others was wrong, and is set again. False when one of them has been
  // connected.
  bool stop();

  std::shared_ptr<Work> issue(const CollectiveCall& call, double timeout_s);
  std::shared_ptr<Work> send(Part from, DType dtype, std::uint32_t to, std::uint32_t tag, double timeout_s);
  std::shared_ptr<Work> receive(Part to, DType dtype, std::int32_t source, std::uint32_t tag, double timeout_s);
  // Drives the first channel while it waits. False when the time is up.
  bool wait(const Work& work, Duration timeout);

  void abort(const std::string& why);
  // Ends what is under way, tells the peers and waits until that is acknowledged.
  void close(Duration linger);
  // One of the drivers is, and nothing can end well any longer.
  bool is_device_closed() const;
  std::string error();
  GroupStats stats();
  RankInfo place() const { return place_; }
  // For tests and benches: this algorithm wherever it is possible. All ranks must say the same, between operations.
  void force(std::optional<Algorithm> algorithm) { place_.forced = algorithm; }
  // Queue pairs for messages and bulk data, on the channels that have any to this peer.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> pairs(std::uint32_t peer);
  std::uint32_t channels() const { return static_cast<std::uint32_t>(channels_.size()); }

 private:
  using ChannelMask = std::uint64_t;  // one bit each
  // What is queued for a channel.
  struct alignas(64) WorkQueue {
    std::atomic<bool> is_full{false};
    QueuedWork work;  // under the mutex
  };
  using Queue = std::list<std::shared_ptr<InflightOp>>;

  bool has_work(std::uint32_t channel) const override {
    return work_queues_[channel].is_full.load(std::memory_order_acquire);
  }
  QueuedWork pop_all(std::uint32_t channel) override;
  void on_ended(std::uint32_t channel, Operation& stripe, bool is_well) override;
  GroupFailure on_failure(std::uint32_t channel, const std::string& why, bool is_ours) override;
  Time waits_until() const override { return Time{waits_until_ps_.load(std::memory_order_relaxed)}; }
  std::string overdue(Time now) override;

  std::shared_ptr<InflightOp> prepare(const CollectiveCall& call, double timeout_s);
  bool is_refused(Work& work);
  ChannelMask start_ready();
  bool may_start(Queue::const_iterator at) const;
  void watch_waiting();
  GroupFailure end_all(const std::string& why, bool is_ours, ChannelMask but);
  void request_progress(ChannelMask channels);

  RankInfo place_;
  const std::vector<proto::Domain> domains_;
  GroupDirectory directory_;  // complete before it starts
  const std::shared_ptr<CompletionNotifier> notifier_;
  std::vector<std::unique_ptr<Channel>> channels_;  // as many as there are from start to close
  std::vector<WorkQueue> work_queues_;
  std::atomic<std::uint32_t> waiting_threads_{0};
  std::atomic<std::int64_t> waits_until_ps_{Time::never().ps};  // the first deadline of what has not started

  std::mutex mutex_;  // for what follows
  Queue issued_;      // in order, until it has ended
  std::uint32_t next_number_ = 1;
  std::string error_;
  bool has_ended_ = false;  // `ending_` is queued for the channels
  GroupFailure ending_;
  bool is_closed_ = false;
  std::uint64_t operations_ = 0;
  std::uint64_t operations_small_ = 0;
  std::uint64_t operations_striped_ = 0;
};

}  // namespace softmrc::collectives
