// AES-256-GCM (NIST SP 800-38D) with the wide instructions of newer processors: VAES and VPCLMULQDQ on 512 bits, sixteen
// blocks at a time. Libraries that are still about use them for a quarter of that width, and sealing is most of what a
// sealed packet costs. No table is looked up and no branch taken by anything secret.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "seal/crypto.h"

namespace softmrc::seal {

class WideGcm {
 public:
  // Of this processor.
  static bool is_supported();

  explicit WideGcm(const Secret& key);
  ~WideGcm();
  WideGcm(const WideGcm&) = delete;
  WideGcm& operator=(const WideGcm&) = delete;

  // `in` and `out` are the same, or apart. `tag` is written.
  void seal(const Nonce& nonce, Bytes associated, Bytes in, std::uint8_t* out, std::uint8_t* tag) const;
  // False: not what was sealed, and the bytes are worthless.
  bool open(const Nonce& nonce, Bytes associated, MutableBytes hidden, const std::uint8_t* tag) const;

 private:
  static constexpr std::size_t rounds = 14;
  static constexpr std::size_t wide = 16;  // blocks
  using Block = std::array<std::uint8_t, 16>;

  alignas(64) std::array<Block, rounds + 1> keys_;
  // Powers of the hash's key, the highest first, each as the multiplication takes it; and nothing behind them, for blocks
  // that are not there.
  alignas(64) std::array<Block, 2 * wide> powers_{};
};

}  // namespace softmrc::seal
