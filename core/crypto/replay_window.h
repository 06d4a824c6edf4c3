// Which numbers have been seen. Packets come in any order, over many paths; so this remembers the newest number and, of
// those not much older, each one. What is older than that counts as seen: it can be retransmitted under another number.
#pragma once

#include <array>
#include <cstdint>

namespace softmrc::crypto {

// spec: replay-window
class ReplayWindow {
 public:
  // A queue pair has at most 255 units of 128 PSNs under way, and as many copies and answers may be between them.
  static constexpr std::uint64_t size = 1 << 16;
  // No number is as large as this: so many cannot be sent, and sums of smaller ones do not wrap.
  static constexpr std::uint64_t numbers = std::uint64_t{1} << 63;

  bool is_fresh(std::uint64_t number) const {
    if (number >= end_) return number < numbers;
    return end_ - number <= size && !(words_[word_of(number)] >> (number % 64) & 1);
  }

  // Only what is fresh and authentic: a forged number could make everything else seem old.
  void add(std::uint64_t number) {
    if (number >= end_) {
      if (number - end_ >= size) {
        words_.fill(0);
      } else {
        for (; end_ <= number; ++end_) {
          if (end_ % 64 == 0) words_[word_of(end_)] = 0;
        }
      }
      end_ = number + 1;
    }
    words_[word_of(number)] |= std::uint64_t{1} << (number % 64);
  }

 private:
  // One word more than the window needs, so that the one that is cleared holds nothing that still counts.
  static constexpr std::uint64_t words = size / 64 + 1;
  static std::uint64_t word_of(std::uint64_t number) { return number / 64 % words; }

  std::uint64_t end_ = 0;  // above the newest
  std::array<std::uint64_t, words> words_{};
};

}  // namespace softmrc::crypto
