#include "seal/wide_gcm.h"

#include "base/check.h"

#if defined(__x86_64__)
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // of what the compiler's own headers leave so on purpose
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <cpuid.h>
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#define SOFTMRC_WIDE __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,vaes,vpclmulqdq,aes,pclmul,ssse3,sse4.1")))
#define SOFTMRC_INLINE_WIDE SOFTMRC_WIDE inline __attribute__((always_inline))

namespace softmrc::seal {
namespace {

constexpr std::size_t block_bytes = 16;
constexpr std::size_t wide_bytes = 256;
constexpr std::size_t parts = 4;  // of 64 bytes

// A hash of 128 bits before it is reduced: low, middle and high parts of the products so far.
struct Sum {
  __m512i low, middle, high;
};

// Blocks are numbers whose first byte is the highest.
SOFTMRC_INLINE_WIDE __m128i reversed(__m128i block) {
  return _mm_shuffle_epi8(block, _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}

SOFTMRC_INLINE_WIDE __m512i reversed(__m512i blocks) {
  return _mm512_shuffle_epi8(blocks, _mm512_broadcast_i32x4(_mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)));
}

// Modulo x^128 + x^7 + x^2 + x + 1, whose bits are in reverse here: a fold for each half.
SOFTMRC_INLINE_WIDE __m128i reduced(__m128i low, __m128i middle, __m128i high) {
  const __m128i polynomial = _mm_set_epi64x(static_cast<long long>(0xC200000000000000), static_cast<long long>(0xC200000000000000));
  low = _mm_xor_si128(low, _mm_slli_si128(middle, 8));
  high = _mm_xor_si128(high, _mm_srli_si128(middle, 8));
  for (int half = 0; half < 2; ++half)
    low = _mm_xor_si128(_mm_shuffle_epi32(low, 0x4E), _mm_clmulepi64_si128(low, polynomial, 0x00));
  return _mm_xor_si128(low, high);
}

SOFTMRC_INLINE_WIDE __m128i product(__m128i a, __m128i b) {
  const __m128i middle = _mm_xor_si128(_mm_clmulepi64_si128(a, b, 0x01), _mm_clmulepi64_si128(a, b, 0x10));
  return reduced(_mm_clmulepi64_si128(a, b, 0x00), middle, _mm_clmulepi64_si128(a, b, 0x11));
}

SOFTMRC_INLINE_WIDE void add_products(Sum& sum, __m512i blocks, __m512i powers) {
  sum.low = _mm512_xor_si512(sum.low, _mm512_clmulepi64_epi128(blocks, powers, 0x00));
  sum.high = _mm512_xor_si512(sum.high, _mm512_clmulepi64_epi128(blocks, powers, 0x11));
  sum.middle = _mm512_ternarylogic_epi64(sum.middle, _mm512_clmulepi64_epi128(blocks, powers, 0x01),
                                         _mm512_clmulepi64_epi128(blocks, powers, 0x10), 0x96);
}

SOFTMRC_INLINE_WIDE __m128i folded(__m512i lanes) {
  const __m256i half = _mm256_xor_si256(_mm512_castsi512_si256(lanes), _mm512_extracti64x4_epi64(lanes, 1));
  return _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

SOFTMRC_INLINE_WIDE __mmask64 first_bytes(std::size_t count) {
  return count >= 64 ? ~__mmask64{0} : (__mmask64{1} << count) - 1;
}

// Up to sixteen blocks more.
SOFTMRC_INLINE_WIDE __m128i hashed(__m128i hash, const __m512i (&blocks)[parts], const std::uint8_t* powers) {
  Sum sum{_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
  for (std::size_t part = 0; part < parts; ++part) {
    __m512i next = reversed(blocks[part]);
    if (part == 0) next = _mm512_xor_si512(next, _mm512_zextsi128_si512(hash));
    add_products(sum, next, _mm512_loadu_si512(powers + 64 * part));
  }
  return reduced(folded(sum.low), folded(sum.middle), folded(sum.high));
}

// The stream that hides: sixteen counters, encrypted.
struct Counters {
  __m512i next;  // four of them, each with its last four bytes in the processor's order
  __m512i order;
};

SOFTMRC_INLINE_WIDE Counters counters_from_two(__m128i nonce) {
  const __m128i order = _mm_set_epi8(12, 13, 14, 15, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i first = _mm512_set_epi32(5, 0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0);
  return {_mm512_or_si512(_mm512_broadcast_i32x4(nonce), first), _mm512_broadcast_i32x4(order)};
}

template <std::size_t rounds>
SOFTMRC_INLINE_WIDE void take_stream(Counters& counters, const std::uint8_t* keys, __m512i (&stream)[parts]) {
  const __m512i four = _mm512_set_epi32(4, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0);
  const auto key = [&](std::size_t round) SOFTMRC_WIDE {
    return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(keys + block_bytes * round)));
  };
  const __m512i first = key(0);
  for (__m512i& part : stream) {
    part = _mm512_xor_si512(_mm512_shuffle_epi8(counters.next, counters.order), first);
    counters.next = _mm512_add_epi32(counters.next, four);
  }
#pragma GCC unroll 14
  for (std::size_t round = 1; round < rounds; ++round) {
    const __m512i now = key(round);
    for (__m512i& part : stream) part = _mm512_aesenc_epi128(part, now);
  }
  const __m512i last = key(rounds);
  for (__m512i& part : stream) part = _mm512_aesenclast_epi128(part, last);
}

template <std::size_t rounds>
SOFTMRC_INLINE_WIDE __m128i encrypted(const std::uint8_t* keys, __m128i block) {
  const auto* key = reinterpret_cast<const __m128i*>(keys);
  block = _mm_xor_si128(block, _mm_load_si128(key));
  for (std::size_t round = 1; round < rounds; ++round) block = _mm_aesenc_si128(block, _mm_load_si128(key + round));
  return _mm_aesenclast_si128(block, _mm_load_si128(key + rounds));
}

SOFTMRC_INLINE_WIDE __m128i nonce_block(const Nonce& nonce) {
  std::array<std::uint8_t, block_bytes> room{};
  std::memcpy(room.data(), nonce.data(), nonce.size());
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(room.data()));
}

// Hides or shows the bytes, and goes on with the hash of what is hidden.
template <std::size_t rounds, bool is_sealing>
SOFTMRC_INLINE_WIDE __m128i passed(const std::uint8_t* keys, const std::uint8_t* powers, Counters counters, __m128i hash, const std::uint8_t* in,
                                   std::uint8_t* out, std::size_t size) {
  __m512i stream[parts], hidden[parts];
  bool has_hidden = false;
  for (; size >= wide_bytes; size -= wide_bytes, in += wide_bytes, out += wide_bytes) {
    take_stream<rounds>(counters, keys, stream);
    if (has_hidden) hash = hashed(hash, hidden, powers);  // of those before, since these would have to be waited for
    has_hidden = true;
    for (std::size_t part = 0; part < parts; ++part) {
      const __m512i bytes = _mm512_loadu_si512(in + 64 * part);
      const __m512i other = _mm512_xor_si512(bytes, stream[part]);
      hidden[part] = is_sealing ? other : bytes;
      _mm512_storeu_si512(out + 64 * part, other);
    }
  }
  if (has_hidden) hash = hashed(hash, hidden, powers);
  if (size == 0) return hash;
  take_stream<rounds>(counters, keys, stream);
  for (std::size_t part = 0; part < parts; ++part) {
    const __mmask64 there = first_bytes(size - std::min(size, 64 * part));
    const __m512i bytes = _mm512_maskz_loadu_epi8(there, in + 64 * part);
    const __m512i other = _mm512_maskz_xor_epi32(0xFFFF, bytes, stream[part]);
    hidden[part] = _mm512_maskz_mov_epi8(there, is_sealing ? other : bytes);
    _mm512_mask_storeu_epi8(out + 64 * part, there, other);
  }
  return hashed(hash, hidden, powers + block_bytes * (wide_bytes / block_bytes - (size + block_bytes - 1) / block_bytes));
}

SOFTMRC_INLINE_WIDE __m128i associated_hash(const std::uint8_t* powers, Bytes bytes) {
  __m128i hash = _mm_setzero_si128();
  while (!bytes.empty()) {
    const std::size_t size = std::min(bytes.size(), wide_bytes);
    __m512i blocks[parts];
    for (std::size_t part = 0; part < parts; ++part)
      blocks[part] = _mm512_maskz_loadu_epi8(first_bytes(size - std::min(size, 64 * part)), bytes.data() + 64 * part);
    hash = hashed(hash, blocks, powers + block_bytes * (wide_bytes / block_bytes - (size + block_bytes - 1) / block_bytes));
    bytes = bytes.subspan(size);
  }
  return hash;
}

template <std::size_t rounds, bool is_sealing>
SOFTMRC_WIDE __m128i tag_of(const std::uint8_t* keys, const std::uint8_t* powers, const Nonce& nonce, Bytes associated, Bytes in,
                            std::uint8_t* out) {
  const __m128i start = nonce_block(nonce);
  __m128i hash = associated_hash(powers, associated);
  hash = passed<rounds, is_sealing>(keys, powers, counters_from_two(start), hash, in.data(), out, in.size());
  const __m128i sizes = _mm_set_epi64x(static_cast<long long>(associated.size() * 8), static_cast<long long>(in.size() * 8));
  const auto* one = reinterpret_cast<const __m128i*>(powers + wide_bytes - block_bytes);
  hash = product(_mm_xor_si128(hash, sizes), _mm_load_si128(one));
  const __m128i counter_one = _mm_or_si128(start, _mm_set_epi32(0x01000000, 0, 0, 0));
  return _mm_xor_si128(reversed(hash), encrypted<rounds>(keys, counter_one));
}

// The key schedule of FIPS 197 for 256 bits: each key is the last but one, with all words before it added in turn.
SOFTMRC_INLINE_WIDE __m128i next_key(__m128i last_but_one, __m128i mixed) {
  for (int i = 0; i < 3; ++i) last_but_one = _mm_xor_si128(last_but_one, _mm_slli_si128(last_but_one, 4));
  return _mm_xor_si128(last_but_one, mixed);
}

template <int constant>
SOFTMRC_INLINE_WIDE void two_keys(__m128i* keys) {
  keys[2] = next_key(keys[0], _mm_shuffle_epi32(_mm_aeskeygenassist_si128(keys[1], constant), 0xFF));
  keys[3] = next_key(keys[1], _mm_shuffle_epi32(_mm_aeskeygenassist_si128(keys[2], 0), 0xAA));
}

// Not every compiler lets one ask for this by name.
bool has_vaes() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & bit_VAES);
}

