#include "sim/process.h"

#include <algorithm>
#include <array>
#include <bit>

namespace softmrc::sim {
namespace {

constexpr std::uint32_t max_rounds = 4;
constexpr std::uint32_t max_short_rounds = 64;  // where planes are checked for room again after a few packets

}  // namespace

Duration Process::lapse() {
  const Duration most = prng_.chance(config_.hold_up) ? config_.hold_up_time : config_.pace;
  return Duration{static_cast<std::int64_t>(prng_.unit() * static_cast<double>(most.ps))};
}

bool Process::arrive(Time now, std::uint32_t plane, std::uint32_t packet) {
  if (config_.max_waiting && waiting_[plane].size() >= config_.max_waiting) return false;
  waiting_[plane].push_back(packet);
  kick(now);
  return true;
}

void Process::kick(Time now) { woken_at_ = std::min(woken_at_, now); }

Time Process::next_at(proto::Endpoint& endpoint, const Surroundings& around) const {
  if (doing_ != Doing::sleeping) return resumes_at_;
  const Time reason = std::min(
      {woken_at_, endpoint.poll_timeout(), around.next_free_port(), around.progress_handlers_at()});
  return reason == Time::never() ? reason : std::max(reason, resumes_at_) + waking_;
}

void Process::step(Time now, proto::Endpoint& endpoint, Surroundings& around) {
  switch (doing_) {
    case Doing::sleeping: look(endpoint); break;
    case Doing::receiving: receive(now, endpoint, around); break;
    case Doing::polling: poll(now, endpoint, around); break;
    case Doing::sending: send(now, endpoint, around); break;
  }
  // Asleep, the lapse is what waking up will take, whenever that is.
  resumes_at_ = now;
  if (doing_ == Doing::sleeping) waking_ = lapse();
  else resumes_at_ = now + lapse();
}

std::uint32_t Process::planes_with_packets() const {
  std::uint32_t planes = 0;
  for (std::uint32_t plane = 0; plane < waiting_.size(); ++plane)
    if (!waiting_[plane].empty()) planes |= 1u << plane;
  return planes;
}

void Process::look(proto::Endpoint& endpoint) {
  woken_at_ = Time::never();
  rounds_ = 0;
  ready_ = more_ ? more_ : planes_with_packets();
  more_ = 0;
  doing_ = ready_ ? Doing::receiving : Doing::polling;
  if (ready_) endpoint.begin_batch();
}

void Process::receive(Time now, proto::Endpoint& endpoint, Surroundings& around) {
  const auto plane = static_cast<std::uint32_t>(std::countr_zero(ready_));
  ready_ &= ready_ - 1;
  auto& queue = waiting_[plane];
  std::uint32_t taken = 0;
  for (; taken < config_.max_received && !queue.empty(); ++taken) {
    around.hand_in(queue.front());
    queue.pop_front();
  }
  // It took all it can hold, so it supposes that there is more.
  if (taken == config_.max_received) more_ |= 1u << plane;
  if (ready_) return;
  // A plane that has more has not had its say yet, nor have those that got something in this batch.
  if (more_ == 0 || ++turns_in_batch_ == proto::max_turns_in_batch) {
    endpoint.end_batch(now);
    turns_in_batch_ = 0;
  }
  if (more_) {
    more_ |= planes_with_packets();
    kick(now);
  }
  doing_ = Doing::polling;
}

void Process::poll(Time now, proto::Endpoint& endpoint, Surroundings& around) {
  if (rounds_ == 0) {
    if (endpoint.poll_timeout() <= now) endpoint.handle_timeout(now);
    if (around.progress()) kick(now);
  }
  polled_at_ = now;
  std::uint32_t ports = around.free_ports();
  std::array<std::uint32_t, proto::max_ports> given{};
  while (ports && hand_.size() < config_.max_sent) {
    proto::Transmit transmit;
    if (!endpoint.poll_transmit(now, ports, transmit)) break;
    hand_.push_back(transmit);
    if (++given[transmit.port] == config_.port_burst) ports &= ~(1u << transmit.port);
  }
  if (!hand_.empty()) {
    doing_ = Doing::sending;
    return;
  }
  doing_ = Doing::sleeping;
}

// Plane by plane, as sockets are written to, and those first that begin with data.
void Process::send(Time now, proto::Endpoint& endpoint, Surroundings& around) {
  std::uint32_t planes = 0;
  std::uint32_t with_data = 0;
  for (const proto::Transmit& t : hand_) {
    const std::uint32_t bit = 1u << t.port;
    if (!(planes & bit) && t.traffic_class != proto::TrafficClass::control) with_data |= bit;
    planes |= bit;
  }
  for (const std::uint32_t group : {with_data, planes & ~with_data})
    for (std::uint32_t left = group; left; left &= left - 1)
      for (const proto::Transmit& t : hand_)
        if (t.port == std::countr_zero(left)) around.leave(t);
  hand_.clear();
  if (now - polled_at_ > proto::stall_threshold) endpoint.handle_stall(now);
  doing_ = ++rounds_ < (config_.port_burst ? max_short_rounds : max_rounds) ? Doing::polling : Doing::sleeping;
  // It stops here without having asked whether there is more.
  if (doing_ == Doing::sleeping) kick(now);
}

}  // namespace softmrc::sim
