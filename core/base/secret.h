// Numbers that nobody can guess, whoever has seen however many of the others: a count, through SipHash-2-4 under a key.
// Prng's are spread as well but give away all that follow, and the seed.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace softmrc {

using SecretKey = std::array<std::uint64_t, 2>;

// SipHash-2-4 of one 64-bit word.
constexpr std::uint64_t sip_hash(const SecretKey& key, std::uint64_t word) {
  std::array<std::uint64_t, 4> v{key[0] ^ 0x736F6D6570736575u, key[1] ^ 0x646F72616E646F6Du,
                                 key[0] ^ 0x6C7967656E657261u, key[1] ^ 0x7465646279746573u};
  const auto turn = [&v](int rounds) {
    for (; rounds; --rounds) {
      v[0] += v[1];
      v[2] += v[3];
      v[1] = std::rotl(v[1], 13) ^ v[0];
      v[3] = std::rotl(v[3], 16) ^ v[2];
      v[0] = std::rotl(v[0], 32) + v[3];
      v[2] += v[1];
      v[3] = std::rotl(v[3], 21) ^ v[0];
      v[1] = std::rotl(v[1], 17) ^ v[2];
      v[2] = std::rotl(v[2], 32);
    }
  };
  for (const std::uint64_t block : {word, std::uint64_t{8} << 56}) {
    v[3] ^= block;
    turn(2);
    v[0] ^= block;
  }
  v[2] ^= 0xFF;
  turn(4);
  return v[0] ^ v[1] ^ v[2] ^ v[3];
}

// One of those that SipHash's authors publish.
static_assert(sip_hash({0x0706050403020100u, 0x0F0E0D0C0B0A0908u}, 0x0706050403020100u) == 0x93F5F5799A932462u);

class SecretNumbers {
 public:
  explicit SecretNumbers(const SecretKey& key) : key_(key) {}
  std::uint64_t next() { return sip_hash(key_, ++count_); }

 private:
  SecretKey key_;
  std::uint64_t count_ = 0;
};

}  // namespace softmrc
