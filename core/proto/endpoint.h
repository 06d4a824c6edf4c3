// The engine's interface: one node, its ports, its queue pairs. It has no clock, socket, thread or randomness.
//
//   in   handle_datagram, handle_packet, handle_timeout, post_write, post_receive, set_port
//   out  poll_transmit, poll_completions, poll_event, poll_timeout
//
// After any input, drain the outputs. `now` never goes backwards.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/handles.h"
#include "base/prefetch.h"
#include "proto/completion.h"
#include "proto/config.h"
#include "proto/context.h"
#include "proto/memory.h"
#include "proto/node_ops.h"
#include "proto/qp_scheduler.h"
#include "proto/qp_table.h"
#include "proto/qpn_reservations.h"
#include "proto/queue_pair.h"
#include "proto/time_wait.h"
#include "proto/transmit.h"

namespace softmrc::proto {

// Sending what was polled takes some hundred microseconds at most; if it took longer, the driver was held up.
constexpr Duration stall_threshold = microseconds(600);
// A driver takes packets in turns, and a batch lasts while some plane has more; where that never ends, so many turns.
constexpr std::uint32_t max_turns_in_batch = 8;

class Endpoint {
 public:
  // The configuration must have passed validate().
  explicit Endpoint(const EndpointConfig& config) : context_(config) {}
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // Set-up. Profiles are shared, so that a hundred thousand endpoints can hold the same one.
  MaybeError add_ev_profile(std::shared_ptr<const EvProfile> profile, std::uint32_t& id);
  MaybeError add_cc_profile(std::shared_ptr<const CcProfile> profile, std::uint32_t& id);
  // A queue pair keeps the profiles that it was given; others can then have the number.
  bool remove_ev_profile(std::uint32_t id) { return ev_profiles_.remove(id); }
  bool remove_cc_profile(std::uint32_t id) { return cc_profiles_.remove(id); }
  std::uint32_t create_cq();
  MaybeError destroy_cq(std::uint32_t cq);
  bool is_cq_in_use(std::uint32_t cq) const;
  // A domain that no other queue pair and no other memory is in.
  Domain create_domain() { return ++last_domain_; }
  // Where the driver numbers them.
  void allow_domains(Domain last) { last_domain_ = last; }
  std::uint32_t add_peer() { return node_ops_.add_peer(); }
  // One that is known already, once more.
  void claim_peer(std::uint32_t peer) { node_ops_.claim_peer(peer); }
  // For each time that it was added. It stays for as long as queue pairs, or their TIME-WAIT states, have it for a
  // peer.
  bool remove_peer(std::uint32_t peer) { return node_ops_.remove_peer(peer); }
  bool has_peer(std::uint32_t peer) const { return node_ops_.has_peer(peer); }
  bool has_working_qp(std::uint32_t peer) const { return node_ops_.has_working_qp(peer); }
  std::uint32_t peers() const { return node_ops_.peers(); }
  // Another process may be at this peer's addresses now: what either side told the other before is void.
  void reset_peer(Time now, std::uint32_t peer) { node_ops_.reset_peer(now, peer); }
  // Keeps numbers for queue pairs and regions that are made later, and only by that owner. False where some are
  // taken.
  bool reserve(const QpnReservation& reserve, LazyAccept& owner);
  void release(const LazyAccept& owner) { reservations_.remove(owner); }
  // `by` is for who has numbers kept.
  bool add_region(const MemoryRegion& region, const LazyAccept* by = nullptr) {
    return region.domain <= last_domain_ && reservations_.owner_of_rkey(region.rkey) == by && memory_.add(region);
  }
  bool remove_region(std::uint32_t rkey) { return memory_.remove(rkey); }
  std::size_t regions() const { return memory_.size(); }
  std::uint64_t region_number(std::uint32_t rkey) const { return memory_.number_of(rkey); }
  bool is_rkey_free(std::uint32_t rkey) const { return !memory_.contains(rkey) && !reservations_.owner_of_rkey(rkey); }
  // Whether some queue pair still sends from this memory.
  bool reads_from(const std::uint8_t* begin, const std::uint8_t* end) const {
    return qps_.find_if([&](const QueuePair& pair) { return pair.requester().reads_from(begin, end); });
  }
  MaybeError create_qp(std::uint32_t qpn, const LazyAccept* by = nullptr);
  MaybeError modify_init(std::uint32_t qpn, const InitAttributes& attributes);
  MaybeError modify_rtr(Time now, std::uint32_t qpn, const RtrAttributes& attributes);
  MaybeError modify_rts(Time now, std::uint32_t qpn, const RtsAttributes& attributes);
  MaybeError modify_error(Time now, std::uint32_t qpn);
  // The owner may take its memory back. The peer still learns what had arrived, and that no more will be taken.
  bool destroy_qp(Time now, std::uint32_t qpn);
  // All queue pairs are destroyed and all memory is let go; from here on the node only answers.
  void enter_time_wait(Time now);
  bool in_time_wait() const { return time_wait_ && !time_wait_->empty(); }
  // For a driver that is about to close: a peer may be unable to ask until it is closed.
  void resend_final_acks(std::uint32_t turn) {
    if (time_wait_) time_wait_->repeat(turn);
  }
  // nullptr for a number that does not exist or is still in RESET.
  QueuePair* qp(std::uint32_t qpn) { return qps_.qp(qpn); }
  const QueuePair* qp(std::uint32_t qpn) const { return qps_.qp(qpn); }
  std::optional<QpState> qp_state(std::uint32_t qpn) const;
  std::size_t queue_pairs() const { return qps_.size(); }
  // Those who keep numbers, and will want more.
  std::size_t reserves() const { return reservations_.size(); }
  // Calls back with the number of each.
  template <typename F>
  void for_each_qpn(F f) const {
    qps_.for_each_qpn(f);
  }

