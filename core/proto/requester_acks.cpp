// The receiving side of Requester: SACKs, NACKs, transport ACKs. What they make lost: requester_loss.cpp.
#include <algorithm>
#include <bit>

#include "proto/requester.h"

namespace softmrc::proto {
namespace {

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

// Which transmission of a packet in flight the SACK answers: its timestamp tells. Without one, the path that it
// reflects does, as long as there were but two of them, on different paths.
// spec: loss-copies
AckedCopy Requester::acked_copy(const SentRecord& r, const wire::Sack& sack) const {
  if (config_.timestamps)
    return sack.cc.tx_timestamp == timestamp_ticks(r.sent_at) ? AckedCopy::newest : AckedCopy::earlier;
  if (r.tx_count == 1) return AckedCopy::newest;
  const bool is_known = r.tx_count == 2 && r.ev < evs_.size() && r.previous_ev < evs_.size() && r.ev != r.previous_ev;
  if (is_known && sack.entropy == evs_[r.ev].value) return AckedCopy::newest;
  return is_known && sack.entropy == evs_[r.previous_ev].value ? AckedCopy::earlier : AckedCopy::unknown;
}

// Valid when it is certain which transmission the SACK answers.
// spec: rtt-valid
std::optional<Duration> Requester::sample_rtt(Time now, Psn psn, const wire::Sack& sack) {
  if (!is_outstanding(psn)) return std::nullopt;
  const SentRecord& r = sent_[psn];
  if (r.state != SentState::in_flight || acked_copy(r, sack) != AckedCopy::newest) return std::nullopt;
  const Duration rtt = now - r.sent_at;
  measure(rtt, r.tx_count == 1);
  note_round_trip(now, r.ev, rtt, true);
  return rtt;
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

// spec: mpr-dynamic
CompletionStatus Requester::on_sack(Time now, const wire::Sack& sack) {
  ++context_.stats.sacks_received;
  const Psn cack(sack.cack_psn);
  if (!evs_.is_built() || cack - next_psn_ >= 0) {
    refuse_acknowledgement(now, cack);
    return CompletionStatus::success;
  }
  AckSample info;
  bool is_newest = false;
  info.new_bytes = advance_clock(sack.cc, is_newest);
  info.marked = sack.mark != wire::Mark::none;

  const Psn trigger = cack + sack.ack_psn_offset;
  const std::uint32_t port = is_outstanding(trigger) ? port_of(sent_[trigger]) : max_ports;
  if (sack.answers_probe) {
    if (const auto probe = pto_.on_probe_answer(sack.probe_id())) {
      loss_.on_probe_answered(probe->sent_at);
      measure(now - probe->sent_at, true);
      if (pto_.is_persistent()) on_path_works(probe->ev);
    }
  } else {
    if (is_outstanding(trigger) && sent_[trigger].is_ambiguous) [[unlikely]]
      attribute_first_copy(trigger, sack);
    info.round_trip = sample_rtt(now, trigger, sack);
    if (info.round_trip) info.delay = std::max(*info.round_trip - rtt_.base(), Duration{0});
    apply_mark(trigger, sack);
    if (is_outstanding(trigger)) {
      resolve_copies(trigger, sack);
      acknowledge_bits(now, trigger, 1);
    }
  }
  acknowledge_through(now, cack);
  if (sack.bitmap) acknowledge_bits(now, cack + sack.sack_offset, sack.bitmap);
  if (sack.mpr && context_.dynamic_mpr && is_newest) {
    if (sack.mpr < smallest_mpr) refuse_acknowledgement(now, cack);
    else widen_window(cack + 1 + sack.mpr * mpr_unit);
  }
  loss_.on_sack_done();
  if (is_newest && sent_.in_flight()) detect_losses(sack);
  if (!context_.endpoint->in_batch) commit_losses(now);

  info.base_rtt = rtt_.base();
  info.penalty = sack.cc.rcv_cwnd_pen;
  info.restore = sack.cc.restore_cwnd;
  windows_.on_sack(now, info, port);
  drain_ev_changes(now);
  if (context_.event_log().traces(EventType::window)) [[unlikely]] {
    Event e = context_.event(EventType::window, now);
    e.value = window();
    e.psn = static_cast<std::uint32_t>(windows_.in_flight());
    context_.event_log().trace(e);
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
    if (sent_[psn].state != SentState::acked) on_packet_acked(now, psn);
  }
  acked_.clear_run(first.value, static_cast<std::uint32_t>(count));
  holes_.clear_run(first.value, static_cast<std::uint32_t>(count));
  sent_.advance(cack + 1);
  // Where SACKs carry the window, cack alone promises no more than the smallest.
  widen_window(sent_.first() + (context_.dynamic_mpr ? smallest_mpr : attributes_.mpr) * mpr_unit);
  pto_.on_progress(now);
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
    on_packet_acked(now, psn);
    pto_.on_progress(now);
  }
}

void Requester::on_packet_acked(Time now, Psn psn) {
  SentRecord& r = sent_[psn];
  if (context_.event_log().traces(EventType::packet_acked)) [[unlikely]] {
    Event e = context_.event(EventType::packet_acked, now);
    e.psn = psn.value;
    e.ev = evs_[r.ev].value;
    e.port = evs_[r.ev].port;
    e.value = static_cast<std::uint64_t>((now - r.sent_at).ps);
    context_.event_log().trace(e);
  }
  if (r.state == SentState::lost || r.answers == AckedCopy::earlier ||
      (r.answers == AckedCopy::unknown && is_too_soon(now, r))) {
    undo_loss(now, psn, r);
    return;
  }
  clear_loss_marks(psn);
  // What may answer either copy says nothing about when, or by which path, the packet arrived.
  const bool is_evidence = r.answers == AckedCopy::newest;
  if (is_evidence) suspect_older_on_ev(r.ev, psn);
  sent_.unlink(psn);
  windows_.on_gone(port_of(r), r.bytes);
  r.state = SentState::acked;
  if (!is_evidence) return;
  answered_at_[port_of(r)] = now;
  windows_.on_arrived(port_of(r), r.bytes, now - r.sent_at);
  if (pto_.is_persistent()) on_path_works(r.ev);
  evs_.on_acked(r.ev, r.sent_at);
  loss_.on_acked(now, r.sent_at, rtt_.smoothed());
}

void Requester::resolve_copies(Psn psn, const wire::Sack& sack) {
  SentRecord& r = sent_[psn];
  if (r.answers != AckedCopy::newest && r.state == SentState::in_flight) r.answers = acked_copy(r, sack);
}

// A packet was retransmitted by a timer, and this SACK says which copy it answers. If the second, and the path of
// the first has acknowledged nothing for three round trips, that path lost it. Without this verdict a flow of one
// packet at a time would lose time on the same dead path in every round.
void Requester::attribute_first_copy(Psn psn, const wire::Sack& sack) {
  SentRecord& r = sent_[psn];
  r.is_ambiguous = false;
  if (r.state != SentState::in_flight || r.previous_ev == r.ev || acked_copy(r, sack) != AckedCopy::newest) return;
  const Duration three_rtt = std::max(rtt_.base(), rtt_.smoothed()) * 3;
  const Time unacked_since = evs_[r.previous_ev].unacked_since;
  if (unacked_since == Time::never() || r.sent_at - unacked_since <= three_rtt) return;
  evs_.on_loss(r.previous_ev, unacked_since, r.sent_at, three_rtt);
}

// The packet was declared lost, and here it is: the verdict on its path falls.
// spec: loss-undone
void Requester::undo_loss(Time now, Psn psn, SentRecord& r) {
  const bool was_waiting = r.state == SentState::lost;
  const std::uint16_t ev = was_waiting ? r.ev : r.previous_ev;
  if (was_waiting) {
    lost_.clear(psn.value);
    --lost_count_;
    if (loss_.latest_acked_sent() > r.sent_at) loss_.on_lag(loss_.latest_acked_sent() - r.sent_at);
  } else {
    clear_loss_marks(psn);
    sent_.unlink(psn);
    windows_.on_gone(port_of(r), r.bytes);
  }
  r.state = SentState::acked;
  // Whichever transmission this answers, it took at least so long: longer than the timer had allowed for. Or its
  // answers were lost, and it is we who took so long to ask again: so it is not taken for more than a network's.
  // spec: timer-outgrown
  const Duration took = std::min(now - r.sent_at, ProbeTimeout::longest_guess);
  if (pto_.has_timed_out() && rtt_.has_sample() && took > pto_interval()) rtt_.on_sample(took, false);
  ++context_.stats.loss_spurious;
  if (r.window_charged) windows_.on_loss_undone(evs_[ev == no_ev ? r.ev : ev].port, r.bytes);
  // What was retransmitted had waited for W at least before that.
  if (ev != no_ev)
    note_round_trip(now, ev, was_waiting ? now - r.sent_at : now - r.sent_at + reorder_window(), was_waiting);
  cancel_trim_wait(psn, ev, std::nullopt);
  if (r.path_charged && ev != no_ev && evs_[ev].state == EvState::assumed_bad &&
      evs_.on_spurious(ev, given_up_sent_at(r))) {
    evs_.suspend(ev, now, suspend_span());
    ++context_.stats.evs_restored;
  }
  Event e = context_.event(EventType::packet_spurious, now);
  e.psn = psn.value;
  if (ev != no_ev) {
    e.ev = evs_[ev].value;
    e.port = evs_[ev].port;
  }
  context_.event_log().trace(e);
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

void Requester::clear_loss_marks(Psn psn) {
  if (suspect_count_ && suspects_.test(psn.value)) {
    suspects_.clear(psn.value);
    --suspect_count_;
  }
  if (detected_count_ && detected_.test(psn.value)) {
    detected_.clear(psn.value);
    --detected_count_;
  }
}

CompletionStatus Requester::on_nack(Time now, const wire::Nack& nack) {
  ++context_.stats.nacks_received;
  const Psn psn(nack.nack_psn);
  if (nack.reason == wire::NackReason::unexpected_event) {
    // The last acknowledgement of another connection, one that had these numbers before us, is not for us.
    if (is_unconfirmed(psn)) return CompletionStatus::peer_error;
    refuse_acknowledgement(now, psn);
    return CompletionStatus::success;
  }
  const bool is_trim = nack.reason == wire::NackReason::trimmed || nack.reason == wire::NackReason::trimmed_last_hop;
  if (!evs_.is_built() || (is_trim && resolves_trim_wait(now, nack)) || !is_outstanding(psn))
    return CompletionStatus::success;
  SentRecord& r = sent_[psn];
  // A NACK of an earlier transmission says nothing about the one under way.
  const bool is_of_last = r.tx_count == 1 ||
                          (config_.timestamps ? nack.tx_timestamp == timestamp_ticks(r.sent_at) : !is_too_soon(now, r));
  if (r.state != SentState::in_flight || !is_of_last) {
    if (is_trim && r.state != SentState::acked) on_late_trim(now, r, is_of_last, nack.reason);
    return CompletionStatus::success;
  }
  const std::uint64_t bytes = r.bytes;
  declare_lost(now, psn, LossCause::nacked);
  if (is_trim) {
    report_trim(now, r.ev, r.sent_at, nack.reason, bytes);
    pto_.on_trimmed(now, r.tx_count, pto_interval());
  } else {
    pto_.on_receiver_not_ready(now, r.tx_count, pto_interval());
    drain_ev_changes(now);
  }
  return CompletionStatus::success;
}

// A header that came through shows that the path works. The last hop's queue is no path's fault.
void Requester::report_trim(Time now, std::uint16_t ev, Time sent_at, wire::NackReason reason, std::uint64_t bytes) {
  ++context_.stats.trims_reported;
  evs_.on_acked(ev, sent_at);
  if (reason == wire::NackReason::trimmed) evs_.suspend(ev, now, suspend_span());
  windows_.on_trim(now, evs_[ev].port, bytes);
  drain_ev_changes(now);
}

// The packet was given up before its NACK came, which was slower than a SACK on another plane. It is as good a report
// on the path and on the congestion there as one in time; the window was cut already.
// spec: trim-late-nack
bool Requester::resolves_trim_wait(Time now, const wire::Nack& nack) {
  const Psn psn(nack.nack_psn);
  const auto ticks = config_.timestamps ? std::optional(nack.tx_timestamp) : std::nullopt;
  const auto trim_wait = cancel_trim_wait(psn, no_ev, ticks);
  if (!trim_wait) return false;
  evs_.on_acked(trim_wait->ev, trim_wait->sent_at);
  // Without timestamps it may as well be the copy's.
  if (!config_.timestamps) return false;
  if (is_outstanding(psn)) {
    SentRecord& r = sent_[psn];
    r.path_charged = false;
    if (r.state == SentState::lost) r.was_nacked = true;
    else if (r.tx_count == 2) r.answers = AckedCopy::newest;
  }
  report_trim(now, trim_wait->ev, trim_wait->sent_at, nack.reason, 0);
  return true;
}

// The same where the path was withdrawn at once.
void Requester::on_late_trim(Time now, SentRecord& r, bool is_of_last, wire::NackReason reason) {
  const bool is_waiting = r.state == SentState::lost;
  // Of a packet sent more than twice it is not known which copy is meant.
  const bool is_told = is_waiting ? r.was_nacked || !is_of_last : r.answers == AckedCopy::newest || r.tx_count != 2;
  const std::uint16_t ev = is_waiting ? r.ev : r.previous_ev;
  if (is_told || ev == no_ev) return;
  if (is_waiting) r.was_nacked = true;
  else r.answers = AckedCopy::newest;
  if (r.path_charged && evs_[ev].state == EvState::assumed_bad) {
    if (evs_.on_spurious(ev, given_up_sent_at(r))) ++context_.stats.evs_restored;
    r.path_charged = false;
  }
  report_trim(now, ev, is_waiting ? r.sent_at : Time::long_ago(), reason, 0);
}

// Whether an acknowledgement can be of what is under way: of packets that were sent, and of operations whose last
// packet it covers. A refusal ends the connection, so it has to be about the oldest operation that is not confirmed, or
// a later one.
bool Requester::is_credible(const wire::Aeth& aeth, Psn cack) const {
  if (!evs_.is_built() || cack - next_psn_ >= 0) return false;
  const std::int32_t ahead = messages_.empty() ? -1 : Msn(aeth.msn) - Msn(messages_.front().msn);
  if (aeth.syndrome != wire::Syndrome::ack) {
    const bool is_under_way = messages_.has_begun() && cack + 1 - messages_.front().first_psn >= 0;
    if (!is_under_way || ahead < -1) return false;
  }
  if (ahead < 0) return true;
  const auto last = static_cast<std::size_t>(ahead);
  return last < messages_.size() && messages_[last].is_sent && messages_[last].last_psn() - cack <= 0;
}

// spec: in-order nak
CompletionStatus Requester::on_ack(Time now, const wire::Aeth& aeth, Psn cack) {
  ++context_.stats.acks_received;
  if (!is_credible(aeth, cack)) {
    refuse_acknowledgement(now, cack);
    return CompletionStatus::success;
  }
  // Older than the last that confirmed an operation, which said more: whatever PSN it names is no news.
  if (messages_.empty() || Msn(aeth.msn) - Msn(messages_.front().msn) < -1) return CompletionStatus::success;
  acknowledge_through(now, cack);
  const Msn confirmed(aeth.msn);
  while (messages_.has_sent_operation() && confirmed - Msn(messages_.front().msn) >= 0 &&
         messages_.front().last_psn() - sent_.first() < 0) {
    complete(messages_.front(), CompletionStatus::success);
    ++context_.stats.messages_completed;
    messages_.confirm();
    if (messages_.empty()) --context_.endpoint->senders;
    pto_.on_progress(now);
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

}  // namespace softmrc::proto
