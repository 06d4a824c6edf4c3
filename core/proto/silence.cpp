#include "proto/silence.h"

#include <algorithm>

namespace softmrc::proto {
namespace {

constexpr std::int64_t timer_unit_ps = 1'024'000;

}  // namespace

// spec: timer
Duration Silence::timeout(Duration span) const {
  const Duration base = std::max(Duration{timer_unit_ps << timeout_}, span * 2);
  if (retries_ < retry_linear_) return base;
  const std::uint32_t doublings = std::min(retries_ - retry_linear_ + 1, 24u);
  const Duration cap = retry_exponential_ == retry_forever ? seconds(1) : Duration{timer_unit_ps << 24};
  const Duration longest = std::max(base, cap);
  // Compared the other way round, since the longest timers would overflow if doubled first.
  return base.ps > longest.ps >> doublings ? longest : Duration{base.ps << doublings};
}

Time Silence::deadline(Time now, Duration span, Time conclusive) const {
  Time at = progress_at_ + timeout(span);
  if (held_until_ > now) at = std::min(at, held_until_);
  return std::min(at, asks_at(span, conclusive));
}

// First the newest packet again, then bare probes. Without timestamps the answer to a copy proves nothing about other
// packets, so there it is done once: many lost at the end would come back one a silence.
// spec: tail-probe
bool Silence::ask(Time now, bool has_packets_in_flight, bool has_open_operation) {
  active_at_ = asked_at_ = now;
  if (has_packets_in_flight) wishes_ |= bit(questions_ == 0 && (timestamps_ || !copied_) ? Wish::copy : Wish::probe);
  else if (has_open_operation) solicit();
  ++questions_;
  return has_packets_in_flight;
}

bool Silence::on_timeout(Time now) {
  ++retries_;
  ++unheard_;
  if (retry_exponential_ != retry_forever && retries_ > retry_linear_ + retry_exponential_) return false;
  progress_at_ = active_at_ = now;
  questions_ = 0;
  return true;
}

Silence::Wish Silence::next_wish(bool has_packets_in_flight, bool can_solicit) {
  if (!has_packets_in_flight) wishes_ &= ~bit(Wish::copy);
  for (const Wish wish : {Wish::copy, Wish::probe})
    if (wishes_ & bit(wish)) return wish;
  if (!can_solicit) wishes_ &= ~bit(Wish::solicitation);
  return wishes_ ? Wish::solicitation : Wish::none;
}

void Silence::on_granted(Wish wish) {
  wishes_ &= ~bit(wish);
  if (wish == Wish::copy) copied_ = true;
}

std::optional<Silence::Probe> Silence::on_probe_answer(std::uint16_t id) {
  if (id != probe_id_ || probe_.sent_at == Time::never()) return std::nullopt;
  const Probe answered = probe_;
  probe_.sent_at = Time::never();
  questions_ = 0;
  asked_ports_ = 0;
  return answered;
}

// spec: nack-backoff
void Silence::on_not_taken(Time now, std::uint8_t tx_count, Duration span) {
  active_at_ = now;
  if (tx_count > 1 && !holds(now)) hold(now, span);
}

// The network was heard: what was asked in vain is asked anew.
// spec: nack-backoff
void Silence::on_trimmed(Time now, std::uint8_t tx_count, Duration span) {
  active_at_ = now;
  questions_ = 0;
  asked_ports_ = 0;
  unheard_ = 0;
  if (tx_count >= trims_in_a_row && now - progress_at_ > span && !holds(now)) hold(now, span);
}

void Silence::hold(Time now, Duration span) {
  held_until_ = now + std::min(span * (1 << std::min(holds_, 12u)), timeout(span));
  ++holds_;
}

}  // namespace softmrc::proto
