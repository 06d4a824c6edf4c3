// The algorithms: from a call to an Operation. Which one is used depends on sizes and ranks alone, so that every rank
// chooses alike and results never depend on the weather.
//
//   all_reduce       small: everybody sends everything to everybody, each reduces in the order of ranks
//                    large: ring reduce-scatter, added up while it lands; then each owner sends its part to all
//   reduce_scatter   the ring
//   all_gather, all_to_all, gather, scatter   directly
//   broadcast        small: from the root to each; large: along a chain, slice by slice
//   reduce           small: all to the root, which reduces in the order of ranks; large: along a chain
//   barrier          everybody to everybody
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collectives/operation.h"

namespace softmrc::collectives {

constexpr std::uint64_t eager_limit = 8 * 1024;       // bytes from one rank to another that travel in a message
constexpr std::uint64_t eager_total = 64 * 1024;      // that one rank may send so in one all_reduce
constexpr std::uint64_t flat_limit = 64 * 1024;       // broadcast and reduce without a chain

struct Place {
  std::uint32_t rank = 0;
  std::uint32_t size = 1;
  std::uint32_t unit = 4096;  // bytes of whole packets, the same for all ranks: see slice_for
};

struct Part {
  std::uint8_t* data = nullptr;
  std::uint64_t bytes = 0;
};

// What the caller asked for. Single blocks are a list of one part; lists have a part for every rank.
struct Call {
  Kind kind = Kind::barrier;
  DType dtype = DType::uint8;
  ReduceOp op = ReduceOp::sum;
  double factor = 1;
  std::int32_t root = -1;
  std::vector<Part> inputs;
  std::vector<Part> outputs;
};

// Empty when the call makes sense on this rank; else what is wrong with it.
std::string check(const Call& call, Place place);

// The call must have passed check().
std::unique_ptr<Operation> plan(const Call& call, Place place);

}  // namespace softmrc::collectives
