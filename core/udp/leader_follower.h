// Whose turn it is to drive. One thread at a time does: the lane's own, unless a caller waits; then that one drives,
// because waking a second thread for every message would cost more than the message.
//
// Callers come for a moment (a EngineLock) or to stay (lead). The leader holds the lock but for when it sleeps, and
// makes room for others between two batches: a mutex is not fair by itself.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/cpu_relax.h"
#include "base/time.h"

namespace softmrc::udp {

class LeaderFollower {
 public:
  using Lock = std::unique_lock<std::mutex>;

  class EngineLock {
   public:
    explicit EngineLock(LeaderFollower& turns) : lock_(turns.enter()) {}

   private:
    Lock lock_;
  };

  Lock enter() {
    waiters_.fetch_add(1, std::memory_order_relaxed);
    Lock lock(mutex_);
    waiters_.fetch_sub(1, std::memory_order_relaxed);
    return lock;
  }

  // Until it is done or too late: `drive()` if no thread does, else waits for a turn. `wake()` wakes the lane's own
  // thread where that sleeps while it drives.
  template <typename Clock, typename Done, typename Drive, typename Wake>
  void drive_until(Lock& lock, const Clock& clock, Time until, Done done, Drive drive, Wake wake) {
    while (!done() && clock.now() < until) {
      if (!is_driven_) {
        is_driven_ = true;
        ++leads_;
        drive();
        is_driven_ = false;
        if (is_over_) wake_all();
        else wake_next();
        call_own_thread();
        continue;
      }
      Follower self(done);
      followers_.push_back(&self);
      if (own_thread_drives_) wake();
      if (until == Time::never()) self.wakes.wait(lock);
      else self.wakes.wait_for(lock, nanoseconds_of(until - clock.now()));
      std::erase(followers_, &self);
      if (is_over_) over_.notify_all();
    }
    // It may have been given a turn that it no longer wants.
    if (is_driven_) return;
    if (has_followers()) wake_next();
    else call_own_thread();
  }

  // A caller gave the engine something to send: it will most likely wait for the answer.
  void on_post() { ++posts_; }

  // The life of the lane's own thread: it drives while no caller does, until `end`.
  template <typename Drive>
  void run(Lock& lock, Drive drive) {
    while (!is_over_) {
      if (is_driven_ || has_followers()) {
        is_parked_ = true;
        standby_.wait(lock, [this] { return !is_parked_ || is_over_; });
        is_parked_ = false;
        stand_by(lock);
        continue;
      }
      is_driven_ = own_thread_drives_ = true;
      drive();
      is_driven_ = own_thread_drives_ = false;
      wake_next();
    }
    over_.wait(lock, [this] { return !is_driven_ && !has_followers(); });
  }

  // No thread drives from here on, and those that wait for a turn return.
  void end() {
    is_over_ = true;
    wake_all();
    standby_.notify_all();
  }
  void wake_all() {
    for (Follower* follower : followers_) follower->wakes.notify_one();
    over_.notify_all();
  }
  // Those that have what they wait for. The leader asks for them, since most of many have nothing after most
  // turns, and to wake a thread costs more than the turn.
  void wake_done() {
    for (Follower* follower : followers_)
      if (follower->is_done()) follower->wakes.notify_one();
  }
  bool is_driven() const { return is_driven_; }
  // Callers wait for their turn.
  bool has_followers() const { return !followers_.empty(); }
  std::uint64_t leads() const { return leads_; }

  template <typename Done>
  bool wait_for(Lock& lock, Duration timeout, Done done) {
    return over_.wait_for(lock, nanoseconds_of(timeout), done);
  }

  void yield_to_waiters(Lock& lock) {
    if (waiters_.load(std::memory_order_relaxed) == 0) return;
    lock.unlock();
    for (int i = 0; i < 2'000 && waiters_.load(std::memory_order_relaxed); ++i) cpu_relax();
    lock.lock();
  }

 private:
  // A caller that waits while another drives. What it waits for is checked under the lock, by the thread that holds it.
  struct Follower {
    template <typename Done>
    explicit Follower(Done& done)
        : what(std::addressof(done)), asks([](void* it) -> bool { return (*static_cast<Done*>(it))(); }) {}
    bool is_done() { return asks(what); }

    std::condition_variable wakes;
    void* const what;
    bool (*const asks)(void*);
  };
  // The one that has waited longest: it drives, or passes that on.
  void wake_next() {
    if (has_followers()) followers_.front()->wakes.notify_one();
  }
  // A caller that has just driven will most likely be back in a moment, and one that posts is about to wait: as long as
  // they keep coming, or have the lock, the own thread naps and does not ask for it. Who only posts never drives, so
  // posts are not waited for for long.
  void stand_by(Lock& lock) {
    // A caller may leave with acknowledgements unsent, for which peers wait: not longer than that.
    constexpr std::chrono::microseconds nap(200), longest_without_lead(1'000);
    std::chrono::microseconds without_lead{0};
    lock.unlock();
    while (!is_over_ && without_lead < longest_without_lead) {
      const std::uint64_t leads = leads_, posts = posts_;
      std::this_thread::sleep_for(nap);
      const bool has_led = leads_ != leads;
      if (!has_led && posts_ == posts && lock.try_lock()) return;
      without_lead = has_led ? std::chrono::microseconds{0} : without_lead + nap;
    }
    lock.lock();
  }
  void call_own_thread() {
    if (!is_parked_) return;
    is_parked_ = false;
    standby_.notify_one();
  }
  static std::chrono::nanoseconds nanoseconds_of(Duration d) { return std::chrono::nanoseconds(d.ps / 1'000 + 1); }

  std::mutex mutex_;
  std::condition_variable over_;     // for who waits for the end
  std::condition_variable standby_;  // for the lane's own thread
  std::atomic<int> waiters_{0};
  bool is_driven_ = false;
  bool own_thread_drives_ = false;
  bool is_parked_ = false;  // the own thread sleeps until it is woken
  std::atomic<bool> is_over_{false};
  std::vector<Follower*> followers_;  // callers that wait their turn to drive, in the order in which they came
  // How often callers have driven, and given something to send. Written under the lock.
  std::atomic<std::uint64_t> leads_{0};
  std::atomic<std::uint64_t> posts_{0};
};

}  // namespace softmrc::udp
