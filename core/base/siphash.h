// Numbers that cannot be guessed from any of the others: a count, through SipHash-2-4 under a key.
// Prng's are spread as well but give away all that follow, and the seed.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace softmrc {

using SecretKey = std::array<std::uint64_t, 2>;

class SipHash {
 public:
  constexpr explicit SipHash(const SecretKey& key)
      : v_{key[0] ^ 0x736F6D6570736575u, key[1] ^ 0x646F72616E646F6Du, key[0] ^ 0x6C7967656E657261u,
           key[1] ^ 0x7465646279746573u} {}

  constexpr void add(std::uint64_t word) {
    v_[3] ^= word;
    turn(2);
    v_[0] ^= word;
  }
  constexpr std::uint64_t value() {
    v_[2] ^= 0xFF;
    turn(4);
    return v_[0] ^ v_[1] ^ v_[2] ^ v_[3];
  }

 private:
  constexpr void turn(int rounds) {
    for (; rounds; --rounds) {
      v_[0] += v_[1];
      v_[2] += v_[3];
      v_[1] = std::rotl(v_[1], 13) ^ v_[0];
      v_[3] = std::rotl(v_[3], 16) ^ v_[2];
      v_[0] = std::rotl(v_[0], 32) + v_[3];
      v_[2] += v_[1];
      v_[3] = std::rotl(v_[3], 21) ^ v_[0];
      v_[1] = std::rotl(v_[1], 17) ^ v_[2];
      v_[2] = std::rotl(v_[2], 32);
    }
  }

  std::array<std::uint64_t, 4> v_;
};

// SipHash-2-4 of one 64-bit word.
constexpr std::uint64_t sip_hash(const SecretKey& key, std::uint64_t word) {
  SipHash hash(key);
  hash.add(word);
  hash.add(std::uint64_t{8} << 56);
  return hash.value();
}

// And of any bytes.
inline std::uint64_t sip_hash(const SecretKey& key, std::span<const std::uint8_t> bytes) {
  SipHash hash(key);
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, 8);
    hash.add(word);
  }
  std::uint64_t last = static_cast<std::uint64_t>(bytes.size()) << 56;
  for (unsigned shift = 0; at < bytes.size(); ++at, shift += 8) last |= static_cast<std::uint64_t>(bytes[at]) << shift;
  hash.add(last);
  return hash.value();
}

// One of those that SipHash's authors publish.
static_assert(sip_hash({0x0706050403020100u, 0x0F0E0D0C0B0A0908u}, 0x0706050403020100u) == 0x93F5F5799A932462u);

class SipHashPrng {
 public:
  explicit SipHashPrng(const SecretKey& key) : key_(key) {}
  std::uint64_t next() { return sip_hash(key_, ++count_); }

 private:
  SecretKey key_;
  std::uint64_t count_ = 0;
};

}  // namespace softmrc
