// A queue pair: the state machine, and the two halves it feeds. Neither half calls the other; what one learns that the
// other needs (which reverse path works) passes through here.
//
//   RESET --init--> INIT --rtr--> RTR --rts--> RTS
//                                  \            /
//                                   +-> ERROR <+
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "proto/config.h"
#include "proto/requester.h"
#include "proto/responder.h"
#include "proto/reverse_paths.h"
#include "proto/time_wait.h"

namespace softmrc::proto {

// spec: qp-states
enum class QpState : std::uint8_t { reset, init, rtr, rts, error };

// A path that wants an EV probe: one of the rotation's, or a port's reverse path.
struct ProbeRequest {
  std::uint16_t ev = no_ev;  // no_ev: the reverse path of `port`
  std::uint8_t port = 0;
  std::uint32_t entropy = 0;
};

class QueuePair {
 public:
  QueuePair(std::uint32_t qpn, EndpointContext& endpoint, std::shared_ptr<const EvProfile> ev_profile,
            std::shared_ptr<const CcProfile> cc_profile, const Memory& memory, CompletionQueue& send_cq,
            CompletionQueue& recv_cq, const InitAttributes& attributes);

  // Whether it may go to RTR with these; `to_rtr` must not be called with what this refuses.
  MaybeError check_rtr(const RtrAttributes& attributes) const;
  void to_rtr(const RtrAttributes& attributes, Time now);
  MaybeError to_rts(const RtsAttributes& attributes, Time now);
  // Both queues are flushed; the first send in line carries `status`.
  void to_error(Time now, CompletionStatus status);

  // What SACKs offer the peer from now on, in units of 128 PSNs.
  // Full packets carry less from here on; before anything was sent, either way.
  MaybeError reduce_mtu(std::uint32_t mtu);
  MaybeError set_receive_window(std::uint32_t mpr_units);

  PostStatus post(Time now, const WorkRequest& request);
  PostStatus post_receive(std::uint64_t wr_id);
  PostStatus post_receives(std::uint64_t wr_id, std::uint32_t count);

  void handle(Time now, const wire::Packet& packet, const Arrival& arrival);
  void end_batch(Time now) {
    if (state_ == QpState::rts) requester_.end_batch(now);
  }
  void handle_timeout(Time now);
  // The next moment after `now` that needs handle_timeout. What is due already waits to be polled.
  Time deadline(Time now) const;

  bool has_reply() const { return responder_.has_reply(); }
  bool poll_reply(Time now, std::uint32_t free_ports, Transmit& out);
  Requester::Poll poll_data(Time now, std::uint32_t free_ports, Transmit& out);
  // `shared`: what all queue pairs to this peer know of the reverse paths; empty where there is no other.
  std::optional<ProbeRequest> next_probe(Time now, std::uint32_t free_ports, std::span<SharedReversePath> shared);
  // A probe is due, but its port had no room when it was last polled.
  bool is_probe_due(Time now) const {
    if (state_ == QpState::rts && requester_.is_probe_due(now)) return true;
    return (state_ == QpState::rts || state_ == QpState::rtr) && reverse_.deadline() <= now;
  }
  void on_probe_answer(Time now, const ProbeRequest& probe, Duration took, std::span<SharedReversePath> shared);
  // The SRv6 path that a probe about to be sent should take.
  const wire::EvBytes* wide_of(const ProbeRequest& probe) const;
  // The SRv6 path of a number, for packets that no queue pair sends; null: none of ours.
  const wire::EvBytes* wide_of(std::uint8_t port, std::uint32_t entropy) const {
    const EvSet& evs = requester_.evs();
    for (std::uint16_t ev = 0; ev < evs.size(); ++ev)
      if (evs[ev].port == port && evs[ev].value == entropy) return evs.wide(ev);
    return nullptr;
  }

  // Ports that are up at both ends, and those at which the peer has shown that it is there: data takes what is both.
  // Answers may go to others, but only back where the question came from.
  void set_ports(Time now, std::uint32_t live, std::uint32_t validated);

