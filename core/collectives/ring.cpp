// A ring: every rank adds its own to what its neighbour sends, while that lands, and passes it on. One incoming value
// for each element and step, the caller's memory to add it to, and no other: large blocks among not too many ranks.
//
// And among many: a grid, whose rows are ranks side by side. Each row goes round its own ring, so that all but a small
// part of the path is as short as a row; what a rank then has of its row's sum is added up down its column, in rounds;
// and the rows go round once more, with the result.
#include "collectives/plan_builder.h"
#include "collectives/stripes.h"

namespace softmrc::collectives {
namespace {

// Step s passes on the part that came in at step s - 1; `first` is the part that a rank sends at step 0.
// What a step lands in is given by `landing`, the last one completes this rank's own part.
template <typename Landing>
std::int32_t go_round(PlanBuilder& d, const RankSubset& ring, std::uint32_t first, const std::vector<Part>& inputs,
                      Landing landing) {
  Part passed = inputs[first];
  std::int32_t after = -1;
  for (std::uint32_t s = 0; s + 1 < ring.size; ++s) {
    const std::uint32_t part = (first + ring.size - s - 1) % ring.size;
    const bool is_last = s + 2 == ring.size;
    d.forward(ring.rank_at(ring.next(1)), passed, after);
    passed = landing(part, is_last);
    const std::uint32_t in = d.receive(ring.rank_at(ring.prev(1)), passed);
    d.reduce_on_landing(in, inputs[part].data, s == 0, is_last && ring.size == d.size);
    after = static_cast<std::int32_t>(in);
    if (s > 0) continue;
    d.op.outs[0].beside = after;
    d.op.ins[0].feeds.push_back(0);
  }
  return after;
}

// The parts' owners send them to all: directly where that makes few connections, since the path then ends with it.
void all_reduce_along_ring(PlanBuilder& d) {
  const std::vector<Part> inputs = cut(d.call.inputs[0], d.size);
  const std::vector<Part> outputs = cut(d.call.outputs[0], d.size);
  const std::int32_t owned = go_round(d, d.all(), d.rank, inputs,
                                      [&](std::uint32_t part, bool) { return outputs[part]; });
  if (d.size - 1 > max_peers(d.size)) return gather_in_rounds(d, outputs, d.next(1), outputs[d.next(1)], owned);
  for (std::uint32_t step = 1; step < d.size; ++step) {
    d.forward(d.next(step), outputs[d.next(1)], owned);
    d.receive(d.prev(step), outputs[(d.prev(step) + 1) % d.size]);
  }
}

void reduce_scatter_along_ring(PlanBuilder& d) {
  const std::vector<Part>& inputs = d.call.inputs;
  std::vector<std::uint64_t> starts;
  std::uint64_t total = 0;
  for (const Part& part : inputs) {
    starts.push_back(total);
    total += padded(part.bytes);
  }
  if (d.size > 2) d.alloc_scratch(total);
  go_round(d, d.all(), d.prev(1), inputs, [&](std::uint32_t part, bool is_last) {
    return is_last ? d.call.outputs[0] : Part{d.op.temporary.get() + starts[part], inputs[part].bytes};
  });
}

// The own part, when all that was planned before has been taken; then what the neighbour passes on.
void hand_round(PlanBuilder& d, const RankSubset& ring, const std::vector<Part>& parts, std::uint32_t own) {
  const std::uint32_t next = ring.rank_at(ring.next(1)), previous = ring.rank_at(ring.prev(1));
  d.send_next(next, parts[own]);
  for (std::uint32_t s = 1; s < ring.size; ++s) {
    const Part part = parts[(own + ring.size - s) % ring.size];
    const std::uint32_t in = d.receive(previous, part);
    if (s + 1 < ring.size) d.forward(next, part, static_cast<std::int32_t>(in));
  }
}

// Which a column cuts them into: so they go by the channel that carries them there.
std::vector<Part> in_blocks(std::vector<Part> parts, std::uint32_t blocks) {
  for (Part& part : parts) part.site = {0, part.bytes, blocks};
  return parts;
}

}  // namespace

void plan_ring(PlanBuilder& d) {
  if (d.call.kind == Kind::all_reduce) all_reduce_along_ring(d);
  else reduce_scatter_along_ring(d);
}

void plan_grid(PlanBuilder& d, std::uint32_t columns) {
  const RankSubset row{d.rank - d.rank % columns, 1, columns, d.rank % columns};
  const RankSubset column{d.rank % columns, columns, d.size / columns, d.rank / columns};
  const std::vector<Part> inputs = in_blocks(cut(d.call.inputs[0], columns), column.size);
  const std::vector<Part> outputs = in_blocks(cut(d.call.outputs[0], columns), column.size);
  go_round(d, row, row.place, inputs, [&](std::uint32_t part, bool) { return outputs[part]; });
  const std::uint32_t own = row.next(1);
  d.uses_messages = outputs[own].bytes <= smallest_stripe;  // messages keep to one channel
  all_reduce_in_rounds(d, column, outputs[own], d.alloc_scratch(landing_in_rounds(column, outputs[own])));
  d.uses_messages = false;
  hand_round(d, row, outputs, own);
}

}  // namespace softmrc::collectives
