// A pipe through memory that two processes of one machine share: what one rank puts in, another takes out in the same
// order. The end that takes makes it, and says where it is; the other one opens it there and puts things in. That
// something is in it is signalled elsewhere, so neither end ever polls.
//
// The other process may write anything, at any time: what is read here is checked against what this end knows, and the
// memory cannot shrink under it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

namespace softmrc::collectives {

// Where a pipe is: a descriptor of a process, and what stands in it, for numbers are used again.
struct ShmKey {
  std::uint64_t token = 0;
  std::int32_t process = 0;
  std::int32_t descriptor = -1;
};

class ShmRing {
 public:
  static constexpr std::uint64_t capacity = 4 << 20;

  // The end that takes. Nothing where the system has no such memory.
  static std::unique_ptr<ShmRing> make(std::uint64_t token);
  // The end that puts. Nothing where it is another's, or gone.
  static std::unique_ptr<ShmRing> open(const ShmKey& key);
  ~ShmRing();
  ShmRing(const ShmRing&) = delete;
  ShmRing& operator=(const ShmRing&) = delete;

  ShmKey key() const;

  // False where there is no space: then the other end signals when there is, once.
  bool put(const std::uint8_t* from, std::uint64_t bytes);
  // What was put last has not been signalled, and never will be.
  void take_back(std::uint64_t bytes);

  // In one piece or two, each from a multiple of 64 bytes on. False where so much is not in it.
  template <typename F>
  bool take(std::uint64_t bytes, F sink) {
    const std::uint64_t held = head_->put.load(std::memory_order_acquire) - at_;
    if (held > capacity || bytes > held || padded(bytes) > held) return false;
    const std::uint64_t begin = at_ % capacity, first = std::min(bytes, capacity - begin);
    sink(0, data_ + begin, first);
    if (first < bytes) sink(first, data_, bytes - first);
    at_ += padded(bytes);
    head_->taken.store(at_, std::memory_order_seq_cst);
    if (descriptor_ >= 0) close_descriptor();
    return true;
  }
  // Whether the other end waits for space.
  bool is_awaited() { return head_->waits.exchange(0, std::memory_order_seq_cst) != 0; }

 private:
  struct Head {
    std::uint64_t token = 0;
    alignas(64) std::atomic<std::uint64_t> put{0};
    alignas(64) std::atomic<std::uint64_t> taken{0};
    std::atomic<std::uint32_t> waits{0};
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

  ShmRing(int descriptor, void* memory);
  static constexpr std::uint64_t padded(std::uint64_t bytes) { return (bytes + 63) / 64 * 64; }
  bool has_room(std::uint64_t bytes) const;
  void close_descriptor();

  int descriptor_;  // by which the other end finds it; -1 once it has
  void* const memory_;
  Head* const head_;
  std::uint8_t* const data_;
  std::uint64_t at_ = 0;  // where this end is
};

}  // namespace softmrc::collectives
