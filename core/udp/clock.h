// The driver's clock: monotonic, counted from the moment the device was made, so that 63 bits of picoseconds last 106
// days of the device's life rather than of the machine's.
#pragma once

#include <time.h>

#include "base/time.h"

namespace softmrc::udp {

class Clock {
 public:
  Clock() : origin_ns_(monotonic_ns()) {}

  Time now() const { return {(monotonic_ns() - origin_ns_) * 1'000}; }
  std::int64_t monotonic_ns_of(Time at) const { return origin_ns_ + at.ps / 1'000; }
  // Wall-clock nanoseconds of a moment, for captures.
  std::uint64_t wall_ns(Time at) const {
    timespec t{};
    clock_gettime(CLOCK_REALTIME, &t);
    const std::int64_t age_ns = (now() - at).ps / 1'000;
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec - age_ns);
  }

 private:
  static std::int64_t monotonic_ns() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
  }

  std::int64_t origin_ns_;
};

}  // namespace softmrc::udp
