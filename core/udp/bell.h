// For callers that wait for several lanes at once, and so drive none of them: whoever has something for them rings.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "base/time.h"

namespace softmrc::udp {

class Bell {
 public:
  void ring() {
    if (listeners_.load() == 0) return;
    {
      const std::lock_guard lock(mutex_);
      ++rings_;
    }
    rung_.notify_all();
  }

  // What rings while one of these lives is not missed, however long the listener looks elsewhere in between.
  class Listener {
   public:
    explicit Listener(Bell& bell) : bell_(bell) {
      bell_.listeners_.fetch_add(1);
      const std::lock_guard lock(bell_.mutex_);
      heard_ = bell_.rings_;
    }
    ~Listener() { bell_.listeners_.fetch_sub(1); }
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;

    // False when the time is up.
    bool wait(Duration timeout) {
      std::unique_lock lock(bell_.mutex_);
      const bool has_rung = bell_.rung_.wait_for(lock, std::chrono::nanoseconds(timeout.ps / 1'000),
                                                 [this] { return bell_.rings_ != heard_; });
      heard_ = bell_.rings_;
      return has_rung;
    }

   private:
    Bell& bell_;
    std::uint64_t heard_ = 0;
  };

 private:
  std::mutex mutex_;
  std::condition_variable rung_;
  std::atomic<int> listeners_{0};
  std::uint64_t rings_ = 0;
};

}  // namespace softmrc::udp
