// Sequence numbers that wrap: PSN (24 bits), MSN and RQMSN (16 bits).
// They have no absolute order: only the distance between two is defined, and it is right while they are less than half
// the number space apart.
#pragma once

#include <cstdint>

namespace softmrc {

// spec: wrap
template <unsigned Bits>
struct Serial {
  static_assert(Bits > 1 && Bits < 32);
  static constexpr std::uint32_t mask = (1u << Bits) - 1;

  std::uint32_t value = 0;

  constexpr Serial() = default;
  constexpr explicit Serial(std::uint32_t v) : value(v & mask) {}

  constexpr bool operator==(const Serial&) const = default;
  constexpr Serial operator+(std::int64_t n) const {
    return Serial(static_cast<std::uint32_t>(static_cast<std::int64_t>(value) + n));
  }
  constexpr Serial operator-(std::int64_t n) const { return *this + -n; }
  constexpr Serial& operator++() { return *this = *this + 1; }

  // The signed distance from `other` to this: positive when this comes later.
  constexpr std::int32_t operator-(Serial other) const {
    const std::uint32_t raw = (value - other.value) << (32 - Bits);
    return static_cast<std::int32_t>(raw) >> (32 - Bits);
  }
};

using Psn = Serial<24>;
using Msn = Serial<16>;

}  // namespace softmrc
