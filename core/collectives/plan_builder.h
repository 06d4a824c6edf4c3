// What every algorithm draws its plan with: transfers to and from others, copies, merges.
#pragma once

#include <vector>

#include "collectives/plan.h"

namespace softmrc::collectives {

// Some of the ranks: all of them, or a row or a column of a grid. This rank is at `place` among them.
struct RankSubset {
  std::uint32_t first = 0;
  std::uint32_t stride = 1;
  std::uint32_t size = 1;
  std::uint32_t place = 0;

  std::uint32_t prev(std::uint32_t steps) const { return (place + size - steps % size) % size; }
  std::uint32_t next(std::uint32_t steps) const { return (place + steps) % size; }
  std::uint32_t rank_at(std::uint32_t which) const { return first + which * stride; }
};

struct PlanBuilder {
  const CollectiveCall& call;
  const std::uint32_t rank;
  const std::uint32_t size;
  const std::uint32_t unit;
  Operation& op;
  // Whether small transfers travel in messages, which need no grant. Only where a rank's end depends on all
  // others having begun: else one that is ahead could say more than the others can keep.
  bool uses_messages = false;
  std::vector<std::uint32_t> indices = std::vector<std::uint32_t>(std::size_t{4} *
                                                                  size);  // by peer, direction and kind

  RankSubset all() const { return {0, 1, size, rank}; }
  std::uint32_t prev(std::uint32_t steps) const { return all().prev(steps); }
  std::uint32_t next(std::uint32_t steps) const { return all().next(steps); }

  std::uint32_t receive(std::uint32_t peer, Part to);
  std::uint32_t send(std::uint32_t peer, Part from);
  // As the slices of an inbound transfer arrive.
  void forward(std::uint32_t peer, Part from, std::int32_t after);
  // When all that was planned to come in so far has been taken.
  void send_next(std::uint32_t peer, Part from);

  void copy(Part to, Part from);
  // A rank's own contribution as others may add it up: with its factor.
  void add_contribution(Part to, Part from);

  std::uint8_t* alloc_scratch(std::uint64_t bytes);

  // An inbound transfer is added to `local` while it lands; the sender of the first one sent what it had as it was.
  void reduce_on_landing(std::uint32_t in, const std::uint8_t* local, bool is_first, bool is_last);
  // Or to what the plan has put before it, when it is taken. All contributions have their factor by then.
  void merge(std::uint32_t in, std::uint8_t* to, const std::uint8_t* left, const std::uint8_t* right, bool is_last);

  Reduction reduction() const;
  bool has_factor() const { return reduces(call.kind) && call.op == ReduceOp::premul_sum; }
};

// A block in as many parts as there are ranks, as even as cuts at the ends of cache lines are.
std::vector<Part> cut(Part whole, std::uint32_t parts);

// What temporaries are laid out by.
constexpr std::uint64_t padded(std::uint64_t bytes) { return (bytes + 63) / 64 * 64; }

// direct.cpp
void plan_direct(PlanBuilder& d);
// When all has come in: the contributions of all ranks, side by side in `all`, become the result, in the order of
// ranks. Rank 0's is the `first` of them; after the last comes the one at the beginning. They stay as they are, since
// some of it may not have been sent yet.
void reduce_when_all_are_here(PlanBuilder& d, const std::uint8_t* all, Part out, std::uint32_t first, bool has_factors);

// rounds.cpp
void plan_gathered(PlanBuilder& d);
void plan_rounds(PlanBuilder& d);
// Parts of which each rank has its own, in `source`, when the slices of the transfer `after` have come, reach all: each
// to its place at once, and passed on from there slice by slice.
void gather_in_rounds(PlanBuilder& d, const std::vector<Part>& parts, std::uint32_t own, Part source,
                      std::int32_t after);
// What each of a circle has in `whole` becomes the sum of all of theirs; and the memory apart that this takes.
void all_reduce_in_rounds(PlanBuilder& d, const RankSubset& circle, Part whole, std::uint8_t* landing);
std::uint64_t landing_in_rounds(const RankSubset& circle, Part whole);

// doubling.cpp, ring.cpp
void plan_doubling(PlanBuilder& d);
void plan_ring(PlanBuilder& d);
void plan_grid(PlanBuilder& d, std::uint32_t columns);

// trees.cpp: broadcast and reduce.
void plan_tree(PlanBuilder& d, Algorithm algorithm);

}  // namespace softmrc::collectives
