// Pseudo-random numbers by named stream: one seed gives every part of a run its own independent sequence, so that
// drawing once more in one place does not change what another place draws. xoshiro256++ seeded through splitmix64.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <string_view>

namespace softmrc {

constexpr std::uint64_t splitmix64(std::uint64_t& state) {
  state += 0x9E3779B97F4A7C15u;
  std::uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// FNV-1a, for turning a stream's name into bits of its seed.
constexpr std::uint64_t hash_name(std::string_view name) {
  std::uint64_t h = 0xCBF29CE484222325u;
  for (char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return h;
}

class Prng {
 public:
  Prng() : Prng(0, "") {}
  Prng(std::uint64_t seed, std::string_view stream, std::uint64_t index = 0) {
    std::uint64_t state = seed ^ std::rotl(hash_name(stream), 17) ^ (index * 0xD1342543DE82EF95u);
    for (auto& word : s_) word = splitmix64(state);
  }

  std::uint64_t bits() {
    const std::uint64_t result = std::rotl(s_[0] + s_[3], 23) + s_[0];
    const std::uint64_t t = s_[1] << 17;
    s_[2] ^= s_[0];
    s_[3] ^= s_[1];
    s_[1] ^= s_[2];
    s_[0] ^= s_[3];
    s_[2] ^= t;
    s_[3] = std::rotl(s_[3], 45);
    return result;
  }

  // Uniform in [0, n), n > 0; the bias of the multiply is below 2^-32 for the small n this is used with.
  std::uint32_t below(std::uint32_t n) {
    return static_cast<std::uint32_t>((static_cast<std::uint64_t>(static_cast<std::uint32_t>(bits() >> 32)) * n) >> 32);
  }

  // Uniform in [0, 1).
  double unit() { return static_cast<double>(bits() >> 11) * 0x1.0p-53; }

  bool chance(double probability) { return probability > 0 && unit() < probability; }

 private:
  std::array<std::uint64_t, 4> s_{};
};

}  // namespace softmrc
