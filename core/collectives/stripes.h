// How an operation is spread over channels: each of its transfers is cut, and stripe k goes by channel k. So who adds
// what to what, and in which order, does not depend on how many channels there are, and a stripe waits for stripes of
// its own channel alone. Both ends of a transfer cut it alike, for they look at its length and at nothing else.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "collectives/operation.h"
#include "collectives/work.h"

namespace softmrc::collectives {

// Less than a slice is not worth waking another thread for.
constexpr std::uint64_t smallest_stripe = smallest_slice;

// One call, from its issue until all its stripes have ended. What is not atomic is written before it starts, under the
// group's mutex; the mutex then hands it to the channels.
struct InflightOp {
  std::uint32_t number = 0;
  CollectiveFingerprint descriptor;
  std::vector<Range> ranges;
  std::deque<Reduction> reductions;
  std::unique_ptr<std::uint8_t[]> temporary;
  std::vector<std::unique_ptr<Operation>> stripes;  // by channel, null where there is none, until it starts
  bool has_started = false;
  Time deadline = Time::never();
  double timeout_s = 0;
  std::shared_ptr<Work> work;
  std::atomic<std::uint32_t> open{0};  // stripes; the channel that ends the last one has seen what all others did
  std::atomic<bool> has_failed{false};

  bool conflicts(const InflightOp& other) const {
    for (const Range& a : ranges)
      for (const Range& b : other.ranges)
        if (a.conflicts(b)) return true;
    return false;
  }
};

// One operation for every channel that has something to do, the first always.
std::vector<std::unique_ptr<Operation>> cut_into_stripes(std::unique_ptr<Operation> whole, std::uint32_t channels,
                                                         std::uint64_t unit);

}  // namespace softmrc::collectives
