#include "wire/icrc.h"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#include <sys/auxv.h>
#endif

#include "wire/bth.h"
#include "wire/packet.h"

namespace softmrc::wire {
namespace {

constexpr std::uint32_t polynomial = 0xEDB88320u;  // 0x04C11DB7 with its bits reversed

// tables[k][b]: what byte b does to the register when k more bytes follow it.
using Tables = std::array<std::array<std::uint32_t, 256>, 16>;

constexpr Tables make_tables() {
  Tables t{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t r = b;
    for (int i = 0; i < 8; ++i) r = (r >> 1) ^ (r & 1 ? polynomial : 0);
    t[0][b] = r;
  }
  for (std::size_t k = 1; k < 16; ++k)
    for (std::size_t b = 0; b < 256; ++b) t[k][b] = (t[k - 1][b] >> 8) ^ t[0][t[k - 1][b] & 0xFF];
  return t;
}

constexpr Tables tables = make_tables();

// Sixteen bytes a step: sixteen look-ups that do not wait for each other.
std::uint32_t update_table(std::uint32_t state, const std::uint8_t* p, std::size_t n) {
  for (; n >= 16; p += 16, n -= 16) {
    std::uint32_t word[4];
    std::memcpy(word, p, 16);
    word[0] ^= state;
    state = 0;
    for (std::size_t w = 0; w < 4; ++w)
      for (std::size_t b = 0; b < 4; ++b) state ^= tables[15 - 4 * w - b][(word[w] >> (8 * b)) & 0xFF];
  }
  for (; n; ++p, --n) state = (state >> 8) ^ tables[0][(state ^ *p) & 0xFF];
  return state;
}

#if defined(__x86_64__) || defined(__aarch64__)

// x^n modulo the polynomial, bits reversed and shifted up by one, the form in which a carry-less multiply of reversed
// numbers wants its constants.
constexpr std::uint64_t fold_constant(unsigned n) {
  std::uint32_t r = 0x80000000u;
  for (; n; --n) r = (r >> 1) ^ (r & 1 ? polynomial : 0);
  return static_cast<std::uint64_t>(r) << 1;
}

// To move 128 bits forward by d bits: the low half (which comes first) by x^(d+32), the high half by x^(d-32).
[[maybe_unused]] constexpr std::uint64_t by_4096[2] = {fold_constant(4096 + 32), fold_constant(4096 - 32)};
constexpr std::uint64_t by_512[2] = {fold_constant(512 + 32), fold_constant(512 - 32)};
constexpr std::uint64_t by_128[2] = {fold_constant(128 + 32), fold_constant(128 - 32)};

// How often the polynomial goes into x^64, bits reversed: with it a division is two multiplications.
constexpr std::uint64_t quotient_of_x64() {
  std::uint64_t quotient = 1, left = polynomial;  // x^32 went in once already; bit 0 is the highest power
  for (int bit = 1; bit <= 32; ++bit) {
    quotient |= (left & 1) << bit;
    left = (left >> 1) ^ (left & 1 ? polynomial : 0);
  }
  return quotient;
}
constexpr std::uint64_t by_64[2] = {fold_constant(128 - 32), fold_constant(64)};
constexpr std::uint64_t to_divide[2] = {static_cast<std::uint64_t>(polynomial) << 1 | 1, quotient_of_x64()};
static_assert(to_divide[0] == 0x1DB710641 && to_divide[1] == 0x1F7011641, "as the literature has them");

// What the processor offers for that: sixteen bytes in a register, moved forward and added to what lies there.
#if defined(__x86_64__)

#define SOFTMRC_CARRYLESS __attribute__((target("pclmul,sse2")))
using Lane = __m128i;

SOFTMRC_CARRYLESS inline Lane load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
SOFTMRC_CARRYLESS inline void store128(void* p, Lane x) { _mm_storeu_si128(static_cast<__m128i*>(p), x); }
SOFTMRC_CARRYLESS inline Lane add_state(Lane x, std::uint32_t state) {
  return _mm_xor_si128(x, _mm_cvtsi32_si128(static_cast<int>(state)));
}

SOFTMRC_CARRYLESS inline Lane fold(Lane x, Lane by, Lane next) {
  const Lane low = _mm_clmulepi64_si128(x, by, 0x00);
  const Lane high = _mm_clmulepi64_si128(x, by, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

// The remainder that these 128 bits leave: folded to 96, to 64, and divided.
SOFTMRC_CARRYLESS inline std::uint32_t remainder_of(Lane x) {
  const Lane low_words = _mm_setr_epi32(-1, 0, -1, 0);
  const Lane by = load128(by_64), divisor = load128(to_divide);
  x = _mm_xor_si128(_mm_srli_si128(x, 8), _mm_clmulepi64_si128(x, by, 0x00));
  x = _mm_xor_si128(_mm_srli_si128(x, 4), _mm_clmulepi64_si128(_mm_and_si128(x, low_words), by, 0x10));
  Lane times = _mm_clmulepi64_si128(_mm_and_si128(x, low_words), divisor, 0x10);
  times = _mm_clmulepi64_si128(_mm_and_si128(times, low_words), divisor, 0x00);
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm_srli_si128(_mm_xor_si128(x, times), 4)));
}

#else

#if defined(__clang__)
#define SOFTMRC_CARRYLESS __attribute__((target("aes")))
#else
#define SOFTMRC_CARRYLESS __attribute__((target("+crypto")))
#endif
using Lane = uint64x2_t;

SOFTMRC_CARRYLESS inline Lane load128(const void* p) {
  return vreinterpretq_u64_u8(vld1q_u8(static_cast<const std::uint8_t*>(p)));
}
SOFTMRC_CARRYLESS inline void store128(void* p, Lane x) {
  vst1q_u8(static_cast<std::uint8_t*>(p), vreinterpretq_u8_u64(x));
}
SOFTMRC_CARRYLESS inline Lane add_state(Lane x, std::uint32_t state) { return veorq_u64(x, Lane{state, 0}); }

// Written out: clang names these instructions only in files that are built for processors that have them.
SOFTMRC_CARRYLESS inline Lane fold(Lane x, Lane by, Lane next) {
  Lane low, high;
  asm("pmull %0.1q, %1.1d, %2.1d" : "=w"(low) : "w"(x), "w"(by));
  asm("pmull2 %0.1q, %1.2d, %2.2d" : "=w"(high) : "w"(x), "w"(by));
  return veorq_u64(veorq_u64(low, high), next);
}

// The remainder that these 128 bits leave.
SOFTMRC_CARRYLESS inline std::uint32_t remainder_of(Lane x) {
  std::uint8_t bytes[16];
  store128(bytes, x);
  return update_table(0, bytes, sizeof bytes);
}

#endif

// What is left of a message once everything before it is folded into `x`: sixteen bytes a step, then the table.
SOFTMRC_CARRYLESS inline std::uint32_t finish_carryless(Lane x, const std::uint8_t* p, std::size_t n) {
  const Lane near = load128(by_128);
  for (; n >= 16; p += 16, n -= 16) x = fold(x, near, load128(p));
  return update_table(remainder_of(x), p, n);
}

// Headers. Needs n >= 16.
SOFTMRC_CARRYLESS std::uint32_t update_short(std::uint32_t state, const std::uint8_t* p, std::size_t n) {
  return finish_carryless(add_state(load128(p), state), p + 16, n - 16);
}

// Folds the message onto its own last 128 bits, four lanes at a time, and lets the table finish: those 128 bits leave
// the same remainder as the whole. Needs n >= 64.
SOFTMRC_CARRYLESS std::uint32_t update_carryless(std::uint32_t state, const std::uint8_t* p, std::size_t n) {
  Lane lane[4];
  for (int i = 0; i < 4; ++i) lane[i] = load128(p + 16 * i);
  lane[0] = add_state(lane[0], state);
  const Lane far = load128(by_512);
  for (p += 64, n -= 64; n >= 64; p += 64, n -= 64)
    for (int i = 0; i < 4; ++i) lane[i] = fold(lane[i], far, load128(p + 16 * i));
  const Lane near = load128(by_128);
  Lane x = lane[0];
  for (int i = 1; i < 4; ++i) x = fold(x, near, lane[i]);
  return finish_carryless(x, p, n);
}

#endif

#if defined(__x86_64__)

#define SOFTMRC_WIDE __attribute__((target("vpclmulqdq,avx512f,pclmul,sse2")))

SOFTMRC_WIDE inline __m512i load512(const std::uint8_t* p) { return _mm512_loadu_si512(p); }
SOFTMRC_WIDE inline __m512i four_times(const std::uint64_t* constants) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(constants)));
}

