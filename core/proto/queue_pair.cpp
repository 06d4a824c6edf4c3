#include "proto/queue_pair.h"

#include <algorithm>

namespace softmrc::proto {
namespace {

MaybeError wrong_state(QpState state, const char* expected) {
  constexpr const char* names[] = {"RESET", "INIT", "RTR", "RTS", "ERROR"};
  return Error{Error::Kind::usage, "state", names[static_cast<std::size_t>(state)], expected};
}

// Acknowledgements of packets and questions name both queue pairs, of which a forger who only guesses knows neither.
// spec: pdcids
bool is_between(const wire::Packet& packet, std::uint32_t from, std::uint32_t to) {
  const auto names = [=](const auto& body) {
    return body.spdcid == static_cast<std::uint16_t>(from) && body.dpdcid == static_cast<std::uint16_t>(to);
  };
  if (const auto* sack = std::get_if<wire::Sack>(&packet.body)) return names(*sack);
  if (const auto* nack = std::get_if<wire::Nack>(&packet.body)) return names(*nack);
  if (const auto* probe = std::get_if<wire::Probe>(&packet.body)) return names(*probe);
  return true;
}

}  // namespace

QueuePair::QueuePair(std::uint32_t qpn, EndpointContext& endpoint, std::shared_ptr<const EvProfile> ev_profile,
                     std::shared_ptr<const CcProfile> cc_profile, const Memory& memory, CompletionQueue& send_cq,
                     CompletionQueue& recv_cq, const InitAttributes& attributes)
    : config_(endpoint.config),
      ev_profile_(std::move(ev_profile)),
      cc_profile_(std::move(cc_profile)),
      requester_(context_, config_, *ev_profile_, *cc_profile_, send_cq),
      responder_(context_, config_, memory, recv_cq) {
  context_.qpn = qpn;
  context_.endpoint = &endpoint;
  context_.sharers = attributes.sharers();
  context_.domain = attributes.domain;
}

MaybeError QueuePair::check_rtr(const RtrAttributes& attributes) const {
  if (state_ != QpState::init) return wrong_state(state_, "INIT, to go to RTR");
  return validate(attributes);
}

void QueuePair::to_rtr(const RtrAttributes& attributes, Time now) {
  context_.peer = attributes.peer;
  context_.dest_qpn = attributes.dest_qpn;
  context_.mtu = attributes.mtu;
  context_.dynamic_mpr = attributes.dynamic_mpr;
  port_key_ = attributes.port_key;
  peer_port_key_ = attributes.peer_port_key;
  responder_.start(attributes);
  if (ev_profile_->is_wide()) build_evs();  // its values have to be somewhere
  const Prng stream(config_.seed, "reverse", context_.qpn);
  reverse_.build(*ev_profile_, requester_.evs(), requester_.ev_stream(), config_.ports, stream);
  enter(QpState::rtr, now, CompletionStatus::success);
}

MaybeError QueuePair::to_rts(const RtsAttributes& attributes, Time now) {
  if (state_ != QpState::rtr) return wrong_state(state_, "RTR, to go to RTS");
  if (auto v = validate(attributes)) return v;
  requester_.start(attributes);
  enter(QpState::rts, now, CompletionStatus::success);
  return std::nullopt;
}

MaybeError QueuePair::reduce_mtu(std::uint32_t mtu) {
  RtrAttributes wanted;
  wanted.dest_qpn = context_.dest_qpn;
  wanted.mtu = mtu;
  if (state_ != QpState::rtr && state_ != QpState::rts) return wrong_state(state_, "RTR or RTS, for smaller packets");
  if (auto v = validate(wanted)) return v;
  if (context_.stats.messages_posted)
    return Error{Error::Kind::usage, "mtu", std::to_string(mtu), "a size that is chosen before anything is sent"};
  context_.mtu = mtu;
  if (state_ == QpState::rts) requester_.start_windows();
  return std::nullopt;
}

MaybeError QueuePair::set_receive_window(std::uint32_t mpr_units) {
  RtrAttributes wanted;
  wanted.dest_qpn = context_.dest_qpn;
  wanted.mpr_dest = mpr_units;
  if (state_ != QpState::rtr && state_ != QpState::rts)
    return wrong_state(state_, "RTR or RTS, to offer another window");
  if (auto v = validate(wanted)) return v;
  if (!context_.dynamic_mpr)
    return Error{Error::Kind::usage, "dynamic_mpr", "false", "true at RTR, at both ends, for a window that changes"};
  responder_.set_window(mpr_units);
  return std::nullopt;
}

void QueuePair::to_error(Time now, CompletionStatus status) {
  if (state_ == QpState::error) return;
  requester_.fail(status);
  responder_.fail();
  enter(QpState::error, now, status);
}

void QueuePair::enter(QpState state, Time now, CompletionStatus cause) {
  state_ = state;
  Event e = context_.event(EventType::qp_state, now);
  e.code = static_cast<std::uint32_t>(state);
  e.value = static_cast<std::uint64_t>(cause);
  context_.event_log().record(e);
}

PostStatus QueuePair::post(Time now, const WorkRequest& request) {
  if (state_ != QpState::rts) return PostStatus::wrong_state;
  return requester_.post(now, request);
}

PostStatus QueuePair::post_receive(std::uint64_t wr_id) {
  if (state_ == QpState::error || state_ == QpState::reset) return PostStatus::wrong_state;
  if (responder_.receives_posted() >= Responder::max_receives) return PostStatus::queue_full;
  responder_.post_receive(wr_id);
  return PostStatus::ok;
}

PostStatus QueuePair::post_receives(std::uint64_t wr_id, std::uint32_t count) {
  if (state_ == QpState::error || state_ == QpState::reset) return PostStatus::wrong_state;
  if (responder_.receives_posted() + count > Responder::max_receives) return PostStatus::queue_full;
  responder_.post_receives(wr_id, count);
  return PostStatus::ok;
}

void QueuePair::refuse(Time now, RefusedPacket why, const wire::Packet& packet, const Arrival& arrival) {
  context_.refused(now, why, packet.bth.psn, arrival.entropy, arrival.port);
}

void QueuePair::handle(Time now, const wire::Packet& packet, const Arrival& arrival) {
  if (!has_peer()) {
    ++context_.event_log().stats.refused_wrong_state;
    refuse(now, RefusedPacket::wrong_state, packet, arrival);
    return;
  }
  if (arrival.peer != context_.peer) {
    ++context_.event_log().stats.refused_wrong_peer;
    refuse(now, RefusedPacket::wrong_peer, packet, arrival);
    return;
  }
  const bool is_write = wire::is_write(packet.bth.opcode);
  if (!is_write && !is_between(packet, context_.dest_qpn, context_.qpn)) {
    ++context_.event_log().stats.refused_wrong_pair;
    refuse(now, RefusedPacket::wrong_pair, packet, arrival);
    return;
  }
  const bool asks = is_write || packet.bth.opcode == wire::Opcode::probe;
  if (state_ == QpState::error) {
    ++context_.event_log().stats.refused_wrong_state;
    refuse(now, RefusedPacket::wrong_state, packet, arrival);
    if (asks) responder_.refuse_in_error(packet.bth, arrival);
    return;
  }
  if (!asks && state_ != QpState::rts) {
    ++context_.event_log().stats.refused_wrong_state;
    refuse(now, RefusedPacket::wrong_state, packet, arrival);
    return;
  }
  CompletionStatus status = CompletionStatus::success;
  reverse_.on_arrival(arrival.port, arrival.entropy);
  if (const auto* write = std::get_if<wire::Write>(&packet.body)) {
    if (arrival.trim != Trim::none) {
      responder_.on_trimmed(now, packet.bth, *write, arrival);
    } else {
      reverse_.on_received(now);
      const std::uint64_t duplicates = context_.stats.packets_duplicate;
      status = responder_.on_write(now, packet.bth, *write, arrival);
      if (packet.bth.retransmission && context_.stats.packets_duplicate != duplicates)
        reverse_.on_suspect(now, requester_.rtt().smoothed());
    }
  } else if (const auto* sack = std::get_if<wire::Sack>(&packet.body)) {
    note_reverse(now, *sack);
    status = requester_.on_sack(now, *sack);
  } else if (const auto* nack = std::get_if<wire::Nack>(&packet.body)) {
    status = requester_.on_nack(now, *nack);
  } else if (const auto* aeth = std::get_if<wire::Aeth>(&packet.body)) {
    status = requester_.on_ack(now, *aeth, Psn(packet.bth.psn));
  } else if (const auto* probe = std::get_if<wire::Probe>(&packet.body)) {
    // A peer that asks has received nothing of late.
    reverse_.on_received(now);
    reverse_.on_suspect(now, requester_.rtt().smoothed());
    responder_.on_probe(*probe, arrival);
  }
  if (status != CompletionStatus::success) to_error(now, status);
}

// An unmarked SACK names a path that just carried our data: good enough to answer on.
void QueuePair::note_reverse(Time now, const wire::Sack& sack) {
  if (sack.mark != wire::Mark::none || sack.answers_probe) return;
  const Psn trigger = Psn(sack.cack_psn) + sack.ack_psn_offset;
  if (const auto ev = requester_.ev_of(trigger)) reverse_.on_data_acked(*ev, now);
}

void QueuePair::handle_timeout(Time now) {
  if (is_working()) responder_.on_timer(now);
  if (state_ != QpState::rts) return;
  if (const auto status = requester_.on_timer(now); status != CompletionStatus::success) to_error(now, status);
}

Time QueuePair::deadline(Time now) const {
  if (!is_working()) return Time::never();
  const Time reverse = reverse_.deadline() > now ? reverse_.deadline() : Time::never();
  const Time replies = std::min(responder_.deadline(), reverse);
  return state_ == QpState::rts ? std::min(requester_.deadline(now), replies) : replies;
}

// Proven ports, or where the cause came from if there are none. If there are and the peer seems to receive nothing,
// they may be dead by now: then chance decides, since taking turns could always give the same to the ACK behind a SACK.
std::uint32_t QueuePair::reply_ports(Time now) {
  const std::uint32_t validated = live_ports_ & validated_ports_;
  const std::uint32_t back = live_ports_ & 1u << responder_.reply_trigger_port();
  if (validated == 0) return back;
  if (!(back & ~validated) || !seems_unreachable(now)) return validated;
  return reverse_.toss() ? back : validated;
}

bool QueuePair::poll_reply(Time now, std::uint32_t free_ports, Transmit& out) {
  if (!responder_.has_reply()) return false;
  const std::uint32_t live = reply_ports(now);
  const std::uint32_t ports = free_ports & live & open_ports();
  if (ports == 0 || reverse_.should_wait(ports, live)) return false;
  address_reply(reply_port(responder_.take_reply(now, out), ports), false, out);
  return true;
}

Requester::Poll QueuePair::poll_data(Time now, std::uint32_t free_ports, Transmit& out) {
  if (state_ != QpState::rts) return Requester::Poll::idle;
  return requester_.poll(now, free_ports, out);
}

std::optional<ProbeRequest> QueuePair::next_probe(Time now, std::uint32_t free_ports,
                                                  std::span<SharedReversePath> shared) {
  if (state_ == QpState::rts) {
    if (const auto ev = requester_.next_probe(now, free_ports)) {
      const Ev& e = requester_.evs()[*ev];
      return ProbeRequest{*ev, e.port, e.value};
    }
  }
  if (state_ != QpState::rts && state_ != QpState::rtr) return std::nullopt;
  const Duration rtt = requester_.rtt().smoothed();
  const auto port = reverse_.next_probe(now, live_ports_ & validated_ports_, free_ports, rtt, shared);
  if (!port) return std::nullopt;
  return ProbeRequest{no_ev, *port, reverse_.entropy(*port)};
}

void QueuePair::on_probe_answer(Time now, const ProbeRequest& probe, Duration took,
                                std::span<SharedReversePath> shared) {
  if (state_ == QpState::error) return;
  if (probe.ev == no_ev) reverse_.on_answer(probe.port, probe.entropy, now, took, shared);
  else requester_.on_probe_answer(now, probe.ev, probe.entropy, took);
}

const wire::EvBytes* QueuePair::wide_of(const ProbeRequest& probe) const {
  const std::uint16_t ev = probe.ev == no_ev ? reverse_.ev(probe.port) : probe.ev;
  return ev == no_ev ? nullptr : requester_.evs().wide(ev);
}

void QueuePair::deny_ev(Time now, std::uint16_t ev) {
  requester_.deny_ev(now, ev);
  reverse_.on_evs_changed();
}

void QueuePair::allow_ev(Time now, std::uint16_t ev) {
  requester_.allow_ev(now, ev);
  reverse_.on_evs_changed();
}

MaybeError QueuePair::replace_ev(Time now, std::uint16_t ev, const EvValue& value) {
  const auto* bytes = std::get_if<wire::EvBytes>(&value);
  const std::uint32_t number = bytes ? 0 : std::get<std::uint32_t>(value);
  if (auto v = validate_value(*ev_profile_, "value", number, bytes != nullptr)) return v;
  const auto path = [&] {
    return ev_profile_->path_of(*bytes, ev_profile_->is_wide() ? requester_.next_ev_number() : 0);
  };
  requester_.replace_ev(now, ev, bytes ? path() : EvPath{number});
  reverse_.on_evs_changed();
  return std::nullopt;
}

TimeWaitState QueuePair::time_wait_state() const {
  TimeWaitState word = responder_.time_wait_state();
  if (!reverse_.is_built()) return word;
  word.open_ports = reverse_.open_ports();
  for (std::uint8_t port = 0; port < config_.ports; ++port) {
    word.entropies.push_back(reverse_.entropy(port));
    if (!ev_profile_->is_wide()) continue;
    const std::uint16_t ev = reverse_.ev(port);
    const wire::EvBytes* wide = ev == no_ev ? nullptr : requester_.evs().wide(ev);
    word.wide.push_back(wide ? *wide : wire::EvBytes{});
  }
  return word;
}

void QueuePair::set_ports(Time now, std::uint32_t live, std::uint32_t validated) {
  live_ports_ = live;
  validated_ports_ = validated;
  requester_.set_live_ports(now, live & validated);
}

}  // namespace softmrc::proto
