// What Requester holds to be lost: verdicts, the paths they blame, and the timers.
#include <algorithm>
#include <bit>

#include "proto/requester.h"

namespace softmrc::proto {

// Something sent more than W later has been acknowledged.
bool Requester::is_overtaken(const SentRecord& r) const {
  return loss_.left_at(r.sent_at) + reorder_window() < loss_.latest_acked_sent();
}

// And not only because its port has the longer queue.
bool Requester::is_late(const SentRecord& r) const {
  return loss_.left_at(r.sent_at) + reorder_window() + windows_.lag_of(port_of(r)) < loss_.latest_acked_sent();
}

// This SACK is no older than any evidence so far; what it covers and leaves out did not arrive. That makes suspects
// and late packets lost. The PSN after cack is always covered: had it arrived, cack would include it. If we know of as
// many out of order as the receiver counts, so is everything: it reports stretches in which something arrived, and of
// one that was lost as a whole it would never speak.
// spec: loss-same-ev loss-across-evs loss-covered
void Requester::detect_losses(const wire::Sack& sack) {
  if (sack.bitmap) record_holes(Psn(sack.cack_psn) + sack.sack_offset, sack.bitmap);
  const bool suspects_too = suspect_count_ && clock_ >= suspect_clock_;
  const bool some_are_late = is_overtaken(sent_[sent_.oldest()]);
  if (!suspects_too && !some_are_late) return;
  const Psn after_cack = Psn(sack.cack_psn) + 1;
  detect_left_out(after_cack, 1, suspects_too);
  if (sack.bitmap) detect_left_out(Psn(sack.cack_psn) + sack.sack_offset, ~sack.bitmap, suspects_too);
  if (!some_are_late) return;
  detect_holes();
  const auto settled = static_cast<std::uint32_t>(next_psn_ - sent_.first()) - sent_.in_flight() - lost_count_;
  if (sack.cc.ooo_count != settled) return;
  const Psn first = after_cack - sent_.first() > 0 ? after_cack : sent_.first();
  for (Psn base = first; base - next_psn_ < 0; base = base + 64) detect_left_out(base, ~0ull, false);
}

// What this SACK leaves out before the last that it reports. If one of these arrives after all, its 64 PSNs have news
// and are soon reported again; so for rule (b) it need not be covered once more when it turns out to be late. Without
// this the packets that one slow path holds would be missed one by one, as cack reaches them.
// spec: loss-holes
void Requester::record_holes(Psn base, std::uint64_t bitmap) {
  std::uint64_t holes = ~bitmap & ~0ull >> std::countl_zero(bitmap);
  const std::int32_t behind = sent_.first() - base;
  if (behind >= 64) return;
  if (behind > 0) {
    holes >>= behind;
    base = sent_.first();
  }
  const std::int32_t room = next_psn_ - base;
  if (room <= 0) return;
  if (room < 64) holes &= (1ull << room) - 1;
  if (holes) holes_.set_window(base.value, holes);
}

void Requester::detect_holes() {
  std::uint32_t left = sent_.in_flight();
  for (Psn psn = sent_.oldest(); left && is_overtaken(sent_[psn]); psn = sent_.newer_than(psn), --left) {
    if (!is_late(sent_[psn]) || !holes_.test(psn.value) || acked_.test(psn.value) || detected_.test(psn.value))
      continue;
    detected_.set(psn.value);
    ++detected_count_;
  }
}

void Requester::detect_left_out(Psn base, std::uint64_t left_out, bool suspects_too) {
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
    if (r.state != SentState::in_flight || detected_.test(psn.value)) continue;
    if (!(suspects_too && suspects_.test(psn.value)) && !is_late(r)) continue;
    detected_.set(psn.value);
    ++detected_count_;
  }
}

void Requester::end_batch(Time now) {
  if (detected_count_ == 0 && trim_waits_.empty()) return;
  commit_losses(now);
  drain_ev_changes(now);
}

void Requester::commit_losses(Time now) {
  if (!trim_waits_.empty()) expire_trim_waits(now);
  if (detected_count_ == 0) return;
  declare_detected(now, LossCause::same_ev);
  drain_ev_changes(now);
  declare_detected(now, LossCause::across_evs);
  // Nothing sent later on these paths has come back either; waiting for each packet's own evidence would cost a round
  // trip per packet. A path withdrawn by (a) is different: it just delivered.
  for (std::size_t i = 0; i < evs_.changes().size(); ++i) {
    const std::uint16_t ev = evs_.changes()[i];
    while (evs_[ev].state == EvState::assumed_bad && sent_.in_flight_on(ev))
      declare_lost(now, sent_.oldest_on(ev), LossCause::with_path);
  }
}

// Suspects by (a), all others by (b).
void Requester::declare_detected(Time now, LossCause cause) {
  const std::uint32_t window = static_cast<std::uint32_t>(next_psn_ - sent_.first());
  std::uint32_t at = 0;
  while (detected_count_ && (at += detected_.distance_to_set((sent_.first() + at).value, window - at)) < window) {
    const Psn psn = sent_.first() + at++;
    if (cause == LossCause::across_evs || (suspect_count_ && suspects_.test(psn.value))) declare_lost(now, psn, cause);
  }
}

