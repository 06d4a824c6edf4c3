#include "proto/reverse_paths.h"

#include <algorithm>
#include <bit>

namespace softmrc::proto {

void ReversePaths::build(const EvProfile& profile, const EvSet& evs, Prng of_evs, std::uint32_t ports, Prng prng) {
  profile_ = &profile;
  evs_ = &evs;
  of_evs_ = of_evs;
  prng_ = prng;
  paths_.resize(ports);
  open_ = (1u << ports) - 1;
  for (std::uint32_t port = 0; port < ports; ++port) take(port, draw(port, set()));
  twin_.reset();
}

const EvSet& ReversePaths::set() {
  if (evs_->is_built()) {
    twin_.reset();
    return *evs_;
  }
  if (!twin_) {
    twin_ = std::make_unique<EvSet>();
    twin_->build(*profile_, static_cast<std::uint32_t>(paths_.size()), of_evs_);
  }
  return *twin_;
}

// spec: ev-denied ev-replace
void ReversePaths::on_evs_changed() {
  for (std::uint32_t port = 0; port < paths_.size(); ++port) {
    Path& path = paths_[port];
    if (path.ev != no_ev && (*evs_)[path.ev].value == path.value && (*evs_)[path.ev].state != EvState::denied) continue;
    take(port, draw(port, *evs_));
    // What was found out about the reverse path here, and what is still to be, is about another path.
    path.confirmed_at = Time::long_ago();
    healthy_ |= 1u << port;
    awaiting_ &= ~(1u << port);
  }
}

void ReversePaths::take(std::uint32_t port, const Choice& choice) {
  paths_[port].value = choice.value;
  paths_[port].ev = choice.ev;
  if (choice.ev == no_ev) open_ &= ~(1u << port);
  else open_ |= 1u << port;
}

ReversePaths::Choice ReversePaths::draw(std::uint32_t port, const EvSet& evs) {
  const std::uint16_t ev = evs.permitted_on(port, prng_);
  return ev == no_ev ? Choice{} : Choice{ev, evs[ev].value};
}

// What breaks a link mostly breaks both directions, so the way the peer's last packet came is the best guess, if a list
// of ours has it; but not the only one, and none where just that has failed.
ReversePaths::Choice ReversePaths::redraw(std::uint32_t port) {
  const EvSet& evs = set();
  const std::uint32_t arrived_by = paths_[port].arrived_by;
  const std::uint16_t same = profile_->mode == EvMode::explicit_ ? evs.find_on(port, arrived_by) : no_ev;
  return same != no_ev && same != paths_[port].ev && prng_.below(4) ? Choice{same, arrived_by} : draw(port, evs);
}

std::optional<std::uint8_t> ReversePaths::choose(std::uint8_t arrival_port, std::uint32_t ports) {
  ports &= open_;
  const auto is_free = [ports](std::uint32_t port) { return ports >> port & 1; };
  if (arrival_port < paths_.size() && is_free(arrival_port) && is_healthy(arrival_port)) return arrival_port;
  const std::uint32_t count = static_cast<std::uint32_t>(paths_.size());
  for (std::uint32_t i = 1; i <= count; ++i) {
    const std::uint32_t port = (arrival_port + i) % count;
    if (is_free(port) && is_healthy(port)) return static_cast<std::uint8_t>(port);
  }
  ports &= (1u << count) - 1;
  if (ports == 0) return std::nullopt;
  const std::uint32_t likely = likeliest(arrival_port, ports);
  if (is_free(likely) && prng_.below(4)) return static_cast<std::uint8_t>(likely);
  for (std::uint32_t skip = prng_.below(static_cast<std::uint32_t>(std::popcount(ports))); skip; --skip)
    ports &= ports - 1;
  return static_cast<std::uint8_t>(std::countr_zero(ports));
}

// A path that works in one direction only is found by probes, whose answers mostly take the wrong reverse path.
// Those few that arrive are remembered, so that not every message has to find that path again.
std::uint32_t ReversePaths::likeliest(std::uint32_t arrival_port, std::uint32_t ports) const {
  if (arrival_port >= paths_.size()) return arrival_port;
  std::uint32_t newest = arrival_port;
  for (std::uint32_t left = ports; left; left &= left - 1) {
    const auto port = static_cast<std::uint32_t>(std::countr_zero(left));
    if (paths_[port].answered_at > paths_[newest].answered_at) newest = port;
  }
  const Duration behind = paths_[newest].answered_at - paths_[arrival_port].answered_at;
  return behind > interval_ * max_rounds_silent ? newest : arrival_port;
}

bool ReversePaths::should_wait(std::uint32_t free_ports, std::uint32_t live_ports) const {
  const std::uint32_t healthy = healthy_ & open_ & live_ports & ((1u << paths_.size()) - 1);
  return healthy && !(healthy & free_ports);
}

void ReversePaths::on_data_acked(std::uint16_t ev, Time now) {
  const Ev& e = (*evs_)[ev];
  if (e.state == EvState::denied) return;
  take(e.port, {ev, e.value});
  confirm(e.port, now);
}

void ReversePaths::confirm(std::uint8_t port, Time now) {
  paths_[port].confirmed_at = paths_[port].answered_at = confirmed_at_ = now;
  healthy_ |= 1u << port;
  awaiting_ &= ~(1u << port);
}

void ReversePaths::on_suspect(Time now, Duration rtt) {
  if (now - suspected_at_ < rtt) return;
  suspected_at_ = now;
  for (std::uint32_t port = 0; port < paths_.size(); ++port)
    if (now - paths_[port].confirmed_at >= rtt) take(port, redraw(port));
}

std::optional<std::uint8_t> ReversePaths::next_probe(Time now, std::uint32_t live_ports, std::uint32_t free_ports,
                                                     Duration rtt, std::span<SharedReversePath> shared) {
  if (paths_.empty() || now < deadline()) return std::nullopt;
  if (to_probe_ == 0) judge_silent(now, shared);
  if (receiving_ && to_probe_ == 0) {
    receiving_ = false;
    for (std::uint32_t port = 0; port < paths_.size(); ++port)
      if (now - paths_[port].confirmed_at >= interval_) to_probe_ |= 1u << port;
    interval_ = std::max(rtt, milliseconds(1));
  }
  to_probe_ &= live_ports & open_;
  for (std::uint32_t left = shared.empty() ? 0 : to_probe_; left; left &= left - 1) {
    const auto port = static_cast<std::uint32_t>(std::countr_zero(left));
    if (now - shared[port].probed_at >= interval_) continue;
    believe(port, shared[port]);
    to_probe_ &= ~(1u << port);
  }
  if (to_probe_ == 0) {
    round_at_ = now + interval_;
    return std::nullopt;
  }
  if ((to_probe_ & free_ports) == 0) return std::nullopt;
  const auto port = static_cast<std::uint8_t>(std::countr_zero(to_probe_ & free_ports));
  to_probe_ &= ~(1u << port);
  if (to_probe_ == 0) round_at_ = now + interval_;
  awaiting_ |= 1u << port;
  awaits_ = true;
  if (!shared.empty()) shared[port].probed_at = now;
  return port;
}

// The round is over: paths whose probe was not answered are held to be broken, and try another EV next time.
void ReversePaths::judge_silent(Time now, std::span<SharedReversePath> shared) {
  awaits_ = false;
  healthy_ &= ~awaiting_;
  for (; awaiting_; awaiting_ &= awaiting_ - 1) {
    const auto port = static_cast<std::uint32_t>(std::countr_zero(awaiting_));
    take(port, redraw(port));
    if (!shared.empty()) shared[port].silent_at = now;
  }
}

// Its path is another one than ours, on the same plane: what is said of it says nothing about when ours was confirmed.
void ReversePaths::believe(std::uint32_t port, const SharedReversePath& way) {
  if (way.silent_at > way.answered_at) healthy_ &= ~(1u << port);
  if (way.answered_at <= std::max(way.silent_at, paths_[port].answered_at)) return;
  paths_[port].answered_at = way.answered_at;
  healthy_ |= 1u << port;
}

void ReversePaths::on_answer(std::uint8_t port, std::uint32_t entropy, Time now, Duration took,
                             std::span<SharedReversePath> shared) {
  if (port >= paths_.size()) return;
  paths_[port].answered_at = now;
  if (took > interval_) return;
  if (!shared.empty()) shared[port].answered_at = now;
  if (entropy != paths_[port].value) {
    const std::uint16_t earlier = set().find_on(port, entropy);
    if (earlier == no_ev) return;
    take(port, {earlier, entropy});
  }
  confirm(port, now);
}

}  // namespace softmrc::proto
