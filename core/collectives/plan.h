// From a call to an Operation, by the algorithm that cost.h finds cheapest. That depends on sizes and ranks alone, so
// every rank chooses alike and results never depend on the network. One file for each family:
//
//   direct    everybody with everybody (or with the root) in one step, reduced in the order of ranks
//   gathered  all contributions to all ranks in ceil(log2 n) rounds, then reduced in the order of ranks
//   doubling  partners exchange their sums, with twice the distance in each step
//   rounds    reduce-scatter, all-gather or both, in ceil(log2 n) rounds each
//   ring      reduce-scatter round a ring, added up while it lands; for an all_reduce the owners then send to all
//   grid      rows of a grid round rings, then its columns in rounds, then the rows again
//   binomial, binary, chain   trees for broadcast and reduce
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/cost.h"
#include "collectives/operation.h"

namespace softmrc::collectives {

struct RankInfo {
  std::uint32_t rank = 0;
  std::uint32_t size = 1;
  std::uint32_t unit = 4096;          // bytes of whole packets, the same for all ranks: see slice_for
  Costs costs{};                      // the same for all ranks
  std::optional<Algorithm> forced{};  // where it is possible: for tests and benches, on all ranks
  bool is_dry_run = false;            // in simulators: lengths alone count, no memory is read or written
  std::uint32_t side_by_side = 1;  // ranks of every machine, if they are as many everywhere and have numbers in a row
};

struct Part {
  std::uint8_t* data = nullptr;
  std::uint64_t bytes = 0;
  Site site{};  // of algorithms whose transfers are pieces of others
};

// What the caller asked for. Single blocks are a list of one part; lists have a part for every rank.
struct CollectiveCall {
  Kind kind = Kind::barrier;
  DType dtype = DType::uint8;
  ReduceOp op = ReduceOp::sum;
  double factor = 1;
  std::int32_t root = -1;
  std::vector<Part> inputs;
  std::vector<Part> outputs;
};

// Empty when the call makes sense on this rank; else what is wrong with it.
std::string check(const CollectiveCall& call, RankInfo place);

// The call must have passed check().
std::unique_ptr<Operation> plan(const CollectiveCall& call, RankInfo place);

}  // namespace softmrc::collectives