SOFTMRC_WIDE inline __m512i fold_wide(__m512i x, __m512i by, __m512i next) {
  const __m512i low = _mm512_clmulepi64_epi128(x, by, 0x00);
  const __m512i high = _mm512_clmulepi64_epi128(x, by, 0x11);
  return _mm512_ternarylogic_epi64(low, high, next, 0x96);
}

// The same with eight lanes of 512 bits, for processors that multiply so many at once: as many as hide how long a
// multiplication takes. Needs n >= wide_from.
SOFTMRC_WIDE std::uint32_t update_wide(std::uint32_t state, const std::uint8_t* p, std::size_t n) {
  constexpr int lanes = 8;
  constexpr std::size_t step = 64 * lanes;
  constexpr std::size_t ahead =
      2048;  // the processor's own guess ends with a page; what lies behind the message is mostly the next
  __m512i lane[lanes];
  for (int i = 0; i < lanes; ++i) lane[i] = load512(p + 64 * i);
  lane[0] = _mm512_xor_si512(lane[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state))));
  const __m512i far = four_times(by_4096);
  for (p += step, n -= step; n >= step; p += step, n -= step)
    for (int i = 0; i < lanes; ++i) {
      _mm_prefetch(reinterpret_cast<const char*>(p + 64 * i + ahead), _MM_HINT_T0);
      lane[i] = fold_wide(lane[i], far, load512(p + 64 * i));
    }
  const __m512i middle = four_times(by_512);
  __m512i all = lane[0];
  for (int i = 1; i < lanes; ++i) all = fold_wide(all, middle, lane[i]);
  for (; n >= 64; p += 64, n -= 64) all = fold_wide(all, middle, load512(p));
  alignas(64) std::uint8_t quarters[64];
  _mm512_store_si512(quarters, all);
  _mm256_zeroupper();
  const Lane near = load128(by_128);
  Lane x = load128(quarters);
  for (int i = 1; i < 4; ++i) x = fold(x, near, load128(quarters + 16 * i));
  return finish_carryless(x, p, n);
}

