// For callers that wait for several lanes at once, and so drive none of them: a lane that has something for them
// notifies.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "base/time.h"

namespace softmrc::udp {

class EventCount {
 public:
  void notify() {
    if (waiters_.load() == 0) return;
    {
      const std::lock_guard lock(mutex_);
      ++notifications_;
    }
    condition_.notify_all();
  }

  // What rings while one of these lives is not missed, however long the listener looks elsewhere in between.
  class Waiter {
   public:
    explicit Waiter(EventCount& event_count) : event_count_(event_count) {
      event_count_.waiters_.fetch_add(1);
      const std::lock_guard lock(event_count_.mutex_);
      seen_ = event_count_.notifications_;
    }
    ~Waiter() { event_count_.waiters_.fetch_sub(1); }
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;

    // False when the time is up.
    bool wait(Duration timeout) {
      std::unique_lock lock(event_count_.mutex_);
      const bool has_rung = event_count_.condition_.wait_for(lock, std::chrono::nanoseconds(timeout.ps / 1'000),
                                                             [this] { return event_count_.notifications_ != seen_; });
      seen_ = event_count_.notifications_;
      return has_rung;
    }

   private:
    EventCount& event_count_;
    std::uint64_t seen_ = 0;
  };

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  std::atomic<int> waiters_{0};
  std::uint64_t notifications_ = 0;
};

}  // namespace softmrc::udp
