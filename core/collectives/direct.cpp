// Everybody with everybody, or with the root, in one step. The least time among few ranks; and the only one where each
// pair has different data, or where the root has something else from each.
#include "collectives/plan_builder.h"

namespace softmrc::collectives {
namespace {

// A rank begins with its neighbours, so that not all of them begin with the same one.
void exchange(PlanBuilder& d, const std::vector<Part>& inputs, const std::vector<Part>& outputs) {
  d.uses_messages = true;
  for (std::uint32_t step = 1; step < d.size; ++step) {
    d.send(d.next(step), inputs[d.next(step)]);
    d.receive(d.prev(step), outputs[d.prev(step)]);
  }
}

// Everybody gets what the others have for it, and reduces that.
void exchange_and_reduce(PlanBuilder& d, const std::vector<Part>& inputs) {
  const Part out = d.call.outputs[0];
  std::uint8_t* all = d.alloc_scratch(out.bytes * d.size);
  std::vector<Part> landings;
  for (std::uint32_t p = 0; p < d.size; ++p) landings.push_back({all + p * out.bytes, out.bytes});
  exchange(d, inputs, landings);
  d.copy(landings[d.rank], inputs[d.rank]);
  reduce_when_all_are_here(d, all, out, 0, false);
}

void to_root(PlanBuilder& d, const std::vector<Part>& landings) {
  const std::uint32_t root = static_cast<std::uint32_t>(d.call.root);
  if (d.rank != root) {
    d.send(root, d.call.inputs[0]);
    return;
  }
  for (std::uint32_t step = 1; step < d.size; ++step) d.receive(d.next(step), landings[d.next(step)]);
  d.copy(landings[root], d.call.inputs[0]);
}

void from_root(PlanBuilder& d, const std::vector<Part>& inputs, Part out) {
  const std::uint32_t root = static_cast<std::uint32_t>(d.call.root);
  if (d.rank != root) {
    d.receive(root, out);
    return;
  }
  for (std::uint32_t step = 1; step < d.size; ++step) d.send(d.next(step), inputs[d.next(step)]);
  d.copy(out, inputs[root]);
}

void reduce_at_root(PlanBuilder& d) {
  const std::uint64_t bytes = d.call.inputs[0].bytes;
  std::vector<Part> landings;
  if (d.rank == static_cast<std::uint32_t>(d.call.root)) {
    std::uint8_t* all = d.alloc_scratch(bytes * d.size);
    for (std::uint32_t p = 0; p < d.size; ++p) landings.push_back({all + p * bytes, bytes});
    reduce_when_all_are_here(d, all, d.call.outputs[0], 0, false);
  }
  to_root(d, landings);
}

}  // namespace

void reduce_when_all_are_here(PlanBuilder& d, const std::uint8_t* all, Part out, std::uint32_t first,
                              bool has_factors) {
  d.op.finish = [=, r = d.reduction(), op = d.call.op, n = d.size, scales = d.has_factor() && !has_factors]() mutable {
    const auto of = [&](std::uint32_t rank) { return all + (first + rank) % n * out.bytes; };
    r.scales_incoming = r.scales_local = scales;
    r.run(out.data, of(0), of(1), out.bytes);
    r.scales_incoming = false;
    for (std::uint32_t rank = 2; rank < n; ++rank) r.run(out.data, out.data, of(rank), out.bytes);
    if (op == ReduceOp::avg) r.divide(out.data, out.bytes / r.element, n);
  };
}

void plan_direct(PlanBuilder& d) {
  const CollectiveCall& call = d.call;
  switch (call.kind) {
    case Kind::all_reduce: return exchange_and_reduce(d, std::vector<Part>(d.size, call.inputs[0]));
    case Kind::reduce_scatter: return exchange_and_reduce(d, call.inputs);
    case Kind::all_gather:
      exchange(d, std::vector<Part>(d.size, call.inputs[0]), call.outputs);
      return d.copy(call.outputs[d.rank], call.inputs[0]);
    case Kind::all_to_all:
      exchange(d, call.inputs, call.outputs);
      return d.copy(call.outputs[d.rank], call.inputs[d.rank]);
    case Kind::barrier: return exchange(d, std::vector<Part>(d.size), std::vector<Part>(d.size));
    case Kind::reduce: return reduce_at_root(d);
    case Kind::gather: return to_root(d, call.outputs);
    case Kind::scatter: return from_root(d, call.inputs, call.outputs.empty() ? Part{} : call.outputs[0]);
    case Kind::broadcast: return from_root(d, std::vector<Part>(d.size, call.outputs[0]), call.outputs[0]);
  }
}

}  // namespace softmrc::collectives
