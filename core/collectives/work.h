// An operation as its caller sees it, and the place where a thread learns which operations have ended.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace softmrc::collectives {

class Work;

// Numbers of ended operations, for one thread that waits for them (and then calls whatever callers asked for).
class CompletionNotifier {
 public:
  void push(std::uint64_t number) {
    {
      const std::lock_guard guard(mutex_);
      numbers_.push_back(number);
    }
    ready_.notify_one();
  }
  // Blocks until there is something, or it was shut: then empty.
  std::vector<std::uint64_t> take() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return !numbers_.empty() || is_shut_; });
    return std::exchange(numbers_, {});
  }
  void shut() {
    {
      const std::lock_guard guard(mutex_);
      is_shut_ = true;
    }
    ready_.notify_all();
  }
  // Pushes `number` when the work has ended, which may be now.
  void watch(Work& work, std::uint64_t number);

 private:
  friend class Work;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<std::uint64_t> numbers_;
  bool is_shut_ = false;
};

// Written by the thread that has the engine; read by any once it has ended, and not before.
class Work {
 public:
  explicit Work(std::shared_ptr<CompletionNotifier> notifier) : notifier_(std::move(notifier)) {}

  bool has_ended() const { return has_ended_.load(std::memory_order_acquire); }
  bool has_failed() const { return has_ended() && !error_.empty(); }
  const std::string& error() const { return error_; }

  void succeed() { end(); }
  void fail(const std::string& error) {
    if (has_ended()) return;
    error_ = error;
    end();
  }

  std::int32_t source = -1;  // of what was received

 private:
  friend class CompletionNotifier;
  void end() {
    has_ended_.store(true, std::memory_order_release);
    std::vector<std::uint64_t> numbers;
    {
      const std::lock_guard guard(notifier_->mutex_);
      numbers.swap(watched_);
    }
    for (std::uint64_t number : numbers) notifier_->push(number);
  }

  std::shared_ptr<CompletionNotifier> notifier_;
  std::atomic<bool> has_ended_{false};
  std::string error_;
  std::vector<std::uint64_t> watched_;  // under the notifier's mutex
};

inline void CompletionNotifier::watch(Work& work, std::uint64_t number) {
  {
    const std::lock_guard guard(mutex_);
    if (!work.has_ended()) {
      work.watched_.push_back(number);
      return;
    }
  }
  push(number);
}

}  // namespace softmrc::collectives
