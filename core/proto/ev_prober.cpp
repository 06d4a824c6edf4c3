#include "proto/ev_prober.h"

#include <algorithm>

namespace softmrc::proto {

void EvProber::add(std::uint16_t ev, std::uint8_t port, std::uint8_t damping, Time now) {
  remove(ev);
  WithdrawnEv p;
  p.ev = ev;
  p.port = port;
  p.damping = damping;
  p.interval = interval_;
  p.due = damping && !none_left_ ? now + std::min(interval_ * (1 << (damping - 1)), interval_max_) : now;
  withdrawn_.push_back(p);
  refresh_deadline();
}

void EvProber::add_check(std::uint16_t ev, std::uint8_t port, Time now) {
  if (contains(ev)) return;
  add(ev, port, 0, now);
  withdrawn_.back().is_check = true;
}

void EvProber::remove(std::uint16_t ev) {
  std::erase_if(withdrawn_, [ev](const WithdrawnEv& p) { return p.ev == ev; });
  refresh_deadline();
}

bool EvProber::contains(std::uint16_t ev) const {
  return std::any_of(withdrawn_.begin(), withdrawn_.end(), [ev](const WithdrawnEv& p) { return p.ev == ev; });
}

void EvProber::set_none_left(bool desperate, Time now) {
  if (desperate && !none_left_)
    for (WithdrawnEv& p : withdrawn_) p.due = now;
  if (!desperate && none_left_) std::erase_if(withdrawn_, [](const WithdrawnEv& p) { return p.is_check; });
  none_left_ = desperate;
  refresh_deadline();
}

void EvProber::probe_port_now(std::uint8_t port, Time now) {
  for (WithdrawnEv& p : withdrawn_) {
    if (p.port != port) continue;
    p.interval = interval_;
    p.awaiting = false;
    p.due = std::min(p.due, now + (p.damping ? interval_ : Duration{0}));
  }
  refresh_deadline();
}

std::optional<std::uint16_t> EvProber::next_due(Time now, std::uint32_t live_ports, std::uint32_t free_ports,
                                                Duration round_trip) {
  for (WithdrawnEv& p : withdrawn_) {
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

bool EvProber::on_answer(std::uint16_t ev, Time now) {
  for (WithdrawnEv& p : withdrawn_) {
    if (p.ev != ev) continue;
    if (!p.awaiting) return false;
    p.awaiting = false;
    p.interval = interval_;
    p.due = p.damping ? now + interval_ : now;
    refresh_deadline();
    return ++p.answers >= (none_left_ ? 1 : answers_needed_);
  }
  return false;
}

void EvProber::refresh_deadline() {
  deadline_ = Time::never();
  for (const WithdrawnEv& p : withdrawn_) deadline_ = std::min(deadline_, p.due);
}

}  // namespace softmrc::proto