template <std::size_t rounds>
SOFTMRC_WIDE void prepare(const Secret& key, std::uint8_t* made_keys, std::uint8_t* powers) {
  __m128i keys[rounds + 2];
  std::memcpy(keys, key.data(), key.size());
  two_keys<0x01>(keys);
  two_keys<0x02>(keys + 2);
  two_keys<0x04>(keys + 4);
  two_keys<0x08>(keys + 6);
  two_keys<0x10>(keys + 8);
  two_keys<0x20>(keys + 10);
  two_keys<0x40>(keys + 12);
  std::memcpy(made_keys, keys, (rounds + 1) * block_bytes);
  wipe(keys, sizeof keys);
  // The hash's key, one bit further, since the bits of numbers are in reverse: so products need not be moved.
  const __m128i hash_key = reversed(encrypted<rounds>(made_keys, _mm_setzero_si128()));
  const __m128i carry = _mm_srai_epi32(_mm_shuffle_epi32(hash_key, 0xFF), 31);
  const __m128i lower = _mm_srli_epi64(_mm_slli_si128(hash_key, 8), 63);
  const __m128i moved = _mm_or_si128(_mm_slli_epi64(hash_key, 1), lower);
  const __m128i one = _mm_xor_si128(moved, _mm_and_si128(carry, _mm_set_epi64x(static_cast<long long>(0xC200000000000000), 1)));
  __m128i power = one;
  for (std::size_t at = wide_bytes; at > 0; power = product(power, one)) _mm_store_si128(reinterpret_cast<__m128i*>(powers + (at -= block_bytes)), power);
}

}  // namespace

