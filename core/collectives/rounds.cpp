// In rounds, each of which halves what is left to do: ceil(log2 n) of them for any n, and no byte is sent that a ring
// would not send. A rank sees the n blocks from itself on: number 0 is its own, i is that of the i-th rank beyond it,
// in the circle of those that take part.
//
// Reducing, a round narrows the blocks that a rank has a part in from `width` to `half` of them (rounded up): it sends
// the upper ones to the rank `half` beyond it, whose lower ones they are, and merges what comes from `half` before it
// into its own lower ones. In the end it has the sum of number 0. Gathering is the same backwards. (J. L. Träff,
// "Optimal, non-pipelined reduce-scatter and allreduce algorithms", 2024; gathering: J. Bruck et al., 1997.)
#include <algorithm>
#include <cstring>

#include "collectives/plan_builder.h"

namespace softmrc::collectives {
namespace {

// Side by side in memory from block 0 on; but where the blocks are the parts of a buffer, the last part's neighbour is
// the first one, at the other end.
struct Blocks {
  RankSubset circle;
  std::vector<Part> parts;
  std::uint32_t wrap;  // the number of the part with which the buffer begins

  Part run(std::uint32_t first, std::uint32_t last) const {
    std::uint64_t bytes = 0;
    for (std::uint32_t i = first; i < last; ++i) bytes += parts[i].bytes;
    return {parts[first].data, bytes, parts[first].site};
  }
  // One piece, or two; all ranks cut alike.
  std::vector<Part> pieces(std::uint32_t first, std::uint32_t last) const {
    if (first < wrap && wrap < last) return {run(first, wrap), run(wrap, last)};
    return {run(first, last)};
  }
};

Blocks parts_of(const RankSubset& circle, Part whole) {
  const std::vector<Part> parts = cut(whole, circle.size);
  Blocks blocks{circle, {}, circle.size - circle.place};
  for (std::uint32_t i = 0; i < circle.size; ++i) {
    Part& part = blocks.parts.emplace_back(parts[circle.next(i)]);
    part.site = {static_cast<std::uint64_t>(part.data - whole.data), whole.bytes, whole.site.blocks};
  }
  return blocks;
}

// In temporary memory, where they need not wrap; nowhere, where only their lengths are wanted.
Blocks side_by_side(const PlanBuilder& d, const std::vector<Part>& parts, std::uint8_t* at) {
  Blocks blocks{d.all(), {}, d.size};
  for (std::uint32_t i = 0; i < d.size; ++i) {
    blocks.parts.push_back({at, parts[d.next(i)].bytes});
    if (at) at += blocks.parts.back().bytes;
  }
  return blocks;
}

std::uint64_t total_of(const std::vector<Part>& parts) {
  std::uint64_t bytes = 0;
  for (const Part& part : parts) bytes += part.bytes;
  return bytes;
}

struct Round {
  std::uint32_t half;
  std::uint32_t width;
};
std::vector<Round> rounds_of(std::uint32_t ranks) {
  std::vector<Round> rounds;
  for (std::uint32_t width = ranks; width > 1; width = rounds.back().half) rounds.push_back({(width + 1) / 2, width});
  return rounds;
}

// What comes in lands apart from what it is merged with. Blocks may differ, and the first ones come more than once.
std::uint64_t landing_bytes(const Blocks& blocks) {
  std::uint64_t bytes = 0;
  for (const Round round : rounds_of(static_cast<std::uint32_t>(blocks.parts.size())))
    for (const Part& piece : blocks.pieces(0, round.width - round.half)) bytes += padded(piece.bytes);
  return bytes;
}

void reduce(PlanBuilder& d, const Blocks& blocks, Part result, std::uint8_t* landing) {
  const RankSubset& circle = blocks.circle;
  for (const Round round : rounds_of(circle.size)) {
    for (const Part& piece : blocks.pieces(round.half, round.width))
      d.send_next(circle.rank_at(circle.next(round.half)), piece);
    for (const Part& piece : blocks.pieces(0, round.width - round.half)) {
      const std::uint32_t in = d.receive(circle.rank_at(circle.prev(round.half)), {landing, piece.bytes, piece.site});
      const bool is_last = round.half == 1;
      d.merge(in, is_last ? result.data : piece.data, landing, piece.data, is_last);
      landing += padded(piece.bytes);
    }
  }
}

void gather(PlanBuilder& d, const Blocks& blocks) {
  const RankSubset& circle = blocks.circle;
  const std::vector<Round> rounds = rounds_of(circle.size);
  for (auto round = rounds.rbegin(); round != rounds.rend(); ++round) {
    for (const Part& piece : blocks.pieces(0, round->width - round->half))
      d.send_next(circle.rank_at(circle.prev(round->half)), piece);
    for (const Part& piece : blocks.pieces(round->half, round->width))
      d.receive(circle.rank_at(circle.next(round->half)), piece);
  }
}

// Of a reduce, only the root has a place for the result.
void all_reduce(PlanBuilder& d) {
  const Part in = d.call.inputs[0];
  const std::uint64_t room = landing_in_rounds(d.all(), in);
  std::uint8_t* landing = d.alloc_scratch(room + in.bytes);
  const Part out = d.call.outputs.empty() ? Part{landing + room, in.bytes} : d.call.outputs[0];
  d.add_contribution(out, in);
  all_reduce_in_rounds(d, d.all(), out, landing);
}

void reduce_scatter(PlanBuilder& d) {
  const std::uint64_t room = landing_bytes(side_by_side(d, d.call.inputs, nullptr));
  std::uint8_t* landing = d.alloc_scratch(room + total_of(d.call.inputs));
  const Blocks blocks = side_by_side(d, d.call.inputs, landing + room);
  for (std::uint32_t i = 0; i < d.size; ++i) d.add_contribution(blocks.parts[i], d.call.inputs[d.next(i)]);
  reduce(d, blocks, d.call.outputs[0], landing);
}

// Small parts, many in a message; in the end each goes to its place.
void gather_small(PlanBuilder& d) {
  const Blocks blocks = side_by_side(d, d.call.outputs, d.alloc_scratch(total_of(d.call.outputs)));
  d.copy(blocks.parts[0], d.call.inputs[0]);
  gather(d, blocks);
  d.op.finish = [parts = blocks.parts, outputs = d.call.outputs, own = d.rank] {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].bytes) std::memcpy(outputs[(own + i) % outputs.size()].data, parts[i].data, parts[i].bytes);
    }
  };
}

