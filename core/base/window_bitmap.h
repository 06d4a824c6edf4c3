// A bitmap over a sliding window of sequence numbers. It doubles when the window does and never shrinks.
// The owner keeps the window no wider than what it reserved and clears a bit before its number comes round again.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/prefetch.h"
#include "base/ring.h"

namespace softmrc {

class WindowBitmap {
 public:
  // Room for `count` numbers from `first`, plus the slack that lets whole words be read at either end.
  void reserve(std::uint32_t first, std::uint32_t count) { words_.reserve(first >> 6, (count + 63) / 64 + 2); }

  void prefetch_state(std::uint32_t n) const {
    if (words_.capacity()) prefetch(&words_[n >> 6]);
  }

  bool test(std::uint32_t n) const { return words_[n >> 6] >> (n & 63) & 1; }
  void set(std::uint32_t n) { words_[n >> 6] |= bit(n); }
  void clear(std::uint32_t n) { words_[n >> 6] &= ~bit(n); }

  // The 64 bits that start at n, lowest first.
  std::uint64_t window(std::uint32_t n) const {
    const unsigned shift = n & 63;
    const std::uint64_t low = words_[n >> 6] >> shift;
    return shift ? low | words_[next_word(n)] << (64 - shift) : low;
  }

  // Of the 64 bits that start at n, sets these.
  void set_window(std::uint32_t n, std::uint64_t bits) {
    const unsigned shift = n & 63;
    words_[n >> 6] |= bits << shift;
    if (shift) words_[next_word(n)] |= bits >> (64 - shift);
  }

  // How many bits from n on are set without a break.
  std::uint32_t run(std::uint32_t n) const {
    std::uint32_t length = 0;
    while (true) {
      const unsigned ones = static_cast<unsigned>(std::countr_one(words_[n >> 6] >> (n & 63)));
      const unsigned left = 64 - (n & 63);
      length += ones;
      if (ones < left) return length;
      n += left;
      if (length > words_.capacity() * 64) return length;
    }
  }

  // The distance from n to the first set bit at or after it, or `limit` when none lies that near.
  std::uint32_t distance_to_set(std::uint32_t n, std::uint32_t limit) const {
    std::uint32_t done = 0;
    while (done < limit) {
      const std::uint64_t word = words_[n >> 6] >> (n & 63);
      if (word) {
        const std::uint32_t found = done + static_cast<std::uint32_t>(std::countr_zero(word));
        return found < limit ? found : limit;
      }
      const std::uint32_t step = 64 - (n & 63);
      done += step;
      n += step;
    }
    return limit;
  }

  // Clears `count` bits from n and says how many of them were set.
  std::uint32_t clear_run(std::uint32_t n, std::uint32_t count) {
    std::uint32_t were_set = 0;
    while (count) {
      const std::uint32_t step = std::min(64 - (n & 63), count);
      const std::uint64_t mask = (step == 64 ? ~0ull : (1ull << step) - 1) << (n & 63);
      std::uint64_t& word = words_[n >> 6];
      were_set += static_cast<std::uint32_t>(std::popcount(word & mask));
      word &= ~mask;
      n += step;
      count -= step;
    }
    return were_set;
  }

 private:
  static std::uint64_t bit(std::uint32_t n) { return 1ull << (n & 63); }
  static std::uint32_t next_word(std::uint32_t n) { return (n >> 6) + 1; }

  SerialRing<std::uint64_t> words_;
};

}  // namespace softmrc