  // In.
  void handle_datagram(Time now, wire::Bytes bytes, const Arrival& arrival, const wire::ParseOptions& options = {});
  void handle_packet(Time now, const wire::Packet& packet, const Arrival& arrival);
  // Between these two, packets are handed in that had been waiting side by side.
  void begin_batch() { scheduler_.begin_batch(); }
  void end_batch(Time now) { scheduler_.end_batch(now); }
  // The driver was held up between taking packets and sending them: no verdict may rest on when they were taken.
  void handle_stall(Time now);
  void handle_timeout(Time now);
  PostStatus post_write(Time now, std::uint32_t qpn, const WorkRequest& request);
  PostStatus post_receive(std::uint32_t qpn, std::uint64_t wr_id);
  // So many that are alike; all or none.
  PostStatus post_receives(std::uint32_t qpn, std::uint64_t wr_id, std::uint32_t count);
  void set_port(Time now, std::uint32_t port, bool is_up) { node_ops_.set_port(now, port, is_up); }
  // The network reports the peer unreachable. That can be forged: the peer is probed, and given up sooner if it is
  // silent.
  void on_unreachable(Time now, std::uint32_t peer) { node_ops_.on_unreachable(now, peer); }
  // Whether the driver may answer one of its requests with so many bytes. It counts as several answers, but takes
  // nothing from those that are short.
  bool may_answer_at_length(Time now, std::uint32_t peer, std::uint32_t bytes) {
    return node_ops_.may_answer_at_length(now, peer, bytes);
  }
  // Asks the peer's node for a sign of life over one path; the answer is a probe_answer event that carries `token`.
  // False when there will be none: the port is down, or too many wait for it already.
  bool probe(Time, std::uint32_t peer, std::uint8_t port, std::uint32_t entropy, std::uint32_t token,
             TrafficClass traffic_class = TrafficClass::data_no_trim) {
    return node_ops_.probe(peer, port, entropy, token, traffic_class);
  }
  // Ask the peer of this queue pair for a sign of life, under its keys where it has some, on every port that may be
  // used.
  void ping(std::uint32_t qpn) { node_ops_.ping(qpn); }
  // When its peer last answered a ping of some queue pair; long ago: never.
  Time pong_at(std::uint32_t qpn) const { return node_ops_.pong_at(qpn); }
  // The controller's commands for one EV of a queue pair, by its index; each is taken at once, before the connection is
  // set up and after.
  MaybeError deny_ev(Time now, std::uint32_t qpn, std::uint32_t ev);
  MaybeError allow_ev(Time now, std::uint32_t qpn, std::uint32_t ev);
  MaybeError replace_ev(Time now, std::uint32_t qpn, std::uint32_t ev, const EvValue& value);
  // Something outside the packet flow changed this queue pair (an EV allowed, a window widened): look at it again.
  void wake(Time now, std::uint32_t qpn);

  // Out.
  bool poll_transmit(Time now, std::uint32_t free_ports, Transmit& out);
  std::size_t poll_completions(std::uint32_t cq, std::span<Completion> out);
  bool poll_event(Event& out);
  Time poll_timeout();
  std::size_t events_waiting() const { return context_.event_log.queue().size(); }

  // Asks for the memory that the next input will touch, one step behind this object itself: for simulators that hold
  // more endpoints than caches do.
  void prefetch_state() const {
    qps_.prefetch_state();
    scheduler_.prefetch_state();
    if (cqs_.contains(0)) prefetch(cqs_[0].get());
  }

  void set_trace(TraceSink* sink, std::uint32_t wanted = all_events) { context_.event_log.set_sink(sink, wanted); }
  const EndpointStats& stats() const { return context_.event_log.stats; }
  const EndpointConfig& config() const { return context_.config; }
  std::uint32_t up_ports() const { return node_ops_.up_ports(); }
  bool has_cq(std::uint32_t cq) const { return cqs_.contains(cq); }
  std::size_t completion_queues() const { return cqs_.size(); }
  std::size_t completions_waiting(std::uint32_t cq) const { return cqs_.contains(cq) ? cqs_[cq]->size() : 0; }

 private:
  std::optional<std::uint32_t> on_first_packet(Time now, const wire::Packet& packet, const Arrival& arrival);
  void refuse_damaged(Time now, const Arrival& arrival);
  MaybeError find_ev(std::uint32_t qpn, std::uint32_t ev, QueuePair*& pair);
  void drop_expired(Time now);

  EndpointContext context_;
  Handles<std::shared_ptr<const EvProfile>> ev_profiles_;
  Handles<std::shared_ptr<const CcProfile>> cc_profiles_;
  Handles<std::unique_ptr<CompletionQueue>> cqs_;
  Memory memory_;
  QpnReservations reservations_;
  Domain last_domain_ = 0;
  QpTable qps_;
  QpScheduler scheduler_{context_, qps_};
  NodeOps node_ops_{context_, qps_, scheduler_};
  std::unique_ptr<TimeWait> time_wait_;  // null until a queue pair is
  Time handled_at_ = Time::long_ago();   // what was due by then waits for a port, not for the clock
};

}  // namespace softmrc::proto
