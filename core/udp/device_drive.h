// The loop of the thread that drives, shared by the device's own thread and by callers that wait.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "udp/device.h"

namespace softmrc::udp {

// Longest sleep: nothing depends on it, it bounds the harm of a wake-up that got lost.
constexpr Duration longest_sleep = milliseconds(500);

// A flood costs a turn for each of its packets as long as the driver keeps up with them. So it lets them gather: what is
// refused many at a time costs little, and what a peer sends meanwhile is late by no more than this.
constexpr Duration refusing_rest = microseconds(100);

constexpr Duration robbed_after = microseconds(300);
constexpr Duration robbed_rest = milliseconds(100);

template <typename Done>
void Device::drive(Lock& lock, Time until, Done done) {
  busy_at_ = clock_.now();
  if (owes_) transmit();
  while (!closed_) {
    bool worked = take_in();
    if (!attendants_.empty() && attend()) worked = true;
    // Whoever waited for this will most likely answer it: acknowledgements then leave with the answer, and the peer is
    // woken once instead of twice. If not, the next driver pays what is owed.
    if (done()) {
      owes_ = true;
      notify();
      return;
    }
    transmit();
    notify();
    let_visitors_in(lock);
    const Time now = clock_.now();
    if (is_only_refusing_ && now < until) [[unlikely]] {
      ++stats_.rests;
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::nanoseconds(refusing_rest.ps / 1'000));
      lock.lock();
      continue;
    }
    if (worked) {
      usual_gap_ps_ += ((now - busy_at_).ps - usual_gap_ps_) / 8;
      busy_at_ = now;
      continue;
    }
    if (now >= until) return;
    const Time deadline = std::min({next_deadline(), until, now + longest_sleep});
    if (deadline <= now) continue;
    // Spinning pays while work comes more often than it takes to fall asleep and wake up.
    const bool spins = now - busy_at_ < plan_.spin && usual_gap_ps_ < plan_.spin.ps && now >= no_spin_until_;
    if (!spins) usual_gap_ps_ = std::min(usual_gap_ps_ + (now - busy_at_).ps / 8, 4 * plan_.spin.ps);
    sleeps_until_ = deadline;
    ++(spins ? stats_.spins : stats_.sleeps);
    lock.unlock();
    look(spins ? Duration{0} : deadline - now);
    lock.lock();
    sleeps_until_ = Time::long_ago();
    const Time after = clock_.now();
    if (!spins) busy_at_ = after;
    // Somebody else wanted the processor while we only looked: leave it to them for a while, or they will take it from
    // us when we need it.
    else if (after - now > robbed_after) no_spin_until_ = after + robbed_rest;
  }
}

}  // namespace softmrc::udp