constexpr std::size_t wide_from = 512;

bool wide_available() { return __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512f"); }

#endif

// Enough for the ones, the longer IP header and UDP.
constexpr std::size_t max_pseudo_size = 8 + 40 + 8;

std::size_t emit_pseudo_header(const Route& route, std::size_t udp_payload_size, std::uint32_t ipv4_identity,
                               std::uint8_t* out) {
  const auto udp_size = static_cast<std::uint32_t>(udp_payload_size + 8);
  const std::size_t address_size = route.destination.size();
  std::memset(out, 0xFF, 8);
  std::uint8_t* p = out + 8;
  if (route.is_v4()) {
    store16(p, 0x45FF);  // version, header length; TOS masked
    store16(p + 2, udp_size + 20);
    store32(p + 4, ipv4_identity);
    store32(p + 8, 0xFF11FFFF);  // TTL masked, UDP, header checksum masked
    p += 12;
  } else {
    store32(p, 0x6FFFFFFF);  // version; traffic class and flow label masked
    store16(p + 4, udp_size);
    store16(p + 6, 0x11FF);  // UDP; hop limit masked
    p += 8;
  }
  std::memcpy(p, route.source.bytes.data(), address_size);
  std::memcpy(p + address_size, route.destination.bytes.data(), address_size);
  p += 2 * address_size;
  store16(p, route.source_port);
  store16(p + 2, route.destination_port);
  store16(p + 4, udp_size);
  store16(p + 6, 0xFFFF);  // checksum masked
  return static_cast<std::size_t>(p + 8 - out);
}

std::uint32_t icrc_of(const Route& route, const Bytes* pieces, std::size_t count) {
  std::size_t size = icrc_size;
  for (std::size_t i = 0; i < count; ++i) size += pieces[i].size();
  Icrc sum(route, size);
  for (std::size_t i = 0; i < count; ++i) sum.add(pieces[i]);
  return sum.value();
}

}  // namespace

bool carryless_available() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("pclmul");
#elif defined(__aarch64__)
  static const bool has_pmull = getauxval(AT_HWCAP) & HWCAP_PMULL;
  return has_pmull;
#else
  return false;
#endif
}

