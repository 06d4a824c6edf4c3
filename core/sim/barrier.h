// Where threads wait for each other. The last one to come does what has to be done while no other thread runs. A thread
// that waits spins for a moment, in case it is a short one, and then sleeps.
#pragma once

#include <atomic>
#include <cstdint>

namespace softmrc::sim {

class Barrier {
 public:
  explicit Barrier(std::uint32_t parties) : parties_(parties) {}

  template <typename Alone>
  void wait(Alone alone) {
    const std::uint32_t turn = turn_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == parties_) {
      alone();
      arrived_.store(0, std::memory_order_relaxed);
      turn_.store(turn + 1, std::memory_order_release);
      turn_.notify_all();
      return;
    }
    for (std::uint32_t i = 0; i < max_spins; ++i) {
      if (turn_.load(std::memory_order_acquire) != turn) return;
      pause();
    }
    turn_.wait(turn, std::memory_order_acquire);
  }

 private:
  static constexpr std::uint32_t max_spins = 4000;

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  const std::uint32_t parties_;
  alignas(64) std::atomic<std::uint32_t> arrived_{0};
  alignas(64) std::atomic<std::uint32_t> turn_{0};
};

}  // namespace softmrc::sim
