// Time as the core knows it: a signed 64-bit count of picoseconds since the driver's own origin. A picosecond is fine
// enough for one bit at 800 Gb/s to be a whole number of them, and 63 bits last 106 days. Sums and differences of
// times end at the ends of that range: what never comes stays so whatever is added to it, and what was long ago was
// so long before any time.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>

namespace softmrc {

constexpr std::int64_t saturated_sum(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (!__builtin_add_overflow(a, b, &sum)) [[likely]]
    return sum;
  return b > 0 ? std::numeric_limits<std::int64_t>::max() : std::numeric_limits<std::int64_t>::min();
}
constexpr std::int64_t saturated_difference(std::int64_t a, std::int64_t b) {
  std::int64_t difference = 0;
  if (!__builtin_sub_overflow(a, b, &difference)) [[likely]]
    return difference;
  return b < 0 ? std::numeric_limits<std::int64_t>::max() : std::numeric_limits<std::int64_t>::min();
}

struct Duration {
  std::int64_t ps = 0;

  constexpr auto operator<=>(const Duration&) const = default;
  constexpr Duration operator+(Duration other) const { return {ps + other.ps}; }
  constexpr Duration operator-(Duration other) const { return {ps - other.ps}; }
  constexpr Duration operator*(std::int64_t factor) const { return {ps * factor}; }
  constexpr Duration operator/(std::int64_t divisor) const { return {ps / divisor}; }
  constexpr Duration operator-() const { return {-ps}; }
};

struct Time {
  std::int64_t ps = 0;

  constexpr auto operator<=>(const Time&) const = default;
  constexpr Time operator+(Duration d) const { return {saturated_sum(ps, d.ps)}; }
  constexpr Time operator-(Duration d) const { return {saturated_difference(ps, d.ps)}; }
  constexpr Duration operator-(Time other) const { return {saturated_difference(ps, other.ps)}; }

  // The time that never comes: an unset deadline.
  static constexpr Time never() { return {std::numeric_limits<std::int64_t>::max()}; }
  // Before every event: "this has not happened yet".
  static constexpr Time long_ago() { return {std::numeric_limits<std::int64_t>::min() / 4}; }
};

constexpr Duration picoseconds(std::int64_t n) { return {n}; }
constexpr Duration nanoseconds(std::int64_t n) { return {n * 1'000}; }
constexpr Duration microseconds(std::int64_t n) { return {n * 1'000'000}; }
constexpr Duration milliseconds(std::int64_t n) { return {n * 1'000'000'000}; }
constexpr Duration seconds(std::int64_t n) { return {n * 1'000'000'000'000}; }

}  // namespace softmrc
