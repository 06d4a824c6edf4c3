// The loop of the thread that drives, shared by the lane's own thread and by callers that wait.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "udp/lane.h"

namespace softmrc::udp {

// Longest sleep: nothing depends on it, it bounds the harm of a wake-up that got lost.
constexpr Duration longest_sleep = milliseconds(500);

// A flood costs a turn for each of its packets as long as the driver keeps up with them. So it lets them gather: what
// is refused many at a time costs little, and what a peer sends in that time is late by no more than this.
constexpr Duration refusing_rest = microseconds(100);

template <typename Done>
void Lane::drive(Lock& lock, Time until, Done done) {
  spin_.begin(clock_.now());
  if (tx_pending_) transmit();
  while (!closed_) {
    bool worked = process_input();
    // First the mark, then a look: who leaves something in between marks it again.
    if (!progress_handlers_.empty()) {
      progress_requested_ = false;
      if (progress()) worked = true;
    }
    // A caller that waited for this will most likely answer it: acknowledgements then leave with the answer, and the
    // peer is woken once instead of twice. If not, the next driver pays what is owed.
    if (done()) {
      tx_pending_ = true;
      if (has_posts_) transmit();
      notify();
      return;
    }
    transmit();
    notify();
    leader_follower_.yield_to_waiters(lock);
    if (has_posts_) continue;
    const Time now = clock_.now();
    if (is_only_refusing_ && now < until) [[unlikely]] {
      ++stats_.rests;
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::nanoseconds(refusing_rest.ps / 1'000));
      lock.lock();
      continue;
    }
    if (worked) {
      spin_.on_work(now);
      continue;
    }
    if (now >= until) return;
    const Time deadline = std::min({next_deadline(), until, now + longest_sleep});
    if (deadline <= now) continue;
    const bool spins = spin_.wants_more(now);
    // Either request_progress sees this, or its request is seen here.
    is_asleep_ = !spins;
    if (progress_requested_ && !progress_handlers_.empty()) {
      is_asleep_ = false;
      continue;
    }
    sleeps_until_ = deadline;
    ++(spins ? stats_.spins : stats_.sleeps);
    lock.unlock();
    poll_sockets(spins ? Duration{0} : deadline - now);
    lock.lock();
    is_asleep_ = false;
    sleeps_until_ = Time::long_ago();
    if (spins) spin_.on_looked(now, clock_.now());
    else spin_.on_slept(clock_.now());
  }
}

}  // namespace softmrc::udp
