#include "collectives/plan.h"

#include <algorithm>
#include <bit>

#include "base/prng.h"
#include "collectives/plan_builder.h"

namespace softmrc::collectives {
namespace {

// A reduction over one rank is what that rank has.
void plan_alone(PlanBuilder& d) {
  if (d.call.kind == Kind::barrier || d.call.kind == Kind::broadcast) return;
  d.add_contribution(d.call.outputs[0], d.call.inputs[0]);
}

std::uint64_t hash_of(const CollectiveCall& call) {
  std::uint64_t state = std::bit_cast<std::uint64_t>(call.op == ReduceOp::premul_sum ? call.factor : 0.0);
  const auto mix = [&state](const std::vector<Part>& parts) {
    for (const Part& part : parts) state ^= part.bytes, state = splitmix64(state);
  };
  if (call.kind == Kind::reduce_scatter) mix(call.inputs);
  if (call.kind == Kind::all_gather) mix(call.outputs);
  return state;
}

std::uint64_t count_of(const CollectiveCall& call) {
  std::uint64_t bytes = 0;
  switch (call.kind) {
    case Kind::all_reduce:
    case Kind::reduce:
    case Kind::reduce_scatter:
      for (const Part& part : call.inputs) bytes += part.bytes;
      break;
    case Kind::all_gather:
    case Kind::broadcast:
      for (const Part& part : call.outputs) bytes += part.bytes;
      break;
    case Kind::gather:
    case Kind::scatter:
    case Kind::all_to_all:
    case Kind::barrier: break;  // each pair has its own
  }
  return bytes / size_of(call.dtype);
}

// The same on all ranks of one collective; of those that differ from pair to pair only the kind counts.
CollectiveSize load_of(const CollectiveCall& call, const RankInfo& place) {
  const std::uint64_t bytes = count_of(call) * size_of(call.dtype);
  std::uint64_t largest = call.kind == Kind::all_reduce ? bytes : 0;
  const std::vector<Part>& parts = call.kind == Kind::reduce_scatter ? call.inputs : call.outputs;
  if (call.kind == Kind::reduce_scatter || call.kind == Kind::all_gather)
    for (const Part& part : parts) largest = std::max(largest, part.bytes);
  return {call.kind, place.size, bytes, largest, place.side_by_side};
}

// Whether all that a transfer waits for or is merged with is cut in the same places: it is as long as itself, or says
// what it is a piece of.
bool may_be_striped(const CollectiveFingerprint& descriptor) {
  using enum Algorithm;
  switch (descriptor.algorithm) {
    case ring:
    case binomial:
    case binary:
    case chain:
    case grid: return true;
    case direct: return !reduces(descriptor.kind);
    case gathered:
    case doubling:
    case rounds: return false;
  }
  return false;
}

std::string check_parts(const std::vector<Part>& parts, std::size_t wanted, const char* what) {
  if (parts.size() == wanted) return {};
  return std::string(what) + " has " + std::to_string(parts.size()) + " parts, not " + std::to_string(wanted);
}

}  // namespace

std::string check(const CollectiveCall& call, RankInfo place) {
  const std::size_t n = place.size;
  const bool is_root = call.root == static_cast<std::int32_t>(place.rank);
  if (reduces(call.kind) && !combine_for(call.dtype, call.op))
    return std::string(op_names[static_cast<std::size_t>(call.op)]) + " makes no sense for " +
           dtype_names[static_cast<std::size_t>(call.dtype)];
  if (reduces(call.kind) && call.op == ReduceOp::premul_sum && !is_floating(call.dtype))
    return std::string("premul_sum makes no sense for ") + dtype_names[static_cast<std::size_t>(call.dtype)];
  std::size_t ins = 1, outs = 1;
  switch (call.kind) {
    case Kind::all_reduce: break;
    case Kind::reduce_scatter: ins = n; break;
    case Kind::all_gather: outs = n; break;
    case Kind::broadcast: ins = 0; break;
    case Kind::reduce: outs = is_root ? 1 : 0; break;
    case Kind::gather: outs = is_root ? n : 0; break;
    case Kind::scatter: ins = is_root ? n : 0; break;
    case Kind::all_to_all: ins = outs = n; break;
    case Kind::barrier: ins = outs = 0; break;
  }
  const bool is_rooted = call.kind == Kind::broadcast || call.kind == Kind::reduce || call.kind == Kind::gather ||
                         call.kind == Kind::scatter;
  if (is_rooted && (call.root < 0 || call.root >= static_cast<std::int32_t>(n)))
    return "root " + std::to_string(call.root) + " is no rank of a group of " + std::to_string(n);
  if (auto problem = check_parts(call.inputs, ins, "the input"); !problem.empty()) return problem;
  if (auto problem = check_parts(call.outputs, outs, "the output"); !problem.empty()) return problem;
  // Where what this rank keeps is cut from what it gives, or the other way round, the two are of one size.
  const std::size_t own_in = ins == n ? place.rank : 0, own_out = outs == n ? place.rank : 0;
  if (ins && outs && call.inputs[own_in].bytes != call.outputs[own_out].bytes)
    return "the input has " + std::to_string(call.inputs[own_in].bytes) + " bytes for this rank, the output " +
           std::to_string(call.outputs[own_out].bytes);
  return {};
}

std::unique_ptr<Operation> plan(const CollectiveCall& call, RankInfo place) {
  auto op = std::make_unique<Operation>();
  op->descriptor.kind = call.kind;
  op->descriptor.dtype = call.dtype;
  if (reduces(call.kind)) op->descriptor.op = call.op;
  op->descriptor.root = call.root;
  op->descriptor.count = count_of(call);
  op->descriptor.shape = hash_of(call);
  const CollectiveSize load = load_of(call, place);
  op->descriptor.algorithm = cheapest(load, place.costs, place.forced);
  for (const Part& part : call.inputs) op->ranges.push_back({part.data, part.data + part.bytes, false});
  for (const Part& part : call.outputs) op->ranges.push_back({part.data, part.data + part.bytes, true});
  PlanBuilder d{call, place.rank, place.size, place.unit, *op};
  if (place.size == 1) {
    plan_alone(d);
    return op;
  }
  op->is_striped = may_be_striped(op->descriptor);
  switch (op->descriptor.algorithm) {
    case Algorithm::direct: plan_direct(d); break;
    case Algorithm::gathered: plan_gathered(d); break;
    case Algorithm::doubling: plan_doubling(d); break;
    case Algorithm::rounds: plan_rounds(d); break;
    case Algorithm::ring: plan_ring(d); break;
    case Algorithm::grid: plan_grid(d, columns_of(load, place.costs)); break;
    case Algorithm::binomial:
    case Algorithm::binary:
    case Algorithm::chain: plan_tree(d, op->descriptor.algorithm); break;
  }
  if (place.is_dry_run) op->drop_memory();
  return op;
}

}  // namespace softmrc::collectives