  void prefetch_state(bool receives) const {
    if (receives) responder_.prefetch_state();
    else requester_.prefetch_state();
  }

  QpState state() const { return state_; }
  std::uint32_t qpn() const { return context_.qpn; }
  // From RTR on, whatever happens then: who is at the other end, and how to reach it, is known.
  bool has_peer() const { return context_.peer != no_peer; }
  std::uint32_t peer() const { return context_.peer; }
  std::uint32_t dest_qpn() const { return context_.dest_qpn; }
  bool is_working() const { return state_ == QpState::rtr || state_ == QpState::rts; }
  // The key that the peer's port status updates must carry, and that ours do; 0: none.
  std::uint64_t port_key() const { return port_key_; }
  std::uint64_t peer_port_key() const { return peer_port_key_; }
  TimeWaitState time_wait_state() const;
  const QpStats& stats() const { return context_.stats; }
  Requester& requester() { return requester_; }
  const Requester& requester() const { return requester_; }
  Responder& responder() { return responder_; }
  const Responder& responder() const { return responder_; }
  // The port for an answer to what came in on `arrival_port`.
  std::uint8_t reply_port(std::uint8_t arrival_port, std::uint32_t ports) {
    return reverse_.is_built() ? reverse_.choose(arrival_port, ports).value_or(arrival_port) : arrival_port;
  }
  void note_arrival(std::uint8_t port, std::uint32_t entropy) { reverse_.on_arrival(port, entropy); }
  // Ports on which something may leave that is not data.
  std::uint32_t open_ports() const { return reverse_.open_ports(); }
  // By the reverse path of this port, or for once by another path of it.
  void address_reply(std::uint8_t port, bool by_another, Transmit& out) {
    out.port = port;
    if (!reverse_.is_built()) return;
    const auto choice = by_another ? reverse_.another(port)
                                   : ReversePaths::Choice{reverse_.ev(port), reverse_.entropy(port)};
    out.entropy = choice.value;
    out.wide = choice.ev == no_ev ? nullptr : requester_.evs().wide(choice.ev);
  }
  // There is evidence that the peer does not receive what we send.
  bool seems_unreachable(Time now) const {
    return is_working() && (reverse_.is_suspect(now) || (state_ == QpState::rts && requester_.is_probing()));
  }

  // The set of EVs is made when it is first needed: most queue pairs of a simulated fabric only receive.
  void build_evs() { requester_.build_evs(); }
  // The controller's commands; an index that the set has.
  void deny_ev(Time now, std::uint16_t ev);
  void allow_ev(Time now, std::uint16_t ev);
  MaybeError replace_ev(Time now, std::uint16_t ev, const EvValue& value);
  const EvProfile& ev_profile() const { return *ev_profile_; }
  bool uses(const CompletionQueue& cq) const { return requester_.uses(cq) || responder_.uses(cq); }

  // The endpoint's bookkeeping: which of its lists this queue pair stands on, and when its timer is set for.
  bool in_reply_list = false;
  bool in_data_list = false;
  bool in_batch_list = false;
  Time armed_at = Time::never();

 private:
  void enter(QpState state, Time now, CompletionStatus cause);
  void refuse(Time now, RefusedPacket why, const wire::Packet& packet, const Arrival& arrival);
  void note_reverse(Time now, const wire::Sack& sack);
  std::uint32_t reply_ports(Time now);

  QpContext context_;
  const EndpointConfig& config_;
  const std::shared_ptr<const EvProfile> ev_profile_;
  const std::shared_ptr<const CcProfile> cc_profile_;
  QpState state_ = QpState::init;
  std::uint32_t live_ports_ = ~0u;
  std::uint32_t validated_ports_ = ~0u;
  std::uint64_t port_key_ = 0;
  std::uint64_t peer_port_key_ = 0;
  Requester requester_;
  Responder responder_;
  ReversePaths reverse_;
};

}  // namespace softmrc::proto
