// The loop of the thread that drives, shared by the device's own thread and by callers that wait.
#pragma once

#include <algorithm>

#include "udp/device.h"

namespace softmrc::udp {

// Longest sleep: nothing depends on it, it bounds the harm of a wake-up that got lost.
constexpr Duration longest_sleep = milliseconds(500);

template <typename Done>
void Device::drive(Lock& lock, Time until, Done done) {
  busy_at_ = clock_.now();
  while (!closed_) {
    const bool worked = turn();
    notify();
    if (done()) return;
    let_visitors_in(lock);
    const Time now = clock_.now();
    if (worked) {
      usual_gap_ps_ += ((now - busy_at_).ps - usual_gap_ps_) / 8;
      busy_at_ = now;
      continue;
    }
    if (now >= until) return;
    const Time deadline = std::min({next_deadline(), until, now + longest_sleep});
    if (deadline <= now) continue;
    // Spinning pays while work comes more often than it takes to fall asleep and wake up.
    const bool spins = now - busy_at_ < plan_.spin && usual_gap_ps_ < plan_.spin.ps;
    if (!spins) usual_gap_ps_ = std::min(usual_gap_ps_ + (now - busy_at_).ps / 8, 4 * plan_.spin.ps);
    sleeps_until_ = deadline;
    lock.unlock();
    look(spins ? Duration{0} : deadline - now);
    lock.lock();
    sleeps_until_ = Time::long_ago();
    if (!spins) busy_at_ = clock_.now();
  }
}

}  // namespace softmrc::udp
