// Big-endian loads and stores on spans whose length the caller has already checked.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace softmrc::wire {

using Bytes = std::span<const std::uint8_t>;
using MutableBytes = std::span<std::uint8_t>;

inline std::uint16_t load16(const std::uint8_t* p) { return static_cast<std::uint16_t>(p[0] << 8 | p[1]); }
inline std::uint32_t load24(const std::uint8_t* p) {
  return static_cast<std::uint32_t>(p[0]) << 16 | static_cast<std::uint32_t>(p[1]) << 8 | p[2];
}
inline std::uint32_t load32(const std::uint8_t* p) {
  std::uint32_t raw;
  std::memcpy(&raw, p, 4);
  return __builtin_bswap32(raw);
}
inline std::uint64_t load64(const std::uint8_t* p) {
  std::uint64_t raw;
  std::memcpy(&raw, p, 8);
  return __builtin_bswap64(raw);
}

inline void store16(std::uint8_t* p, std::uint32_t v) {
  p[0] = static_cast<std::uint8_t>(v >> 8);
  p[1] = static_cast<std::uint8_t>(v);
}
inline void store24(std::uint8_t* p, std::uint32_t v) {
  p[0] = static_cast<std::uint8_t>(v >> 16);
  store16(p + 1, v);
}
inline void store32(std::uint8_t* p, std::uint32_t v) {
  const std::uint32_t raw = __builtin_bswap32(v);
  std::memcpy(p, &raw, 4);
}
inline void store64(std::uint8_t* p, std::uint64_t v) {
  const std::uint64_t raw = __builtin_bswap64(v);
  std::memcpy(p, &raw, 8);
}

static_assert(std::endian::native == std::endian::little, "the loads and stores above swap bytes");

}  // namespace softmrc::wire