void Requester::declare_lost(Time now, Psn psn, LossCause cause) {
  SentRecord& r = sent_[psn];
  SOFTMRC_CHECK(r.state == SentState::in_flight);
  clear_loss_marks(psn);
  sent_.unlink(psn);
  windows_.on_gone(port_of(r), r.bytes);
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
  charge_path(now, psn, r, cause);
  r.window_charged = cause != LossCause::nacked;
  if (r.window_charged) windows_.on_loss(now, port_of(r), r.bytes);
  if (context_.event_log().traces(EventType::packet_lost)) [[unlikely]] {
    Event e = context_.event(EventType::packet_lost, now);
    e.psn = psn.value;
    e.ev = evs_[r.ev].value;
    e.port = evs_[r.ev].port;
    e.code = static_cast<std::uint32_t>(cause);
    e.value = static_cast<std::uint64_t>((now - r.sent_at).ps);
    context_.event_log().trace(e);
  }
}

// A timer proves nothing about one path, since none answered; only a second in a row is held against them.
// spec: trim-late-nack
void Requester::charge_path(Time now, Psn psn, SentRecord& r, LossCause cause) {
  r.path_charged = cause == LossCause::same_ev || cause == LossCause::across_evs ||
                   (cause == LossCause::timeout && pto_.is_persistent());
  if (!r.path_charged) return;
  // A later packet of this path came through. Where switches trim, so may the header of this one have, and the NACK
  // that it caused be slower than the SACK on another plane. The packet is retransmitted at once; the path is given
  // that long.
  if (cause == LossCause::same_ev && config_.peer_trim_nack) {
    trim_waits_.push({r.sent_at, now + reorder_window(), psn, r.ev});
    return;
  }
  evs_.on_loss(r.ev, r.sent_at, loss_.latest_acked_sent(), std::max(rtt_.base(), rtt_.smoothed()) * 3);
}

void Requester::expire_trim_waits(Time now) {
  while (!trim_waits_.empty() && trim_waits_.front().due <= now) {
    const TrimWait a = trim_waits_.front();
    trim_waits_.pop();
    if (a.ev == no_ev) continue;
    evs_.on_loss(a.ev, a.sent_at, loss_.latest_acked_sent(), std::max(rtt_.base(), rtt_.smoothed()) * 3);
  }
}

// The trim_wait of this packet, on this EV (or any) or with this timestamp, if there was one.
std::optional<Requester::TrimWait> Requester::cancel_trim_wait(Psn psn, std::uint16_t ev,
                                                               std::optional<std::uint16_t> ticks) {
  for (std::size_t i = 0; i < trim_waits_.size(); ++i) {
    TrimWait& a = trim_waits_[i];
    if (a.psn != psn || a.ev == no_ev) continue;
    if (ticks ? *ticks != timestamp_ticks(a.sent_at) : ev != no_ev && a.ev != ev) continue;
    const TrimWait withdrawn = a;
    a.ev = no_ev;
    return withdrawn;
  }
  return std::nullopt;
}

// A question sent from here on, once it is answered, makes the oldest packet in flight late. Where its port still
// answers it is not asked: what comes late there is on its way.
Time Requester::conclusive_from() const {
  if (!sent_.in_flight()) return Time::never();
  const SentRecord& r = sent_[sent_.oldest()];
  const Duration late = reorder_window() + windows_.lag_of(port_of(r));
  const Time answered_at = answered_at_[port_of(r)];
  return std::max(loss_.left_at(r.sent_at) + std::max(late, pto_interval()), answered_at + pto_interval()) +
         nanoseconds(1);
}

Time Requester::deadline(Time now) const {
  Time at = ev_prober_.deadline() > now ? ev_prober_.deadline() : Time::never();
  if (!trim_waits_.empty()) at = std::min(at, trim_waits_.front().due);
  return waits() ? std::min(at, pto_.deadline(now, pto_interval(), conclusive_from())) : at;
}

CompletionStatus Requester::on_timer(Time now) {
  if (!trim_waits_.empty()) {
    expire_trim_waits(now);
    drain_ev_changes(now);
  }
  if (!waits()) return CompletionStatus::success;
  switch (pto_.due(now, pto_interval(), conclusive_from())) {
    case ProbeTimeout::Due::timeout: return on_timeout(now);
    case ProbeTimeout::Due::probe:
      if (pto_.ping(now, sent_.in_flight(), messages_.has_sent_operation())) ++context_.stats.tail_probes;
      break;
    case ProbeTimeout::Due::nothing: break;
  }
  return CompletionStatus::success;
}

CompletionStatus Requester::on_timeout(Time now) {
  ++context_.stats.timeouts;
  if (!pto_.on_timeout(now)) return CompletionStatus::retry_exceeded;
  for (std::uint32_t left = sent_.in_flight(); left && sent_[sent_.oldest()].sent_at + pto_interval() <= now; --left)
    declare_lost(now, sent_.oldest(), LossCause::timeout);
  if (messages_.has_sent_operation()) pto_.solicit();
  drain_ev_changes(now);
  if (pto_.is_persistent()) send_checks(now);
  return CompletionStatus::success;
}

}  // namespace softmrc::proto
