// What nodes say to each other on queue pair 2, whatever queue pairs they have: EV probes and port status updates,
// asked and answered; whether a peer is at the addresses it gives (path validation), and whether it is still there.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/ring.h"
#include "proto/context.h"
#include "proto/path_validation.h"
#include "proto/peers.h"
#include "proto/pending_probes.h"
#include "proto/qp_scheduler.h"
#include "proto/qp_table.h"
#include "proto/unreachable_probes.h"

namespace softmrc::proto {

class NodeOps {
 public:
  // All three outlive it. It reads the queue pairs, and schedules those that a change of ports or paths concerns.
  NodeOps(EndpointContext& context, const QpTable& qps, QpScheduler& scheduler);

  // Peers.
  std::uint32_t add_peer() { return peers_.add(); }
  void claim_peer(std::uint32_t peer) { peers_.claim(peer); }
  bool remove_peer(std::uint32_t peer);
  // A queue pair's, or that of its TIME-WAIT state.
  void release_peer(std::uint32_t peer);
  void reset_peer(Time now, std::uint32_t peer);
  bool has_peer(std::uint32_t peer) const { return peers_.contains(peer); }
  std::uint32_t peers() const { return peers_.known(); }
  bool has_qp_to(std::uint32_t peer) const { return peers_[peer].has_qp; }
  bool has_working_qp(std::uint32_t peer) const;
  // A queue pair to this peer is about to go to RTR; has gone; is about to be destroyed, and leaves its hold on the
  // peer to its TIME-WAIT state.
  void before_rtr(Time now, std::uint32_t peer);
  void on_rtr(Time now, std::uint32_t slot);
  void on_destroy(std::uint32_t slot);

  // Ports.
  void set_port(Time now, std::uint32_t port, bool is_up);
  std::uint32_t up_ports() const { return up_ports_; }
  // That are up at both ends, and where the peer has shown that it is there.
  std::uint32_t usable_ports(std::uint32_t peer) const { return live_ports(peer) & peers_[peer].validated_ports; }

  // In. Something came from a peer's address, whatever it was; and something that is a packet.
  void on_arrival(std::uint32_t peer) {
    if (!unreachable_probes_.empty()) [[unlikely]]
      unreachable_probes_.on_received(peer);
  }
  void on_packet(Time now, const Arrival& arrival) {
    const bool may_be_new = !path_validation_.empty() && peers_.contains(arrival.peer);
    if (may_be_new && !(peers_[arrival.peer].validated_ports >> arrival.port & 1)) [[unlikely]]
      path_validation_.on_received(now, arrival.peer);
  }
  // There is work for this peer.
  void on_post(Time now, std::uint32_t peer) {
    if (context_.config.proves_addresses && peers_[peer].validated_ports == 0) path_validation_.resume(now, peer);
  }
  // From peers that are known.
  void handle_request(Time now, const wire::Packet& packet, const Arrival& arrival);
  void handle_response(Time now, const wire::Packet& packet, const Arrival& arrival);
  void handle_timeout(Time now);
  void on_unreachable(Time now, std::uint32_t peer);
  bool may_answer_at_length(Time now, std::uint32_t peer, std::uint32_t bytes);
  bool probe(std::uint32_t peer, std::uint8_t port, std::uint32_t entropy, std::uint32_t token,
             TrafficClass traffic_class);
  void ping(std::uint32_t qpn);
  Time pong_at(std::uint32_t qpn) const;

  // Out.
  bool poll_answer(Time now, std::uint32_t free_ports, Transmit& out) {
    return !answers_.empty() && send_any_answer(now, free_ports, out);
  }
  bool poll_request(Time now, std::uint32_t free_ports, Transmit& out) {
    if (peers_.deadline() <= now && poll_port_updates(now, free_ports, out)) return true;
    if (path_validation_.deadline() <= now && poll_challenge(now, free_ports, out)) return true;
    if (!unreachable_probes_.empty() && poll_unreachable_probe(now, free_ports, out)) return true;
    return !caller_probes_.empty() && poll_caller_probe(now, free_ports, out);
  }
  // The EV probe that this queue pair wants.
  bool poll_ev_probe(Time now, std::uint32_t slot, QueuePair& pair, std::uint32_t free_ports, Transmit& out);
  // What was due when timeouts were last handled waits for a port, not for the clock.
  Time deadline(Time handled_at) const;