void all_gather(PlanBuilder& d) {
  std::uint64_t largest = 0;
  for (const Part& part : d.call.outputs) largest = std::max(largest, part.bytes);
  d.uses_messages = largest <= eager_limit;
  if (d.uses_messages) return gather_small(d);
  d.op.is_striped = true;  // nothing here waits for what is of another length
  gather_in_rounds(d, d.call.outputs, d.rank, d.call.inputs[0], -1);
  d.copy(d.call.outputs[d.rank], d.call.inputs[0]);
}

}  // namespace

void gather_in_rounds(PlanBuilder& d, const std::vector<Part>& parts, std::uint32_t own, Part source,
                      std::int32_t after) {
  const std::vector<Round> rounds = rounds_of(d.size);
  std::vector<std::int32_t> came(d.size, after);
  for (auto round = rounds.rbegin(); round != rounds.rend(); ++round) {
    for (std::uint32_t i = 0; i < round->width - round->half; ++i) {
      d.forward(d.prev(round->half), i == 0 ? source : parts[(own + i) % d.size], came[i]);
      came[round->half + i] = static_cast<std::int32_t>(
          d.receive(d.next(round->half), parts[(own + round->half + i) % d.size]));
    }
  }
}

std::uint64_t landing_in_rounds(const RankSubset& circle, Part whole) { return landing_bytes(parts_of(circle, whole)); }

void all_reduce_in_rounds(PlanBuilder& d, const RankSubset& circle, Part whole, std::uint8_t* landing) {
  const Blocks blocks = parts_of(circle, whole);
  reduce(d, blocks, blocks.parts[0], landing);
  gather(d, blocks);
}

void plan_gathered(PlanBuilder& d) {
  d.uses_messages = true;
  const Part in = d.call.inputs[0];
  const Blocks blocks = side_by_side(d, std::vector<Part>(d.size, in), d.alloc_scratch(in.bytes * d.size));
  d.add_contribution(blocks.parts[0], in);
  gather(d, blocks);
  reduce_when_all_are_here(d, blocks.parts[0].data, d.call.outputs[0], (d.size - d.rank) % d.size, true);
}

void plan_rounds(PlanBuilder& d) {
  d.uses_messages = true;
  switch (d.call.kind) {
    case Kind::all_reduce:
    case Kind::reduce: return all_reduce(d);
    case Kind::reduce_scatter: return reduce_scatter(d);
    case Kind::all_gather: return all_gather(d);
    default:
      return gather(d,
                    {d.all(), std::vector<Part>(d.size), d.size});  // a barrier: nothing, from everybody to everybody
  }
}

}  // namespace softmrc::collectives
