#include "host/sha256.h"

#include <algorithm>
#include <bit>
#include <vector>

namespace softmrc::host {
namespace {

constexpr std::size_t block_bytes = 64;
constexpr std::array<std::uint32_t, 64> prime_numbers() {
  std::array<std::uint32_t, 64> primes{};
  std::size_t count = 0;
  for (std::uint32_t n = 2; count < primes.size(); ++n) {
    bool is_prime = true;
    for (std::size_t i = 0; i < count && is_prime; ++i) is_prime = n % primes[i] != 0;
    if (is_prime) primes[count++] = n;
  }
  return primes;
}

// The first 32 bits behind the point of the n-th root of `value`, by bisection in whole numbers.
constexpr std::uint32_t root_fraction(std::uint32_t value, int n) {
  using Wide = unsigned __int128;
  std::uint64_t low = 0, high = std::uint64_t{1} << 37;  // with 32 bits behind the point; the cube has 111 at most
  while (low + 1 < high) {
    const std::uint64_t middle = (low + high) / 2;
    const Wide power = Wide{middle} * middle * (n == 2 ? 1 : middle);
    const bool is_below = power <= Wide{value} << 32 * n;
    (is_below ? low : high) = middle;
  }
  return static_cast<std::uint32_t>(low);
}

constexpr std::array<std::uint32_t, 64> round_constants() {
  std::array<std::uint32_t, 64> k{};
  constexpr std::array<std::uint32_t, 64> primes = prime_numbers();
  for (std::size_t i = 0; i < k.size(); ++i) k[i] = root_fraction(primes[i], 3);
  return k;
}

constexpr std::array<std::uint32_t, 8> first_state() {
  std::array<std::uint32_t, 8> h{};
  constexpr std::array<std::uint32_t, 64> primes = prime_numbers();
  for (std::size_t i = 0; i < h.size(); ++i) h[i] = root_fraction(primes[i], 2);
  return h;
}

constexpr std::array<std::uint32_t, 64> constants = round_constants();
static_assert(constants[0] == 0x428A2F98 && constants[63] == 0xC67178F2 && first_state()[7] == 0x5BE0CD19);

void mix(std::array<std::uint32_t, 8>& state, const std::uint8_t* block) {
  std::array<std::uint32_t, 64> w;
  for (std::size_t i = 0; i < 16; ++i)
    w[i] = std::uint32_t{block[4 * i]} << 24 | std::uint32_t{block[4 * i + 1]} << 16 |
           std::uint32_t{block[4 * i + 2]} << 8 | block[4 * i + 3];
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t early = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
    const std::uint32_t late = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + early + w[i - 7] + late;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t first = h + sum1 + ((e & f) ^ (~e & g)) + constants[i] + w[i];
    const std::uint32_t sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t second = sum0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + first;
    d = c;
    c = b;
    b = a;
    a = first + second;
  }
  const std::array<std::uint32_t, 8> mixed{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) state[i] += mixed[i];
}

}  // namespace

Digest sha256(std::span<const std::uint8_t> bytes) {
  std::array<std::uint32_t, 8> state = first_state();
  std::size_t at = 0;
  for (; bytes.size() - at >= block_bytes; at += block_bytes) mix(state, bytes.data() + at);
  std::array<std::uint8_t, 2 * block_bytes> last{};
  const std::size_t left = bytes.size() - at;
  std::copy(bytes.begin() + static_cast<std::ptrdiff_t>(at), bytes.end(), last.begin());
  last[left] = 0x80;
  const std::size_t size = left + 9 <= block_bytes ? block_bytes : 2 * block_bytes;
  for (std::size_t i = 0; i < 8; ++i)
    last[size - 1 - i] = static_cast<std::uint8_t>(std::uint64_t{bytes.size()} * 8 >> 8 * i);
  for (std::size_t i = 0; i < size; i += block_bytes) mix(state, last.data() + i);
  Digest digest;
  for (std::size_t i = 0; i < digest.size(); ++i)
    digest[i] = static_cast<std::uint8_t>(state[i / 4] >> 8 * (3 - i % 4));
  return digest;
}

Digest hmac_sha256(std::span<const std::uint8_t> key, std::span<const std::uint8_t> text) {
  std::array<std::uint8_t, block_bytes> padded{};
  if (key.size() > block_bytes) {
    const Digest digest = sha256(key);
    std::copy(digest.begin(), digest.end(), padded.begin());
  } else {
    std::copy(key.begin(), key.end(), padded.begin());
  }
  const auto hashed = [&padded](std::uint8_t mask, std::span<const std::uint8_t> rest) {
    std::vector<std::uint8_t> whole;
    whole.reserve(block_bytes + rest.size());
    for (const std::uint8_t byte : padded) whole.push_back(byte ^ mask);
    whole.insert(whole.end(), rest.begin(), rest.end());
    return sha256(whole);
  };
  return hashed(0x5C, hashed(0x36, text));
}

}  // namespace softmrc::host
