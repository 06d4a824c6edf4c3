// 16-bit floating point as memory holds it, to float and back, rounding to nearest even. Included by reduce_kernels.h
// alone, inside its namespace per build.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#if defined(__F16C__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace softmrc::collectives::SOFTMRC_KERNELS {
namespace {

inline std::uint16_t load16(const std::uint8_t* p) {
  std::uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}

struct Bfloat16 {
  static void widen(float* out, const std::uint8_t* in, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i)
      out[i] = std::bit_cast<float>(static_cast<std::uint32_t>(load16(in + 2 * i)) << 16);
  }
  static void narrow(std::uint8_t* out, const float* in, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t bits = std::bit_cast<std::uint32_t>(in[i]);
      const std::uint32_t rounded = bits + 0x7FFF + (bits >> 16 & 1);
      const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
      const std::uint16_t v = static_cast<std::uint16_t>(is_nan ? 0x7FC0u : rounded >> 16);
      std::memcpy(out + 2 * i, &v, 2);
    }
  }
};

inline float widen_float16(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000) << 16;
  const std::uint32_t rest = h & 0x7FFF;
  if (rest >= 0x7C00)
    return std::bit_cast<float>(sign | 0x7F800000 | (rest & 0x3FF) << 13 | (rest > 0x7C00 ? 0x400000u : 0u));
  // The exponent is rebased by a multiplication, which also normalises what was subnormal.
  const float magnitude = std::bit_cast<float>(rest << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

inline std::uint16_t narrow_float16(float f) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(f);
  const std::uint32_t sign = bits >> 16 & 0x8000;
  const std::uint32_t rest = bits & 0x7FFFFFFF;
  if (rest > 0x7F800000) return static_cast<std::uint16_t>(sign | 0x7E00 | (rest >> 13 & 0x3FF));
  if (rest >= 0x477FF000) return static_cast<std::uint16_t>(sign | 0x7C00);  // rounds to infinity
  if (rest < 0x38800000) {
    // Subnormal: adding a number whose last place is ours makes the processor round.
    const float shifted = std::bit_cast<float>(rest) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000));
  }
  return static_cast<std::uint16_t>(sign | (rest - 0x38000000 + 0xFFF + (rest >> 13 & 1)) >> 13);
}

struct Float16 {
  static void widen(float* out, const std::uint8_t* in, std::size_t count) {
    std::size_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= count; i += 8)
      _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(in + 2 * i))));
#elif defined(__aarch64__)
    for (; i + 4 <= count; i += 4) vst1q_f32(out + i, vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(in + 2 * i))));
#endif
    for (; i < count; ++i) out[i] = widen_float16(load16(in + 2 * i));
  }
  static void narrow(std::uint8_t* out, const float* in, std::size_t count) {
    std::size_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= count; i += 8)
      _mm_storeu_si128(reinterpret_cast<__m128i_u*>(out + 2 * i),
                       _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
    for (; i + 4 <= count; i += 4) vst1_u8(out + 2 * i, vreinterpret_u8_f16(vcvt_f16_f32(vld1q_f32(in + i))));
#endif
    for (; i < count; ++i) {
      const std::uint16_t v = narrow_float16(in[i]);
      std::memcpy(out + 2 * i, &v, 2);
    }
  }
};

}  // namespace
}  // namespace softmrc::collectives::SOFTMRC_KERNELS
