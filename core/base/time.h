// Time as the core knows it: a signed 64-bit count of picoseconds since the driver's own origin.
// A picosecond is fine enough for one bit at 800 Gb/s to be a whole number of them, and 63 bits last 106 days.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>

namespace softmrc {

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
  constexpr Time operator+(Duration d) const { return {ps + d.ps}; }
  constexpr Time operator-(Duration d) const { return {ps - d.ps}; }
  constexpr Duration operator-(Time other) const { return {ps - other.ps}; }

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
