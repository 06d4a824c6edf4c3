#include "proto/reverse_paths.h"

#include <algorithm>
#include <bit>

namespace softmrc::proto {

void ReversePaths::build(const EvProfile& profile, std::uint32_t ports, Prng prng) {
  profile_ = &profile;
  prng_ = prng;
  paths_.resize(ports);
  for (std::uint32_t port = 0; port < ports; ++port) paths_[port].value = draw(port);
}

std::uint32_t ReversePaths::draw(std::uint32_t port) {
  if (profile_->mode != EvMode::explicit_) {
    const std::uint32_t bits = static_cast<std::uint32_t>(prng_.bits() >> 32);
    return profile_->value_bits == 32 ? bits : bits & ((1u << profile_->value_bits) - 1);
  }
  // Start anywhere in the controller's list and take the next entry of this port; validation promised that there is one.
  const std::uint32_t count = static_cast<std::uint32_t>(profile_->entries.size());
  std::uint32_t at = prng_.below(count);
  while (profile_->entries[at].port != port) at = (at + 1) % count;
  return profile_->entries[at].value;
}

// What breaks a link mostly breaks both directions, so the way the peer's last packet came is the best guess, if a list of
// ours has it; but not the only one.
std::uint32_t ReversePaths::redraw(std::uint32_t port) {
  const Path& path = paths_[port];
  const auto is_it = [&](const EvEntry& e) { return e.port == port && e.value == path.arrived_by; };
  const auto& list = profile_->entries;
  const bool is_ours = profile_->mode == EvMode::explicit_ && std::any_of(list.begin(), list.end(), is_it);
  return is_ours && prng_.below(4) ? path.arrived_by : draw(port);
}

std::optional<std::uint8_t> ReversePaths::choose(std::uint8_t arrival_port, std::uint32_t ports) {
  const auto is_free = [ports](std::uint32_t port) { return ports >> port & 1; };
  if (arrival_port < paths_.size() && is_free(arrival_port) && is_healthy(arrival_port)) return arrival_port;
  const std::uint32_t count = static_cast<std::uint32_t>(paths_.size());
  for (std::uint32_t i = 1; i <= count; ++i) {
    const std::uint32_t port = (arrival_port + i) % count;
    if (is_free(port) && is_healthy(port)) return static_cast<std::uint8_t>(port);
  }
  ports &= (1u << count) - 1;
  if (ports == 0) return std::nullopt;
  if (is_free(arrival_port) && prng_.below(4)) return arrival_port;
  for (std::uint32_t skip = prng_.below(static_cast<std::uint32_t>(std::popcount(ports))); skip; --skip) ports &= ports - 1;
  return static_cast<std::uint8_t>(std::countr_zero(ports));
}

bool ReversePaths::should_wait(std::uint32_t free_ports, std::uint32_t live_ports) const {
  const std::uint32_t healthy = healthy_ & live_ports & ((1u << paths_.size()) - 1);
  return healthy && !(healthy & free_ports);
}

void ReversePaths::on_data_acked(std::uint8_t port, std::uint32_t entropy, Time now) {
  if (port >= paths_.size()) return;
  paths_[port].value = entropy;
  confirm(port, now);
}

void ReversePaths::confirm(std::uint8_t port, Time now) {
  paths_[port].confirmed_at = now;
  healthy_ |= 1u << port;
  awaiting_ &= ~(1u << port);
}

void ReversePaths::on_doubt(Time now, Duration rtt) {
  if (now - doubted_at_ < rtt) return;
  doubted_at_ = now;
  for (std::uint32_t port = 0; port < paths_.size(); ++port)
    if (now - paths_[port].confirmed_at >= rtt) paths_[port].value = redraw(port);
}

std::optional<std::uint8_t> ReversePaths::next_probe(Time now, std::uint32_t live_ports, std::uint32_t free_ports, Duration rtt) {
  if (paths_.empty() || now < deadline()) return std::nullopt;
  if (to_probe_ == 0) judge_silent();
  if (receiving_ && to_probe_ == 0) {
    receiving_ = false;
    for (std::uint32_t port = 0; port < paths_.size(); ++port)
      if (now - paths_[port].confirmed_at >= interval_) to_probe_ |= 1u << port;
    interval_ = std::max(rtt, milliseconds(1));
  }
  to_probe_ &= live_ports;
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
  return port;
}

// The round is over: paths whose probe was not answered are held to be broken, and try another EV next time.
void ReversePaths::judge_silent() {
  awaits_ = false;
  healthy_ &= ~awaiting_;
  for (; awaiting_; awaiting_ &= awaiting_ - 1) {
    const auto port = static_cast<std::uint32_t>(std::countr_zero(awaiting_));
    paths_[port].value = redraw(port);
  }
}

void ReversePaths::on_answer(std::uint8_t port, Time now, Duration took) {
  if (port >= paths_.size() || took > interval_) return;
  confirm(port, now);
}

}  // namespace softmrc::proto