bool WideGcm::is_supported() {
  static const bool has_all = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("vpclmulqdq") && has_vaes();
  return has_all;
}

WideGcm::WideGcm(const Secret& key) { prepare<rounds>(key, keys_[0].data(), powers_[0].data()); }

WideGcm::~WideGcm() {
  wipe(keys_.data(), sizeof keys_);
  wipe(powers_.data(), sizeof powers_);
}

SOFTMRC_WIDE void WideGcm::seal(const Nonce& nonce, Bytes associated, Bytes in, std::uint8_t* out, std::uint8_t* tag) const {
  const __m128i made = tag_of<rounds, true>(keys_[0].data(), powers_[0].data(), nonce, associated, in, out);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(tag), made);
}

SOFTMRC_WIDE bool WideGcm::open(const Nonce& nonce, Bytes associated, MutableBytes hidden, const std::uint8_t* tag) const {
  const __m128i made = tag_of<rounds, false>(keys_[0].data(), powers_[0].data(), nonce, associated, hidden, hidden.data());
  const __m128i difference = _mm_xor_si128(made, _mm_loadu_si128(reinterpret_cast<const __m128i*>(tag)));
  return _mm_testz_si128(difference, difference);
}

}  // namespace softmrc::seal

#else

namespace softmrc::seal {

bool WideGcm::is_supported() { return false; }
WideGcm::WideGcm(const Secret&) { SOFTMRC_CHECK(false); }
WideGcm::~WideGcm() = default;
void WideGcm::seal(const Nonce&, Bytes, Bytes, std::uint8_t*, std::uint8_t*) const {}
bool WideGcm::open(const Nonce&, Bytes, MutableBytes, const std::uint8_t*) const { return false; }

}  // namespace softmrc::seal

#endif
