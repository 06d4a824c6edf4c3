// Which algorithm a call takes: the cheapest by a model of four constants. All ranks must choose alike and every run
// must choose as the last one did, so the model sees the call and the number of ranks, and nothing that was measured
// since.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "collectives/types.h"

namespace softmrc::collectives {

constexpr std::uint64_t eager_limit = 8 * 1024;  // bytes of a transfer that travel in a message

// Ranks of one host over loopback with four planes, 16 cores (docs/design/collective-algorithms.md has the fit).
struct Costs {
  std::uint64_t latency_ns = 10'000;  // from a message's leaving to what it sets off
  std::uint64_t message_ns = 25'000;  // for each message, to send and to take it: a rank's messages wait for each other
  std::uint64_t byte_ps = 600;        // for each byte that a rank sends while it receives one
  std::uint64_t pass_ps = 150;        // for each byte that is merged or copied apart from its landing
};

// What the choice depends on.
struct CollectiveSize {
  Kind kind = Kind::barrier;
  std::uint32_t ranks = 1;
  std::uint64_t bytes = 0;         // of one rank's contribution, or of the result: all parts together
  std::uint64_t largest = 0;       // of the parts, where there is one for each rank
  std::uint32_t side_by_side = 1;  // ranks that share a machine
};

constexpr std::uint64_t impossible_ps = std::numeric_limits<std::uint64_t>::max();

// By the model, in picoseconds; impossible_ps where the algorithm is none for this call.
std::uint64_t time_of(Algorithm algorithm, const CollectiveSize& load, const Costs& costs);

// How many columns the best grid for this call has, all of them full; 1 where no number divides the ranks.
std::uint32_t columns_of(const CollectiveSize& load, const Costs& costs);

// `forced` if it is possible.
Algorithm cheapest(const CollectiveSize& load, const Costs& costs, std::optional<Algorithm> forced = {});

// How many others a rank may speak with in one operation, except in those where each pair has different data: a rank is
// not to hold a thousand connections because it once called a barrier.
std::uint32_t max_peers(std::uint32_t ranks);

}  // namespace softmrc::collectives
