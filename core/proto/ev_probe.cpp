#include "proto/ev_probe.h"

#include <algorithm>

namespace softmrc::proto {

void EvProbe::add(std::uint16_t ev, std::uint8_t port, std::uint8_t damping, Time now) {
  remove(ev);
  Patient p;
  p.ev = ev;
  p.port = port;
  p.damping = damping;
  p.interval = interval_;
  p.due = damping && !desperate_ ? now + std::min(interval_ * (1 << (damping - 1)), interval_max_) : now;
  patients_.push_back(p);
  refresh_deadline();
}

void EvProbe::add_scout(std::uint16_t ev, std::uint8_t port, Time now) {
  if (contains(ev)) return;
  add(ev, port, 0, now);
  patients_.back().is_scout = true;
}

void EvProbe::remove(std::uint16_t ev) {
  std::erase_if(patients_, [ev](const Patient& p) { return p.ev == ev; });
  refresh_deadline();
}

bool EvProbe::contains(std::uint16_t ev) const {
  return std::any_of(patients_.begin(), patients_.end(), [ev](const Patient& p) { return p.ev == ev; });
}

void EvProbe::set_desperate(bool desperate, Time now) {
  if (desperate && !desperate_)
    for (Patient& p : patients_) p.due = now;
  if (!desperate && desperate_) std::erase_if(patients_, [](const Patient& p) { return p.is_scout; });
  desperate_ = desperate;
  refresh_deadline();
}

void EvProbe::hurry_port(std::uint8_t port, Time now) {
  for (Patient& p : patients_) {
    if (p.port != port) continue;
    p.interval = interval_;
    p.awaiting = false;
    p.due = std::min(p.due, now + (p.damping ? interval_ : Duration{0}));
  }
  refresh_deadline();
}

std::optional<std::uint16_t> EvProbe::next_due(Time now, std::uint32_t live_ports, std::uint32_t free_ports,
                                               Duration round_trip) {
  for (Patient& p : patients_) {
    if (p.due > now) continue;
    const bool is_live = live_ports >> p.port & 1;
    if (is_live && !(free_ports >> p.port & 1)) continue;
    if (p.awaiting) {
      p.answers = 0;
      p.interval = std::min(p.interval * 2, interval_max_);
    }
    p.awaiting = is_live;
    p.due = now + std::max(p.interval, round_trip);
    if (!p.awaiting) continue;
    refresh_deadline();
    return p.ev;
  }
  refresh_deadline();
  return std::nullopt;
}

bool EvProbe::on_answer(std::uint16_t ev, Time now) {
  for (Patient& p : patients_) {
    if (p.ev != ev) continue;
    if (!p.awaiting) return false;
    p.awaiting = false;
    p.interval = interval_;
    p.due = p.damping ? now + interval_ : now;
    refresh_deadline();
    return ++p.answers >= (desperate_ ? 1 : answers_needed_);
  }
  return false;
}

void EvProbe::refresh_deadline() {
  deadline_ = Time::never();
  for (const Patient& p : patients_) deadline_ = std::min(deadline_, p.due);
}

}  // namespace softmrc::proto
