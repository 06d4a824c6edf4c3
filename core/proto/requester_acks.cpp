// The receiving side of Requester: SACKs, NACKs, transport ACKs, the verdicts of loss, the timers.
#include <algorithm>
#include <bit>

#include "proto/requester.h"

namespace softmrc::proto {
namespace {

constexpr std::int64_t timer_unit_ps = 1'024'000;

CompletionStatus status_of(wire::Syndrome syndrome) {
  switch (syndrome) {
    case wire::Syndrome::ack: return CompletionStatus::success;
    case wire::Syndrome::invalid_request: return CompletionStatus::remote_invalid;
    case wire::Syndrome::remote_access: return CompletionStatus::remote_access;
    case wire::Syndrome::remote_operation: return CompletionStatus::remote_operation;
  }
  return CompletionStatus::remote_invalid;
}

}  // namespace

// The receiver's byte count orders its SACKs; an old one that arrives late brings no new bytes.
std::uint64_t Requester::advance_clock(const wire::CcState& cc, bool& is_newest) {
  const std::int32_t ahead = Serial<24>(cc.rcvd_bytes) - Serial<24>(static_cast<std::uint32_t>(clock_));
  is_newest = ahead >= 0;
  if (ahead <= 0) return 0;
  clock_ += static_cast<std::uint64_t>(ahead);
  return static_cast<std::uint64_t>(ahead) * 256;
}

// Valid when it is certain which transmission the SACK answers: the only one, or the one whose timestamp it reflects.
// spec: rtt-valid
std::optional<Duration> Requester::sample_rtt(Time now, Psn psn, std::uint16_t reflected_ticks) {
  if (!is_outstanding(psn)) return std::nullopt;
  const SentRecord& r = sent_[psn];
  if (r.state != SentState::in_flight) return std::nullopt;
  if (config_.timestamps ? reflected_ticks != timestamp_ticks(r.sent_at) : r.tx_count != 1) return std::nullopt;
  const Duration rtt = now - r.sent_at;
  rtt_.on_sample(rtt, r.tx_count == 1);
  note_round_trip(now, r.ev, rtt);
  return std::max(rtt - rtt_.base(), Duration{0});
}

// Our own record says which EV carried the packet; the echo is for packets whose record is gone.
void Requester::apply_mark(Psn psn, const wire::Sack& sack) {
  if (sack.mark == wire::Mark::none) return;
  ++context_.stats.marks_received;
  std::uint16_t ev = no_ev;
  if (is_outstanding(psn)) ev = sent_[psn].ev;
  else if (const auto found = evs_.find(sack.entropy)) ev = *found;
  if (ev == no_ev) return;
  if (sack.mark == wire::Mark::always_skip) evs_.on_always_skip(ev);
  else evs_.on_congestion(ev);
}

void Requester::on_progress(Time now) {
  progress_at_ = active_at_ = now;
  retries_ = 0;
  silences_ = 0;
  asked_ports_ = 0;
}

// spec: mpr-dynamic
CompletionStatus Requester::on_sack(Time now, const wire::Sack& sack) {
  ++context_.stats.sacks_received;
  const Psn cack(sack.cack_psn);
  if (!evs_.is_built() || cack - next_psn_ >= 0) {
    refuse_acknowledgement(now, cack);
    return CompletionStatus::success;
  }
  AckFacts facts;
  bool is_newest = false;
  facts.new_bytes = advance_clock(sack.cc, is_newest);
  facts.marked = sack.mark != wire::Mark::none;

  const Psn trigger = cack + sack.ack_psn_offset;
  if (sack.answers_probe) {
    if (sack.probe_id() == probe_id_ && probe_sent_at_ != Time::never()) {
      loss_.on_probe_answered(probe_sent_at_);
      rtt_.on_sample(now - probe_sent_at_);
      if (retries_ > 1) on_proof(probe_ev_);
      probe_sent_at_ = Time::never();
      silences_ = 0;
      asked_ports_ = 0;
    }
  } else {
    if (is_outstanding(trigger) && sent_[trigger].in_doubt) [[unlikely]] judge_first_copy(trigger, sack.cc.tx_timestamp);
    facts.delay = sample_rtt(now, trigger, sack.cc.tx_timestamp);
    apply_mark(trigger, sack);
    if (is_outstanding(trigger)) {
      tell_copies_apart(trigger, sack.cc.tx_timestamp);
      acknowledge_bits(now, trigger, 1);
    }
  }
  acknowledge_through(now, cack);
  if (sack.bitmap) acknowledge_bits(now, cack + sack.sack_offset, sack.bitmap);
  if (sack.mpr) {
    attributes_.mpr = sack.mpr;
    const Psn edge = cack + 1 + sack.mpr * mpr_unit;
    if (edge - window_edge_ > 0) window_edge_ = edge;
  }
  loss_.on_sack_done();
  if (is_newest && sent_.in_flight()) convict(sack);
  if (!context_.journal->in_batch) pass_verdicts(now);

  facts.in_flight = bytes_in_flight_;
  facts.penalty = sack.cc.rcv_cwnd_pen;
  facts.restore = sack.cc.restore_cwnd;
  controller_.on_ack(now, rtt_.base(), facts);
  drain_ev_changes(now);
  if (context_.journal->traces(EventType::window)) [[unlikely]] {
    Event e = context_.event(EventType::window, now);
    e.value = controller_.window();
    e.psn = static_cast<std::uint32_t>(bytes_in_flight_);
    context_.journal->trace(e);
  }
  return CompletionStatus::success;
}

// Everything up to and including cack has arrived. True when that was news.
bool Requester::acknowledge_through(Time now, Psn cack) {
  const Psn first = sent_.first();
  const std::int32_t count = cack - first + 1;
  if (count <= 0) return false;
  for (std::int32_t i = 0; i < count; ++i) {
    const Psn psn = first + i;
    if (sent_[psn].state != SentState::settled) settle(now, psn);
  }
  acked_.clear_run(first.value, static_cast<std::uint32_t>(count));
  sent_.advance(cack + 1);
  const Psn edge = sent_.first() + attributes_.mpr * mpr_unit;
  if (edge - window_edge_ > 0) window_edge_ = edge;
  on_progress(now);
  return true;
}

void Requester::acknowledge_bits(Time now, Psn base, std::uint64_t bits) {
  const std::int32_t behind = sent_.first() - base;
  if (behind >= 64) return;
  if (behind > 0) {
    bits >>= behind;
    base = sent_.first();
  }
  const std::int32_t room = next_psn_ - base;
  if (room <= 0) return;
  if (room < 64) bits &= (1ull << room) - 1;
  std::uint64_t fresh = bits & ~acked_.window(base.value);
  while (fresh) {
    const Psn psn = base + std::countr_zero(fresh);
    fresh &= fresh - 1;
    acked_.set(psn.value);
    settle(now, psn);
    on_progress(now);
  }
}

void Requester::settle(Time now, Psn psn) {
  SentRecord& r = sent_[psn];
  if (context_.journal->traces(EventType::packet_acked)) [[unlikely]] {
    Event e = context_.event(EventType::packet_acked, now);
    e.psn = psn.value;
    e.ev = evs_[r.ev].value;
    e.port = evs_[r.ev].port;
    e.value = static_cast<std::uint64_t>((now - r.sent_at).ps);
    context_.journal->trace(e);
  }
  // An acknowledgement sooner than any round trip can be answers the transmission before the last.
  const bool is_too_soon = r.answers == Answers::unknown && now - r.sent_at < rtt_.fastest() * 7 / 8;
  if (r.state == SentState::lost || r.answers == Answers::earlier || is_too_soon) {
    settle_undone(now, psn, r);
    return;
  }
  absolve(psn);
  // What may answer either copy says nothing about when, or by which path, the packet arrived.
  const bool is_evidence = r.answers == Answers::newest;
  if (is_evidence) suspect_older_on_ev(r.ev, psn);
  sent_.unlink(psn);
  bytes_in_flight_ -= r.bytes;
  r.state = SentState::settled;
  if (!is_evidence) return;
  if (retries_ > 1) on_proof(r.ev);
  evs_.on_acked(r.ev, r.sent_at);
  loss_.on_acked(now, r.sent_at, rtt_.smoothed());
}

// spec: loss-copies
void Requester::tell_copies_apart(Psn psn, std::uint16_t reflected_ticks) {
  SentRecord& r = sent_[psn];
  if (r.answers == Answers::newest || r.state != SentState::in_flight || !config_.timestamps) return;
  r.answers = reflected_ticks == timestamp_ticks(r.sent_at) ? Answers::newest : Answers::earlier;
}

// A packet was sent again in silence, and this SACK's timestamp says which copy it answers. If the second, and the path of
// the first has acknowledged nothing for three round trips, that path lost it. Without this verdict a flow of one packet
// at a time would stumble over the same dead path lap after lap.
void Requester::judge_first_copy(Psn psn, std::uint16_t reflected_ticks) {
  SentRecord& r = sent_[psn];
  r.in_doubt = false;
  if (!config_.timestamps || r.state != SentState::in_flight || r.previous_ev == r.ev) return;
  if (reflected_ticks != timestamp_ticks(r.sent_at)) return;
  const Duration three_rtt = std::max(rtt_.base(), rtt_.smoothed()) * 3;
  const Time unacked_since = evs_[r.previous_ev].unacked_since;
  if (unacked_since == Time::never() || r.sent_at - unacked_since <= three_rtt) return;
  evs_.on_loss(r.previous_ev, unacked_since, r.sent_at, three_rtt);
}

// The packet was declared lost, and here it is: the verdict on its path falls.
// spec: loss-undone
void Requester::settle_undone(Time now, Psn psn, SentRecord& r) {
  const bool was_waiting = r.state == SentState::lost;
  const std::uint16_t ev = was_waiting ? r.ev : r.previous_ev;
  if (was_waiting) {
    lost_.clear(psn.value);
    --lost_count_;
    if (loss_.latest_acked_sent() > r.sent_at) loss_.on_lag(loss_.latest_acked_sent() - r.sent_at);
  } else {
    absolve(psn);
    sent_.unlink(psn);
    bytes_in_flight_ -= r.bytes;
  }
  r.state = SentState::settled;
  ++context_.stats.loss_spurious;
  // It was declared lost after W at least.
  if (ev != no_ev) note_round_trip(now, ev, was_waiting ? now - r.sent_at : now - r.sent_at + reorder_window());
  withdraw_accusation(psn, ev, std::nullopt);
  if (r.path_blamed && ev != no_ev && evs_[ev].state == EvState::assumed_bad) {
    evs_.on_spurious(ev);
    ++context_.stats.evs_restored;
  }
  Event e = context_.event(EventType::packet_spurious, now);
  e.psn = psn.value;
  if (ev != no_ev) {
    e.ev = evs_[ev].value;
    e.port = evs_[ev].port;
  }
  context_.journal->trace(e);
}

void Requester::suspect_older_on_ev(std::uint16_t ev, Psn acked) {
  if (!sent_[acked].on_ev_list) return;
  for (Psn older = sent_.oldest_on(ev); older != acked; older = sent_.oldest_on(ev)) {
    sent_.unlink_from_ev(older);
    suspects_.set(older.value);
    ++suspect_count_;
    suspect_clock_ = clock_;
  }
}

void Requester::absolve(Psn psn) {
  if (suspect_count_ && suspects_.test(psn.value)) {
    suspects_.clear(psn.value);
    --suspect_count_;
  }
  if (convicted_count_ && convicted_.test(psn.value)) {
    convicted_.clear(psn.value);
    --convicted_count_;
  }
}

// Something sent more than W later has been acknowledged.
bool Requester::is_late(const SentRecord& r) const {
  return loss_.left_at(r.sent_at) + reorder_window() < loss_.latest_acked_sent();
}

// This SACK is no older than any evidence so far; what it covers and leaves out did not arrive. That makes suspects
// and late packets lost. The PSN after cack is always covered: had it arrived, cack would include it. With nothing out
// of order at the receiver, so is everything behind it.
// spec: loss-same-ev loss-across-evs loss-covered
void Requester::convict(const wire::Sack& sack) {
  const bool suspects_too = suspect_count_ && clock_ >= suspect_clock_;
  const bool some_are_late = is_late(sent_[sent_.oldest()]);
  if (!suspects_too && !some_are_late) return;
  const Psn after_cack = Psn(sack.cack_psn) + 1;
  convict_left_out(after_cack, 1, suspects_too);
  if (sack.bitmap) convict_left_out(Psn(sack.cack_psn) + sack.sack_offset, ~sack.bitmap, suspects_too);
  if (sack.cc.ooo_count || !some_are_late) return;
  for (Psn base = after_cack; base - next_psn_ < 0; base = base + 64) convict_left_out(base, ~0ull, false);
}

void Requester::convict_left_out(Psn base, std::uint64_t left_out, bool suspects_too) {
  const std::int32_t behind = sent_.first() - base;
  if (behind >= 64) return;
  if (behind > 0) {
    left_out >>= behind;
    base = sent_.first();
  }
  const std::int32_t room = next_psn_ - base;
  if (room <= 0) return;
  if (room < 64) left_out &= (1ull << room) - 1;
  left_out &= ~acked_.window(base.value);
  for (; left_out; left_out &= left_out - 1) {
    const Psn psn = base + std::countr_zero(left_out);
    const SentRecord& r = sent_[psn];
    if (r.state != SentState::in_flight || convicted_.test(psn.value)) continue;
    if (!(suspects_too && suspects_.test(psn.value)) && !is_late(r)) continue;
    convicted_.set(psn.value);
    ++convicted_count_;
  }
}

void Requester::end_batch(Time now) {
  if (convicted_count_ == 0 && accusations_.empty()) return;
  pass_verdicts(now);
  drain_ev_changes(now);
}

void Requester::pass_verdicts(Time now) {
  if (!accusations_.empty()) judge_accused(now);
  if (convicted_count_ == 0) return;
  declare_convicted(now, LossCause::same_ev);
  drain_ev_changes(now);
  declare_convicted(now, LossCause::across_evs);
  // Nothing sent later on these paths has come back either; waiting for each packet's own evidence would cost a round
  // trip per packet. A path condemned by (a) is different: it just delivered.
  for (std::size_t i = 0; i < evs_.changes().size(); ++i) {
    const std::uint16_t ev = evs_.changes()[i];
    while (evs_[ev].state == EvState::assumed_bad && sent_.in_flight_on(ev))
      declare_lost(now, sent_.oldest_on(ev), LossCause::with_path);
  }
}

// Suspects by (a), all others by (b).
void Requester::declare_convicted(Time now, LossCause cause) {
  const std::uint32_t window = static_cast<std::uint32_t>(next_psn_ - sent_.first());
  std::uint32_t at = 0;
  while (convicted_count_ && (at += convicted_.distance_to_set((sent_.first() + at).value, window - at)) < window) {
    const Psn psn = sent_.first() + at++;
    if (cause == LossCause::across_evs || (suspect_count_ && suspects_.test(psn.value))) declare_lost(now, psn, cause);
  }
}

void Requester::declare_lost(Time now, Psn psn, LossCause cause) {
  SentRecord& r = sent_[psn];
  SOFTMRC_CHECK(r.state == SentState::in_flight);
  absolve(psn);
  sent_.unlink(psn);
  bytes_in_flight_ -= r.bytes;
  r.state = SentState::lost;
  r.was_nacked = cause == LossCause::nacked;
  lost_.set(psn.value);
  ++lost_count_;
  switch (cause) {
    case LossCause::same_ev: ++context_.stats.lost_same_ev; break;
    case LossCause::across_evs: ++context_.stats.lost_across_evs; break;
    case LossCause::with_path: ++context_.stats.lost_with_path; break;
    case LossCause::timeout: ++context_.stats.lost_timeout; break;
    case LossCause::nacked: ++context_.stats.lost_nacked; break;
  }
  blame_path(now, psn, r, cause);
  if (cause != LossCause::nacked) controller_.on_loss(now, r.bytes, bytes_in_flight_);
  if (context_.journal->traces(EventType::packet_lost)) [[unlikely]] {
    Event e = context_.event(EventType::packet_lost, now);
    e.psn = psn.value;
    e.ev = evs_[r.ev].value;
    e.port = evs_[r.ev].port;
    e.code = static_cast<std::uint32_t>(cause);
    e.value = static_cast<std::uint64_t>((now - r.sent_at).ps);
    context_.journal->trace(e);
  }
}

// A timer proves nothing about one path, since none answered; only a second in a row is held against them.
// spec: trim-late-nack
void Requester::blame_path(Time now, Psn psn, SentRecord& r, LossCause cause) {
  r.path_blamed = cause == LossCause::same_ev || cause == LossCause::across_evs ||
                  (cause == LossCause::timeout && retries_ > 1);
  if (!r.path_blamed) return;
  // A later packet of this path came through. Where switches trim, so may the header of this one have, and the NACK that
  // it caused be slower than the SACK on another plane. The packet is sent again at once; the path is given that long.
  if (cause == LossCause::same_ev && config_.peer_trim_nack) {
    accusations_.push({r.sent_at, now + reorder_window(), psn, r.ev});
    return;
  }
  evs_.on_loss(r.ev, r.sent_at, loss_.latest_acked_sent(), std::max(rtt_.base(), rtt_.smoothed()) * 3);
}

void Requester::judge_accused(Time now) {
  while (!accusations_.empty() && accusations_.front().due <= now) {
    const Accusation a = accusations_.front();
    accusations_.pop();
    if (a.ev == no_ev) continue;
    evs_.on_loss(a.ev, a.sent_at, loss_.latest_acked_sent(), std::max(rtt_.base(), rtt_.smoothed()) * 3);
  }
}

// True when there was one: of this packet, on this EV (or any) or with this timestamp.
bool Requester::withdraw_accusation(Psn psn, std::uint16_t ev, std::optional<std::uint16_t> ticks) {
  for (std::size_t i = 0; i < accusations_.size(); ++i) {
    Accusation& a = accusations_[i];
    if (a.psn != psn || a.ev == no_ev) continue;
    if (ticks ? *ticks != timestamp_ticks(a.sent_at) : ev != no_ev && a.ev != ev) continue;
    if (ev == no_ev) evs_.on_acked(a.ev, a.sent_at);
    a.ev = no_ev;
    return true;
  }
  return false;
}

CompletionStatus Requester::on_nack(Time now, const wire::Nack& nack) {
  ++context_.stats.nacks_received;
  if (nack.reason == wire::NackReason::unexpected_event) return CompletionStatus::peer_error;
  const Psn psn(nack.nack_psn);
  const bool is_trim = nack.reason == wire::NackReason::trimmed || nack.reason == wire::NackReason::trimmed_last_hop;
  if (is_trim && !accusations_.empty())
    withdraw_accusation(psn, no_ev, config_.timestamps ? std::optional(nack.tx_timestamp) : std::nullopt);
  if (!evs_.is_built() || !is_outstanding(psn)) return CompletionStatus::success;
  SentRecord& r = sent_[psn];
  if (r.state != SentState::in_flight) return CompletionStatus::success;
  // A NACK of an earlier transmission says nothing about the one under way.
  if (config_.timestamps && r.tx_count > 1 && nack.tx_timestamp != timestamp_ticks(r.sent_at)) return CompletionStatus::success;
  if (is_trim) {
    // A header that came through is proof that the path lives.
    evs_.on_acked(r.ev, r.sent_at);
    if (nack.reason == wire::NackReason::trimmed) evs_.on_congestion(r.ev);
  }
  const std::uint64_t bytes = r.bytes;
  declare_lost(now, psn, LossCause::nacked);
  if (is_trim) controller_.on_trim(now, bytes, bytes_in_flight_);
  on_progress(now);
  drain_ev_changes(now);
  return CompletionStatus::success;
}

// spec: in-order nak
CompletionStatus Requester::on_ack(Time now, const wire::Aeth& aeth, Psn cack) {
  ++context_.stats.acks_received;
  if (!evs_.is_built() || cack - next_psn_ >= 0) {
    if (aeth.syndrome == wire::Syndrome::ack) refuse_acknowledgement(now, cack);
    return status_of(aeth.syndrome);
  }
  acknowledge_through(now, cack);
  const Msn confirmed(aeth.msn);
  while (has_unacknowledged_operation() && confirmed - Msn(messages_.front().msn) >= 0 &&
         messages_.front().last_psn() - sent_.first() < 0) {
    const Message& m = messages_.front();
    complete(m, CompletionStatus::success);
    ++context_.stats.messages_completed;
    if (m.has_imm) --immediates_outstanding_;
    messages_.pop();
    --sending_;
    on_progress(now);
  }
  // A refusal confirms what came before the request that it refuses.
  if (aeth.syndrome != wire::Syndrome::ack) return status_of(aeth.syndrome);
  loss_.on_sack_done();
  drain_ev_changes(now);
  return CompletionStatus::success;
}

void Requester::refuse_acknowledgement(Time now, Psn cack) {
  ++context_.stats.acks_refused;
  context_.refused(now, RefusedPacket::bad_acknowledgement, cack.value);
}

// spec: timer
Duration Requester::timeout() const {
  const Duration base = std::max(Duration{timer_unit_ps << attributes_.timeout}, rtt_.silence() * 2);
  if (retries_ < attributes_.retry_linear) return base;
  const std::uint32_t doublings = std::min(retries_ - attributes_.retry_linear + 1, 24u);
  const Duration cap = attributes_.retry_exponential == retry_forever ? seconds(1) : Duration{timer_unit_ps << 24};
  const Duration longest = std::max(base, cap);
  // Compared the other way round, since the longest timers would overflow if doubled first.
  return base.ps > longest.ps >> doublings ? longest : Duration{base.ps << doublings};
}

Time Requester::deadline(Time now) const {
  Time at = ev_probe_.deadline() > now ? ev_probe_.deadline() : Time::never();
  if (!accusations_.empty()) at = std::min(at, accusations_.front().due);
  const bool waits = sent_.in_flight() || lost_count_ || has_unacknowledged_operation();
  if (!waits) return at;
  at = std::min(at, progress_at_ + timeout());
  if (silences_ < 3) at = std::min(at, active_at_ + rtt_.silence() * (1 << silences_));
  return at;
}

CompletionStatus Requester::on_timer(Time now) {
  if (!accusations_.empty()) {
    judge_accused(now);
    drain_ev_changes(now);
  }
  if (!(sent_.in_flight() || lost_count_ || has_unacknowledged_operation())) return CompletionStatus::success;
  if (now >= progress_at_ + timeout()) return on_timeout(now);
  if (silences_ < 3 && now >= active_at_ + rtt_.silence() * (1 << silences_)) on_silence(now);
  return CompletionStatus::success;
}

// Nothing has been sent or acknowledged for a while: send the newest packet again, then bare probes. Without timestamps
// the answer to a copy proves nothing about other packets, so there it is done once: many lost at the end would come back
// one a silence.
// spec: tail-probe
void Requester::on_silence(Time now) {
  active_at_ = now;
  if (sent_.in_flight()) {
    ++context_.stats.tail_probes;
    if (silences_ == 0 && (config_.timestamps || !tail_resent_)) tail_resend_ = true;
    else probe_wanted_ = true;
  } else if (has_unacknowledged_operation()) {
    solicitation_wanted_ = true;
  }
  ++silences_;
}

CompletionStatus Requester::on_timeout(Time now) {
  ++context_.stats.timeouts;
  ++retries_;
  const bool forever = attributes_.retry_exponential == retry_forever;
  if (!forever && retries_ > attributes_.retry_linear + attributes_.retry_exponential) return CompletionStatus::retry_exceeded;
  progress_at_ = active_at_ = now;
  silences_ = 0;
  for (std::uint32_t left = sent_.in_flight(); left && sent_[sent_.oldest()].sent_at + rtt_.silence() <= now; --left)
    declare_lost(now, sent_.oldest(), LossCause::timeout);
  if (has_unacknowledged_operation()) solicitation_wanted_ = true;
  drain_ev_changes(now);
  if (retries_ > 1) send_scouts(now);
  return CompletionStatus::success;
}

}  // namespace softmrc::proto