 private:
  struct Answer {
    std::uint32_t peer = 0;
    std::uint32_t qpn = no_qpn;  // whose keys the request had
    std::uint16_t id = 0;
    std::uint8_t port = 0;
    wire::EndpointOp op{};
    wire::Timestamp timestamp;
    std::uint64_t key = 0;
    Time asked_at{};
    // A copy takes another path of the plane that the question came from, or another plane than the answer, which was
    // `port`; or even a plane that is not validated.
    enum class Copy : std::uint8_t { none, other_path, other_plane, any_plane } copy = Copy::none;
  };

  void handle_probe_answer(Time now, const wire::Packet& packet, const Arrival& arrival);
  void handle_update_answer(Time now, const wire::Packet& packet, const Arrival& arrival);
  void refuse_answer(Time now, const wire::Packet& packet, const Arrival& arrival);
  void record_probe_answer(Time now, const PendingProbe& probe, const Arrival& arrival, std::uint32_t service_ns);
  bool send_any_answer(Time now, std::uint32_t free_ports, Transmit& out);
  bool send_answer(Time now, const Answer& answer, std::uint32_t free_ports, Transmit& out);
  std::uint8_t port_of(const Answer& answer, QueuePair* pair, std::uint32_t free_ports) const;
  bool may_answer(Time now, TokenBucket& own, TokenBucket& shared, std::uint32_t count = 1);

  bool poll_port_updates(Time now, std::uint32_t free_ports, Transmit& out);
  bool poll_challenge(Time now, std::uint32_t free_ports, Transmit& out);
  bool poll_unreachable_probe(Time now, std::uint32_t free_ports, Transmit& out);
  bool poll_caller_probe(Time now, std::uint32_t free_ports, Transmit& out);
  void fill_request(Time now, wire::EndpointOp op, std::uint16_t id, std::uint32_t peer, std::uint8_t port,
                    std::uint32_t entropy, Transmit& out) const;

  QueuePair* first_qp_to(std::uint32_t peer) const {
    return peers_[peer].has_qp ? qps_.at(peers_[peer].first_qp) : nullptr;
  }
  QueuePair* any_qp_to(std::uint32_t peer) const;
  const QueuePair* qp_with_key(std::uint32_t peer, std::uint64_t key) const;
  const QueuePair* first_qp_with_key(std::uint32_t peer, std::uint64_t key) const;
  std::uint64_t key_for(std::uint32_t peer) const;
  bool echoes_nonces(std::uint32_t peer) const;
  bool has_work_for(std::uint32_t peer) const;
  std::span<SharedReversePath> shared_paths_from(std::uint32_t peer);

  std::uint32_t all_ports() const { return (1u << context_.config.ports) - 1; }
  std::uint32_t live_ports(std::uint32_t peer) const { return up_ports_ & peers_[peer].usable_ports; }
  void refresh_ports(Time now, std::uint32_t peer);
  void announce_to(Time now, Peer& peer) { peers_.announce_to(peer, now, next_update_id_++, up_ports_); }
  void confirm_path(Time now, std::uint32_t peer, std::uint8_t port);
  void give_up(Time now, std::uint32_t peer);

  EndpointContext& context_;
  const QpTable& qps_;
  QpScheduler& scheduler_;
  Peers peers_;
  std::uint32_t up_ports_ = 0;
  std::uint16_t next_update_id_ = 0;
  Ring<Answer> answers_;
  TokenBucket allowance_;
  TokenBucket long_allowance_;
  CallerProbes caller_probes_;
  PendingProbes pending_probes_;
  UnreachableProbes unreachable_probes_;
  PathValidation path_validation_;
};

}  // namespace softmrc::proto