std::uint32_t crc32_update(std::uint32_t state, Bytes bytes, [[maybe_unused]] CrcMethod method) {
#if defined(__x86_64__)
  if (bytes.size() >= wide_from && method == CrcMethod::automatic && wide_available())
    return update_wide(state, bytes.data(), bytes.size());
#endif
#if defined(SOFTMRC_CARRYLESS)
  if (bytes.size() >= 16 && method != CrcMethod::table && carryless_available())
    return (bytes.size() < 64 ? update_short : update_carryless)(state, bytes.data(), bytes.size());
#endif
  return update_table(state, bytes.data(), bytes.size());
}

namespace {
// What is copied to hide the masked byte: whole blocks of the carry-less multiply.
constexpr std::size_t head_size = 48;
}  // namespace

std::uint32_t icrc_seed(const Route& route, std::size_t udp_payload_size, std::uint32_t ipv4_identity) {
  std::uint8_t pseudo[max_pseudo_size];
  const std::size_t size = emit_pseudo_header(route, udp_payload_size, ipv4_identity, pseudo);
  return crc32_update(~0u, {pseudo, size});
}

bool verify_from(std::uint32_t seed, Bytes udp_payload) {
  if (udp_payload.size() < Bth::size + icrc_size) return false;
  const std::size_t covered = udp_payload.size() - icrc_size;
  std::uint8_t head[head_size];
  const std::size_t size = std::min(covered, sizeof head);
  std::memcpy(head, udp_payload.data(), size);
  head[icrc_masked_byte] = 0xFF;
  const std::uint32_t state = crc32_update(crc32_update(seed, {head, size}), udp_payload.subspan(size, covered - size));
  const std::uint32_t sum = ~state;
  return std::memcmp(&sum, udp_payload.data() + covered, icrc_size) == 0;
}

Icrc::Icrc(const Route& route, std::size_t udp_payload_size, CrcMethod method, std::uint32_t ipv4_identity)
    : state_(~0u), method_(method) {
  std::uint8_t pseudo[max_pseudo_size];
  const std::size_t size = emit_pseudo_header(route, udp_payload_size, ipv4_identity, pseudo);
  state_ = crc32_update(state_, {pseudo, size}, method_);
}

Icrc& Icrc::add(Bytes piece) {
  if (at_ <= icrc_masked_byte && at_ + piece.size() > icrc_masked_byte) {
    std::uint8_t head[head_size];
    const std::size_t size = std::min(piece.size(), sizeof head);
    std::memcpy(head, piece.data(), size);
    head[icrc_masked_byte - at_] = 0xFF;
    state_ = crc32_update(state_, {head, size}, method_);
    at_ += size;
    piece = piece.subspan(size);
  }
  state_ = crc32_update(state_, piece, method_);
  at_ += piece.size();
  return *this;
}

void Icrc::store(std::uint8_t* out) const {
  const std::uint32_t v = value();
  std::memcpy(out, &v, icrc_size);  // least significant byte first, as bytes.h requires of this machine
}

std::uint32_t icrc(const Route& route, std::span<const Bytes> pieces) {
  return icrc_of(route, pieces.data(), pieces.size());
}

std::uint32_t icrc(const Route& route, std::initializer_list<Bytes> pieces) {
  return icrc_of(route, pieces.begin(), pieces.size());
}

bool append_icrc(const Route& route, MutableBytes udp_payload, std::uint32_t ipv4_identity) {
  if (udp_payload.size() < Bth::size + icrc_size) return false;
  const std::size_t covered = udp_payload.size() - icrc_size;
  Icrc sum(route, udp_payload.size(), CrcMethod::automatic, ipv4_identity);
  sum.add(udp_payload.first(covered)).store(udp_payload.data() + covered);
  return true;
}

bool verify(const Route& route, Bytes udp_payload, std::uint32_t ipv4_identity) {
  if (udp_payload.size() < Bth::size + icrc_size) return false;
  const std::size_t covered = udp_payload.size() - icrc_size;
  std::uint8_t expected[icrc_size];
  Icrc sum(route, udp_payload.size(), CrcMethod::automatic, ipv4_identity);
  sum.add(udp_payload.first(covered)).store(expected);
  return std::memcmp(expected, udp_payload.data() + covered, icrc_size) == 0;
}

}  // namespace softmrc::wire
