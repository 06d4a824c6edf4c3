#include "proto/probe_timeout.h"

#include <algorithm>

namespace softmrc::proto {
namespace {

constexpr std::int64_t timer_unit_ps = 1'024'000;

}  // namespace

// spec: timer
Duration ProbeTimeout::timeout(Duration span) const {
  const Duration base = std::max(Duration{timer_unit_ps << timeout_}, span * 2);
  if (retries_ < retry_linear_) return base;
  const std::uint32_t doublings = std::min(retries_ - retry_linear_ + 1, 24u);
  const Duration cap = retry_exponential_ == retry_forever ? seconds(1) : Duration{timer_unit_ps << 24};
  const Duration longest = std::max(base, cap);
  // Compared the other way round, since the longest timers would overflow if doubled first.
  return base.ps > longest.ps >> doublings ? longest : Duration{base.ps << doublings};
}

Time ProbeTimeout::deadline(Time now, Duration span, Time conclusive) const {
  Time at = progress_at_ + timeout(span);
  if (backoff_until_ > now) at = std::min(at, backoff_until_);
  return std::min(at, probe_at(span, conclusive));
}

// First the newest packet again, then bare probes. Without timestamps the answer to a copy proves nothing about other
// packets, so there it is done once: many lost at the end would come back one a probe timeout.
// spec: tail-probe
bool ProbeTimeout::ping(Time now, bool has_packets_in_flight, bool has_open_operation) {
  active_at_ = asked_at_ = now;
  if (has_packets_in_flight)
    actions_ |= bit(probes_ == 0 && (timestamps_ || !copied_) ? ProbeAction::copy : ProbeAction::probe);
  else if (has_open_operation) solicit();
  ++probes_;
  return has_packets_in_flight;
}

bool ProbeTimeout::on_timeout(Time now) {
  ++retries_;
  ++unanswered_;
  if (retry_exponential_ != retry_forever && retries_ > retry_linear_ + retry_exponential_) return false;
  progress_at_ = active_at_ = now;
  probes_ = 0;
  return true;
}

ProbeTimeout::ProbeAction ProbeTimeout::next_action(bool has_packets_in_flight, bool can_solicit) {
  if (!has_packets_in_flight) actions_ &= ~bit(ProbeAction::copy);
  for (const ProbeAction action : {ProbeAction::copy, ProbeAction::probe})
    if (actions_ & bit(action)) return action;
  if (!can_solicit) actions_ &= ~bit(ProbeAction::solicitation);
  return actions_ ? ProbeAction::solicitation : ProbeAction::none;
}

void ProbeTimeout::on_action_done(ProbeAction action) {
  actions_ &= ~bit(action);
  if (action == ProbeAction::copy) copied_ = true;
}

std::optional<ProbeTimeout::Probe> ProbeTimeout::on_probe_answer(std::uint16_t id) {
  if (id != probe_id_ || probe_.sent_at == Time::never()) return std::nullopt;
  const Probe answered = probe_;
  probe_.sent_at = Time::never();
  probes_ = 0;
  probed_ports_ = 0;
  return answered;
}

// spec: nack-backoff
void ProbeTimeout::on_receiver_not_ready(Time now, std::uint8_t tx_count, Duration span) {
  active_at_ = now;
  if (tx_count > 1 && !is_backing_off(now)) back_off(now, span);
}

// Something came in: probes without an answer are repeated.
// spec: nack-backoff
void ProbeTimeout::on_trimmed(Time now, std::uint8_t tx_count, Duration span) {
  active_at_ = now;
  probes_ = 0;
  probed_ports_ = 0;
  unanswered_ = 0;
  if (tx_count >= trims_in_a_row && now - progress_at_ > span && !is_backing_off(now)) back_off(now, span);
}

void ProbeTimeout::back_off(Time now, Duration span) {
  backoff_until_ = now + std::min(span * (1 << std::min(backoffs_, 12u)), timeout(span));
  ++backoffs_;
}

}  // namespace softmrc::proto
