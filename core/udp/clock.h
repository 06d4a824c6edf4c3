// The driver's clock: monotonic, counted from the moment the device was made, so that 63 bits of picoseconds last 106
// days of the device's life rather than of the machine's.
#pragma once

#include <time.h>

#include "base/time.h"

namespace softmrc::udp {

inline std::int64_t nanoseconds_of(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

// What the time of day is, for captures.
inline std::uint64_t wall_ns() { return static_cast<std::uint64_t>(nanoseconds_of(CLOCK_REALTIME)); }

class Clock {
 public:
  Clock() : origin_ns_(monotonic_ns()) {}

  Time now() const { return {(monotonic_ns() - origin_ns_) * 1'000}; }
  std::int64_t monotonic_ns_of(Time at) const { return origin_ns_ + at.ps / 1'000; }

 private:
  static std::int64_t monotonic_ns() { return nanoseconds_of(CLOCK_MONOTONIC); }

  std::int64_t origin_ns_;
};

}  // namespace softmrc::udp
