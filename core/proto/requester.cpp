// The sending side of Requester: posting, gates, path choice, packets. Then come requester_acks.cpp and
// requester_loss.cpp.
#include "proto/requester.h"

#include <algorithm>
#include <bit>

namespace softmrc::proto {
namespace {

wire::Opcode write_opcode(bool is_first, bool is_last, bool has_imm) {
  using wire::Opcode;
  if (is_last) {
    if (is_first) return has_imm ? Opcode::write_only_imm : Opcode::write_only;
    return has_imm ? Opcode::write_last_imm : Opcode::write_last;
  }
  return is_first ? Opcode::write_first : Opcode::write_middle;
}

// Draws until one is found that does not hold more than its share.
constexpr int max_draws = 6;
// Packets that follow a path which just answered where nothing else did.
constexpr std::uint32_t validated_quantum = 64;

}  // namespace

void Requester::start(const RtsAttributes& attributes) {
  attributes_ = attributes;
  next_psn_ = attributes.first_psn;
  window_edge_ = next_psn_ + attributes.mpr * mpr_unit;
  sent_.start(next_psn_, evs_.size());  // the controller may have had a word before
  rtt_ = Rtt(cc_profile_.base_rtt, cc_profile_.learn_base_rtt, cc_profile_.min_base_rtt);
  start_windows();
  ev_prober_.configure(config_);
  pto_.start(attributes, config_.timestamps);
}

void Requester::start_windows() {
  nominal_mtu_ = context_.mtu + longest_data_headers + nominal_overhead;
  windows_.start(cc_profile_, nominal_mtu_, context_.sharers, config_.ports);
}

void Requester::build_evs() {
  if (evs_.is_built()) return;
  evs_.build(ev_profile_, config_.ports, ev_stream());
  evs_.set_live_ports(live_ports_);
  if (ev_profile_.leaves_slow_ports) slow_ports_.build(config_.ports);
  sent_.start(sent_.first(), evs_.size());
}

PostStatus Requester::post(Time now, const WorkRequest& request) {
  if (messages_.size() >= attributes_.max_send_wr) return PostStatus::queue_full;
  build_evs();
  if (messages_.empty()) {
    pto_.on_work(now);
    ++context_.endpoint->senders;
  }
  messages_.push(request, packets_of(request.length, context_.mtu));
  ++context_.stats.messages_posted;
  return PostStatus::ok;
}

// spec: mpr-gate
bool Requester::window_allows() const {
  if (next_psn_ - window_edge_ >= 0) return false;
  return !messages_.waits_for_immediates(attributes_.max_wimm);
}

// Ask for a SACK when nothing will follow that could push the receiver's byte counter over its threshold.
bool Requester::is_last_for_now() const {
  if (messages_.is_cut() || next_psn_ == window_edge_) return true;
  return usable_window() < 2 * config_.sack_threshold_bytes && !open_ports();
}

// Where links are slow a window is smaller than what the receiver would wait for, and to ask with the last packet only
// would leave them idle for a round trip: four SACKs a window.
bool Requester::wants_sack(std::uint32_t bytes) {
  unsolicited_bytes_ += bytes;
  const std::uint64_t usable = usable_window();
  const bool is_small = windows_.is_each() && usable < 4 * config_.sack_threshold_bytes;
  if (!is_last_for_now() && !(is_small && unsolicited_bytes_ * 4 >= usable)) return false;
  unsolicited_bytes_ = 0;
  return true;
}

// Packets in a row that may share an EV. Where a port has a separate window, a burst is no more than a quarter of it:
// the queue of its link is as much shorter as the link is slower.
std::uint32_t Requester::quantum_on(std::uint8_t port) const {
  if (!windows_.is_each()) return ev_profile_.spray_quantum;
  const auto share = static_cast<std::uint32_t>(windows_.window_of(port, context_.endpoint->senders) / 4 /
                                                nominal_mtu_);
  return std::clamp(share, 1u, ev_profile_.spray_quantum);
}

// Ports whose window has room for half of what may share an EV: less would make GSO batches short.
std::uint32_t Requester::roomy_ports() const {
  if (!windows_.is_each()) return ~0u;
  std::uint32_t roomy = 0;
  for (std::uint8_t port = 0; port < config_.ports; ++port)
    if (windows_.has_room(port, (quantum_on(port) + 1) / 2, context_.endpoint->senders)) roomy |= 1u << port;
  return roomy;
}

// spec: ev-none-left
std::uint16_t Requester::choose_ev(Time now, std::uint32_t free_ports, std::uint16_t avoid) {
  if (quantum_left_ > 0 && quantum_ev_ != avoid) {
    const Ev& ev = evs_[quantum_ev_];
    if (ev.state == EvState::good && ev.place != no_ev && (free_ports & live_ports_) >> ev.port & 1) {
      --quantum_left_;
      return quantum_ev_;
    }
  }
  if (pto_.is_persistent()) return evs_.pick_any(free_ports);
  const std::uint16_t ev = draw_ev(now, free_ports & roomy_ports(), avoid);
  if (ev_profile_.spray_quantum > 1 && ev != no_ev) {
    quantum_ev_ = ev;
    quantum_left_ = quantum_on(evs_[ev].port) - 1;
  }
  return ev;
}

// A path that holds more of what is in flight than its share is slower than the others, long before a verdict:
// another one of its port takes its turn.
// spec: ev-share-in-flight
std::uint16_t Requester::draw_ev(Time now, std::uint32_t free_ports, std::uint16_t avoid) {
  EvSearch search{now, avoid};
  std::uint16_t ev = evs_.pick(search, free_ports);
  if (ev == no_ev || !ev_profile_.skips_congested || sent_.in_flight_on(ev) <= ev_profile_.spray_quantum) return ev;
  const std::uint32_t share = sent_.in_flight() + evs_.usable() * ev_profile_.spray_quantum;
  const auto holds_too_much = [&](std::uint16_t one) { return sent_.in_flight_on(one) * evs_.usable() >= share; };
  if (!holds_too_much(ev)) return ev;
  for (int draws = 1; draws < max_draws; ++draws) {
    const std::uint16_t other = evs_.pick_instead(search, ev);
    if (other != no_ev && !holds_too_much(other)) return other;
  }
  return ev;
}

// Each probe goes by a port not yet probed, where there is one. It is about the oldest packet in flight, and goes by
// that one's port only if it is the last before the timer and all others have been probed. After two timers checks
// probe them all, and what answered one leads.
std::uint16_t Requester::choose_to_ask(Time now, std::uint32_t free_ports, std::uint16_t avoid) {
  if (pto_.is_persistent()) return choose_ev(now, free_ports, avoid);
  const std::uint32_t others = free_ports & ~(sent_.in_flight() ? 1u << port_of(sent_[sent_.oldest()]) : 0u);
  EvSearch search{now, avoid};
  std::uint16_t ev = evs_.pick(search, pto_.unprobed(others));
  if (ev == no_ev && pto_.is_last_probe()) ev = evs_.pick(search, pto_.unprobed(free_ports));
  if (ev == no_ev) ev = evs_.pick(search, others);
  if (ev == no_ev) ev = evs_.pick(search, free_ports);
  if (ev == no_ev) return no_ev;
  pto_.on_probed(evs_[ev].port);
  quantum_left_ = 0;
  return ev;
}

void Requester::address(std::uint16_t ev, TrafficClass traffic_class, Transmit& out) {
  const Ev& e = evs_[ev];
  out.peer = context_.peer;
  out.qpn = context_.qpn;
  out.entropy = e.value;
  out.wide = evs_.wide(ev);
  out.port = e.port;
  out.traffic_class = traffic_class;
}

// spec: trim-absent
void Requester::fill(Time now, const Message& message, Psn psn, std::uint16_t ev, bool is_again, Transmit& out) {
  const std::uint32_t index = (psn.value - message.first_psn.value) & Psn::mask;
  const std::uint64_t offset = static_cast<std::uint64_t>(index) * context_.mtu;
  const bool is_last = index + 1 == message.packets;

  TrafficClass traffic_class = is_again ? TrafficClass::data_retransmit : TrafficClass::data;
  if (!config_.peer_trim_nack) traffic_class = TrafficClass::data_no_trim;
  address(ev, traffic_class, out);

  wire::Bth& bth = out.packet.bth;
  bth = wire::Bth{};
  bth.opcode = write_opcode(index == 0, is_last, message.has_imm);
  bth.dqp = context_.dest_qpn;
  bth.psn = psn.value;
  bth.timestamped = config_.timestamps;
  bth.retransmission = is_again;

  wire::Write& w = out.packet.body.emplace<wire::Write>();
  w.meth = {message.rqmsn, message.msn};
  w.tseth.ticks = config_.timestamps ? timestamp_ticks(now) : std::uint16_t{0};
  w.reth = {message.remote_va + offset, message.rkey, message.length};
  w.imm = message.imm;
  w.payload = message.data ? message.data + offset : nullptr;
  w.payload_size = is_last ? static_cast<std::uint32_t>(message.length - offset) : context_.mtu;
}

void Requester::record_sent(Time now, Psn psn, std::uint16_t ev, const Transmit& out) {
  SentRecord& r = sent_[psn];
  r.sent_at = now;
  r.ev = ev;
  r.state = SentState::in_flight;
  r.bytes = static_cast<std::uint16_t>(wire::packet_size(out.packet) + nominal_overhead);
  if (r.tx_count < 255) ++r.tx_count;
  sent_.link(psn);
  holes_.clear(psn.value);
  evs_.on_sent(ev, now);
  windows_.on_sent(out.port, r.bytes);
  pto_.on_sent(now);
  ++context_.stats.packets_sent;
  if (context_.event_log().traces(EventType::packet_sent)) [[unlikely]] {
    Event e = context_.event(EventType::packet_sent, now);
    e.psn = psn.value;
    e.ev = out.entropy;
    e.port = out.port;
    e.code = r.tx_count;
    e.value = r.bytes;
    context_.event_log().trace(e);
  }
}

// What is kept of each PSN in the window grows together.
void Requester::make_room(std::uint32_t span) {
  room_ = std::bit_ceil(std::max(span, 16u));
  sent_.reserve(room_);
  for (WindowBitmap* bits : {&acked_, &lost_, &suspects_, &holes_, &detected_})
    bits->reserve(sent_.first().value, room_);
}

Requester::Poll Requester::send_new(Time now, std::uint32_t free_ports, Transmit& out) {
  const std::uint16_t ev = choose_ev(now, free_ports, no_ev);
  if (ev == no_ev) return Poll::no_port;
  const Psn psn = next_psn_;
  const std::uint32_t span = static_cast<std::uint32_t>(psn - sent_.first()) + 1;
  if (span > room_) [[unlikely]]
    make_room(span);

  if (messages_.is_at_first() && sent_.in_flight() == 0 && lost_count_ == 0) pto_.on_first_sent(now);
  const Message& message = messages_.cut(psn);
  fill(now, message, psn, ev, false, out);
  context_.stats.bytes_sent += std::get<wire::Write>(out.packet.body).payload_size;

  SentRecord& r = sent_[psn];
  r = SentRecord{};
  r.msn = message.msn;
  record_sent(now, psn, ev, out);
  ++next_psn_;
  pto_.on_new_sent(now);
  out.packet.bth.ack_request = wants_sack(r.bytes);
  return Poll::sent;
}

// spec: ev-other-path retransmit-order
Requester::Poll Requester::resend(Time now, Psn psn, std::uint16_t ev, Transmit& out) {
  SentRecord& r = sent_[psn];
  if (ev == no_ev) return Poll::no_port;
  if (r.state == SentState::lost) {
    lost_.clear(psn.value);
    --lost_count_;
    r.is_ambiguous = false;
  } else {
    clear_loss_marks(psn);
    sent_.unlink(psn);
    windows_.on_gone(port_of(r), r.bytes);
    r.is_ambiguous = true;
    r.window_charged = false;
  }
  if (r.answers != AckedCopy::newest || !r.was_nacked) r.answers = AckedCopy::unknown;
  r.was_nacked = false;
  r.previous_ev = r.ev;
  fill(now, messages_.of(r.msn), psn, ev, true, out);
  record_sent(now, psn, ev, out);
  ++context_.stats.packets_retransmitted;
  return Poll::sent;
}

// Every packet is acknowledged but the operation is not: its last packet again makes the peer repeat the ACK.
// spec: transport-ack
Requester::Poll Requester::send_solicitation(Time now, std::uint32_t free_ports, Transmit& out) {
  const std::uint16_t ev = choose_ev(now, free_ports, no_ev);
  if (ev == no_ev) return Poll::no_port;
  const Message& message = messages_.front();
  fill(now, message, message.last_psn(), ev, true, out);
  pto_.on_sent(now);
  ++context_.stats.packets_sent;
  ++context_.stats.packets_retransmitted;
  return Poll::sent;
}

// spec: reliability-probe
Requester::Poll Requester::send_reliability_probe(Time now, std::uint32_t free_ports, Transmit& out) {
  const std::uint16_t ev = choose_to_ask(now, free_ports, no_ev);
  if (ev == no_ev) return Poll::no_port;
  address(ev, TrafficClass::data_no_trim, out);
  out.packet.bth = wire::Bth{};
  out.packet.bth.opcode = wire::Opcode::probe;
  out.packet.bth.dqp = context_.dest_qpn;
  wire::Probe& probe = out.packet.body.emplace<wire::Probe>();
  probe.probe_id = pto_.on_probe_sent(now, ev);
  probe.spdcid = static_cast<std::uint16_t>(context_.qpn);
  probe.dpdcid = static_cast<std::uint16_t>(context_.dest_qpn);
  probe.timestamp.ticks = timestamp_ticks(now);
  return Poll::sent;
}

// What the probe timeout wants goes out whatever the congestion window says; if no port is free, it waits for one.
std::optional<Requester::Poll> Requester::poll_urgent(Time now, std::uint32_t free_ports, Transmit& out) {
  const bool all_settled = messages_.has_sent_operation() && messages_.front().last_psn() - sent_.first() < 0;
  const ProbeTimeout::ProbeAction action = pto_.next_action(sent_.in_flight(), all_settled);
  Poll result = Poll::no_port;
  switch (action) {
    case ProbeTimeout::ProbeAction::none: return std::nullopt;
    case ProbeTimeout::ProbeAction::copy: {
      const Psn newest = sent_.newest();
      const std::uint16_t before = sent_[newest].ev;
      pto_.on_probed(evs_[before].port);
      result = resend(now, newest, choose_to_ask(now, free_ports, before), out);
      break;
    }
    case ProbeTimeout::ProbeAction::probe: result = send_reliability_probe(now, free_ports, out); break;
    case ProbeTimeout::ProbeAction::solicitation: result = send_solicitation(now, free_ports, out); break;
  }
  if (result == Poll::sent) pto_.on_action_done(action);
  return result;
}

Requester::Poll Requester::poll(Time now, std::uint32_t free_ports, Transmit& out) {
  if (messages_.empty()) return Poll::idle;
  if (pto_.has_actions()) [[unlikely]]
    if (const auto urgent = poll_urgent(now, free_ports, out)) return *urgent;
  const std::uint32_t open = open_ports();
  if (open == 0 || pto_.is_backing_off(now)) return Poll::idle;
  free_ports &= open;
  if (lost_count_) {
    const std::uint32_t window = static_cast<std::uint32_t>(next_psn_ - sent_.first());
    const Psn psn = sent_.first() + lost_.distance_to_set(sent_.first().value, window);
    SOFTMRC_CHECK(sent_[psn].state == SentState::lost);
    return resend(now, psn, choose_ev(now, free_ports, sent_[psn].ev), out);
  }
  if (messages_.is_cut() || !window_allows()) return Poll::idle;
  return send_new(now, free_ports, out);
}

std::optional<std::uint16_t> Requester::next_probe(Time now, std::uint32_t free_ports) {
  if (ev_prober_.deadline() > now) return std::nullopt;
  const auto ev = ev_prober_.next_due(now, live_ports_, free_ports, pto_interval());
  if (ev) ++context_.stats.ev_probes_sent;
  return ev;
}

void Requester::on_probe_answer(Time now, std::uint16_t ev, std::uint32_t entropy, Duration took) {
  if (ev >= evs_.size() || evs_[ev].value != entropy || !ev_prober_.contains(ev)) return;
  ++context_.stats.ev_probes_answered;
  if (ev_profile_.leaves_slow_ports && !pto_.is_persistent()) {
    const auto most = slow_ports_.limit(rtt_.base(), evs_.usable_ports());
    if (most && took > *most) return;
  }
  if (!ev_prober_.on_answer(ev, now)) return;
  if (pto_.is_persistent()) pto_.on_path_found(now);
  on_path_works(ev);
  drain_ev_changes(now);
}

// Where it is not exact, it was at least that long.
void Requester::note_round_trip(Time now, std::uint16_t ev, Duration took, bool is_exact) {
  if (!ev_profile_.leaves_slow_ports || evs_.is_retired(ev) || evs_.is_left(evs_[ev].port)) return;
  const std::uint8_t port = evs_[ev].port;
  // While another is silent the rest carry its share as well, and queue for it.
  for (std::uint32_t silent = live_ports_ & ~evs_.usable_ports() & ((1u << config_.ports) - 1) & ~(1u << port); silent;
       silent &= silent - 1)
    if (!evs_.is_left(static_cast<std::uint8_t>(std::countr_zero(silent)))) return;
  const std::uint32_t others = evs_.usable_ports() & ~(1u << port);
  const bool is_slow = is_exact ? slow_ports_.on_round_trip(now, port, took, rtt_.base(), others)
                                : slow_ports_.on_longer_round_trip(now, port, took, rtt_.base(), others);
  if (!is_slow) return;
  evs_.leave_port(port, slow_ports_.leave(port, now));
  ++context_.stats.ports_left_slow;
}

// This path works: it returns, and where nothing else has answered for two timers it leads.
void Requester::on_path_works(std::uint16_t ev) {
  if (evs_.is_retired(ev)) return;
  if (evs_[ev].state == EvState::assumed_bad) {
    evs_.revive(ev);
    ++context_.stats.evs_revived;
  } else {
    ev_prober_.remove(ev);
  }
  if (!pto_.is_persistent()) return;
  evs_.unskip(ev);
  quantum_ev_ = ev;
  quantum_left_ = validated_quantum;
}

// Nothing has answered for two timers. A good EV may be as dead as the others, so one of each port is probed as well,
// and what answers first is where the next packets go.
void Requester::send_checks(Time now) {
  for (std::uint32_t port = 0; port < config_.ports; ++port)
    if (const auto ev = evs_.any_on(port)) ev_prober_.add_check(*ev, static_cast<std::uint8_t>(port), now);
}

void Requester::set_live_ports(Time now, std::uint32_t mask) {
  const std::uint32_t risen = mask & ~live_ports_;
  live_ports_ = mask;
  if (!evs_.is_built()) return;
  evs_.set_live_ports(mask);
  for (std::uint32_t port = 0; port < config_.ports; ++port)
    if (risen >> port & 1) ev_prober_.probe_port_now(static_cast<std::uint8_t>(port), now);
  drain_ev_changes(now);
}

void Requester::deny_ev(Time now, std::uint16_t ev) {
  build_evs();
  ev_prober_.remove(ev);
  evs_.deny(ev);
  drain_ev_changes(now);
}

void Requester::allow_ev(Time now, std::uint16_t ev) {
  build_evs();
  evs_.allow(ev);
  drain_ev_changes(now);
}

void Requester::replace_ev(Time now, std::uint16_t ev, const EvPath& path) {
  build_evs();
  retire(ev);
  ev_prober_.remove(ev);
  evs_.replace(ev, path);
  drain_ev_changes(now);
}

// Whatever was sent on this EV's path, and what is thought of it, is no longer the EV's.
void Requester::retire(std::uint16_t ev) {
  const std::uint16_t retired = evs_.retired_on(evs_[ev].port);
  for (Psn psn = sent_.first(); psn != next_psn_; ++psn) {
    SentRecord& r = sent_[psn];
    if (r.previous_ev == ev) r.previous_ev = retired;
    if (r.ev != ev) continue;
    sent_.unlink_from_ev(psn);
    r.ev = retired;
  }
  for (std::size_t i = 0; i < trim_waits_.size(); ++i)
    if (trim_waits_[i].ev == ev) trim_waits_[i].ev = no_ev;
  pto_.on_retired(ev, retired);
}

// Turns state changes into events, and keeps the prober in step with them.
void Requester::drain_ev_changes(Time now) {
  while (!evs_.changes().empty()) {
    const std::uint16_t ev = evs_.changes().front();
    evs_.changes().pop();
    const Ev& e = evs_[ev];
    if (e.state == EvState::assumed_bad) {
      ev_prober_.add(ev, e.port, evs_.wait_of(ev), now);
      ++context_.stats.evs_demoted;
    } else {
      ev_prober_.remove(ev);
    }
    Event event = context_.event(EventType::ev_state, now);
    event.ev = e.value;
    event.port = e.port;
    event.code = static_cast<std::uint32_t>(e.state);
    event.value = e.drops;
    context_.event_log().record(event);
  }
  // Two timers without any answer: the EVs that are left have proved no better than those that are gone.
  ev_prober_.set_none_left(evs_.usable() == 0 || pto_.is_persistent(), now);
}

void Requester::complete(const Message& message, CompletionStatus status) {
  if (status == CompletionStatus::success && !message.is_signaled) return;
  Completion c;
  c.wr_id = message.wr_id;
  c.qpn = context_.qpn;
  c.length = message.length;
  c.imm = message.has_imm ? message.imm : 0;
  c.status = status;
  c.kind = message.has_imm ? CompletionKind::write_imm : CompletionKind::write;
  c.msn = message.msn;
  completions_.push(c);
}

void Requester::fail(CompletionStatus status) {
  if (has_work()) --context_.endpoint->senders;
  while (!messages_.empty()) {
    complete(messages_.front(), status);
    messages_.give_up();
    status = CompletionStatus::flushed;
  }
  lost_count_ = suspect_count_ = detected_count_ = 0;
  trim_waits_.clear();
  windows_.on_nothing_left();
}

}  // namespace softmrc::proto
