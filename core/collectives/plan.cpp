#include "collectives/plan.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/prng.h"

namespace softmrc::collectives {
namespace {

constexpr std::uint64_t stream_from = 4 * 1024 * 1024;  // more than the caches near a core

// Everything a plan is made with.
struct Draft {
  const Call& call;
  const std::uint32_t rank;
  const std::uint32_t size;
  const std::uint32_t unit;
  Operation& op;

  std::uint32_t before(std::uint32_t steps) const { return (rank + size - steps % size) % size; }
  std::uint32_t next() const { return (rank + 1) % size; }
  std::uint32_t last() const { return before(1); }

  std::uint32_t receive(std::uint32_t peer, Part to, const std::uint8_t* local = nullptr, const Reduction* reduction = nullptr) {
    std::uint32_t index = 0;
    for (const Inbound& other : op.ins) index += other.peer == peer;
    Inbound& in = op.ins.emplace_back();
    in.peer = peer;
    in.index = index;
    in.to = to.data;
    in.local = local;
    in.reduction = reduction;
    in.bytes = to.bytes;
    in.slices = Slices(to.bytes, unit);
    if (!reduction && to.bytes >= stream_from) in.stream = best_kernels().stream;
    return static_cast<std::uint32_t>(op.ins.size()) - 1;
  }
  void receive_eager(std::uint32_t peer, Part to) { op.ins[receive(peer, to)].is_eager = true; }

  std::uint32_t send(std::uint32_t peer, Part from, std::int32_t after = -1) {
    Outbound out;
    out.peer = peer;
    out.from = from.data;
    out.bytes = from.bytes;
    out.slices = Slices(from.bytes, unit);
    out.after = after;
    for (const Outbound& other : op.outs) out.index += other.peer == peer && !other.is_eager;
    op.outs.push_back(out);
    const std::uint32_t at = static_cast<std::uint32_t>(op.outs.size()) - 1;
    if (after >= 0) op.ins[static_cast<std::size_t>(after)].feeds.push_back(at);
    return at;
  }
  void send_eager(std::uint32_t peer, Part from) { op.outs[send(peer, from)].is_eager = true; }

  void copy(Part to, Part from) {
    if (to.data != from.data && from.bytes) op.copies.push_back({to.data, from.data, from.bytes, 0});
  }

  Reduction reduction() const {
    Reduction r;
    r.combine = combine_for(call.dtype, call.op);
    r.scale = scale_for(call.dtype);
    r.divide = divide_for(call.dtype);
    r.element = size_of(call.dtype);
    r.factor = call.factor;
    return r;
  }
  // A step along a ring or chain: the first one's sender sent what it had as it was.
  const Reduction* step(bool is_first, bool is_last) {
    Reduction r = reduction();
    r.scales_local = call.op == ReduceOp::premul_sum;
    r.scales_incoming = r.scales_local && is_first;
    if (call.op == ReduceOp::avg && is_last) r.divide_by = size;
    op.reductions.push_back(r);
    return &op.reductions.back();
  }
};

// A block in as many parts as there are ranks, the first ones longer, cut where cache lines end.
std::vector<Part> cut(Part whole, std::uint32_t parts) {
  constexpr std::uint64_t line = 64;
  const std::uint64_t lines = (whole.bytes + line - 1) / line;
  const std::uint64_t each = (lines + parts - 1) / parts * line;
  std::vector<Part> result;
  for (std::uint64_t i = 0; i < parts; ++i) {
    const std::uint64_t begin = std::min(i * each, whole.bytes);
    result.push_back({whole.data + begin, std::min(each, whole.bytes - begin)});
  }
  return result;
}

// One rank's contributions become the result, in the order of ranks whoever computes it.
void reduce_in_order(const Reduction& r, ReduceOp op, std::uint32_t ranks, std::uint32_t own, std::uint8_t* all, const std::uint8_t* mine,
                     std::uint8_t* out, std::uint64_t bytes) {
  const std::size_t count = bytes / r.element;
  std::memcpy(all + own * bytes, mine, bytes);
  if (op == ReduceOp::premul_sum) r.scale(all, all, count * ranks, r.factor);
  for (std::uint32_t i = 1; i < ranks; ++i) r.combine(all, all, all + i * bytes, count);
  if (op == ReduceOp::avg) r.divide(all, count, ranks);
  std::memcpy(out, all, bytes);
}

void use_temporary(Draft& d, std::uint64_t bytes) { d.op.temporary.reset(new std::uint8_t[std::max<std::uint64_t>(bytes, 1)]); }

bool is_small_all_reduce(std::uint64_t bytes, std::uint32_t ranks) {
  return bytes <= eager_limit && bytes * (ranks - 1) <= eager_total;
}

void plan_small_all_reduce(Draft& d) {
  const Part in = d.call.inputs[0], out = d.call.outputs[0];
  use_temporary(d, in.bytes * d.size);
  std::uint8_t* all = d.op.temporary.get();
  for (std::uint32_t p = 0; p < d.size; ++p) {
    if (p == d.rank) continue;
    d.send_eager(p, in);
    d.receive_eager(p, {all + p * in.bytes, in.bytes});
  }
  if (in.bytes == 0) return;
  d.op.finish = [=, r = d.reduction(), op = d.call.op, n = d.size, own = d.rank] {
    reduce_in_order(r, op, n, own, all, in.data, out.data, in.bytes);
  };
}

// Step s passes on the part that came in at step s - 1; `first` is the part that a rank sends at step 0.
// What a step lands in is given by `landing`, the last one completes this rank's own part.
template <typename Landing>
std::uint32_t plan_ring(Draft& d, std::uint32_t first, const std::vector<Part>& inputs, Landing landing) {
  Part passed = inputs[first];
  std::int32_t after = -1;
  for (std::uint32_t s = 0; s + 1 < d.size; ++s) {
    const std::uint32_t part = (first + d.size - s - 1) % d.size;
    const std::uint32_t out = d.send(d.next(), passed, after);
    const bool is_last = s + 2 == d.size;
    passed = landing(part, is_last);
    after = static_cast<std::int32_t>(d.receive(d.last(), passed, inputs[part].data, d.step(s == 0, is_last)));
    if (s > 0) continue;
    d.op.outs[out].beside = after;
    d.op.ins.back().feeds.push_back(out);
  }
  return static_cast<std::uint32_t>(after);
}

void plan_large_all_reduce(Draft& d) {
  const std::vector<Part> inputs = cut(d.call.inputs[0], d.size);
  const std::vector<Part> outputs = cut(d.call.outputs[0], d.size);
  const std::uint32_t owned = plan_ring(d, d.rank, inputs, [&](std::uint32_t part, bool) { return outputs[part]; });
  for (std::uint32_t step = 1; step < d.size; ++step) {
    const std::uint32_t to = (d.rank + step) % d.size, from = d.before(step);
    d.send(to, outputs[d.next()], static_cast<std::int32_t>(owned));
    d.receive(from, outputs[(from + 1) % d.size]);
  }
}

void plan_all_reduce(Draft& d) {
  if (is_small_all_reduce(d.call.inputs[0].bytes, d.size)) plan_small_all_reduce(d);
  else plan_large_all_reduce(d);
}

void plan_reduce_scatter(Draft& d) {
  const std::vector<Part>& inputs = d.call.inputs;
  std::vector<std::uint64_t> starts;
  std::uint64_t total = 0;
  for (const Part& part : inputs) {
    starts.push_back(total);
    total += (part.bytes + 63) / 64 * 64;
  }
  if (d.size > 2) use_temporary(d, total);
  plan_ring(d, d.last(), inputs, [&](std::uint32_t part, bool is_last) {
    return is_last ? d.call.outputs[0] : Part{d.op.temporary.get() + starts[part], inputs[part].bytes};
  });
}

// Everybody with everybody, small parts in messages.
void plan_exchange(Draft& d, const std::vector<Part>& inputs, const std::vector<Part>& outputs) {
  for (std::uint32_t step = 1; step < d.size; ++step) {
    const std::uint32_t to = (d.rank + step) % d.size, from = d.before(step);
    if (inputs[to].bytes <= eager_limit) d.send_eager(to, inputs[to]);
    else d.send(to, inputs[to]);
    if (outputs[from].bytes <= eager_limit) d.receive_eager(from, outputs[from]);
    else d.receive(from, outputs[from]);
  }
  d.copy(outputs[d.rank], inputs[d.rank]);
}

void plan_broadcast(Draft& d) {
  const std::uint32_t root = static_cast<std::uint32_t>(d.call.root);
  const Part block = d.call.outputs[0];
  const std::uint32_t behind = (d.rank + d.size - root) % d.size;  // ranks between the root and this one, along the chain
  const bool is_flat = block.bytes <= flat_limit;
  if (is_flat && behind == 0) {
    for (std::uint32_t step = 1; step < d.size; ++step) d.send((root + step) % d.size, block);
  } else if (is_flat) {
    d.receive(root, block);
  } else {
    const std::int32_t in = behind ? static_cast<std::int32_t>(d.receive(d.last(), block)) : -1;
    if (behind + 1 < d.size) d.send(d.next(), block, in);
  }
}

void plan_flat_reduce(Draft& d, std::uint32_t root) {
  const Part in = d.call.inputs[0];
  if (d.rank != root) {
    d.send(root, in);
    return;
  }
  use_temporary(d, in.bytes * d.size);
  std::uint8_t* all = d.op.temporary.get();
  for (std::uint32_t p = 0; p < d.size; ++p)
    if (p != root) d.receive(p, {all + p * in.bytes, in.bytes});
  if (in.bytes == 0) return;
  d.op.finish = [=, r = d.reduction(), op = d.call.op, n = d.size, own = d.rank, out = d.call.outputs[0]] {
    reduce_in_order(r, op, n, own, all, in.data, out.data, in.bytes);
  };
}

void plan_reduce(Draft& d) {
  const std::uint32_t root = static_cast<std::uint32_t>(d.call.root);
  const Part in = d.call.inputs[0];
  if (in.bytes <= flat_limit) return plan_flat_reduce(d, root);
  // The chain ends at the root; it begins with the rank after it.
  const std::uint32_t place = (d.rank + d.size - root - 1) % d.size;
  if (place == 0) {
    d.send(d.next(), in);
    return;
  }
  const bool is_root = d.rank == root;
  if (!is_root) use_temporary(d, in.bytes);
  const Part to = is_root ? d.call.outputs[0] : Part{d.op.temporary.get(), in.bytes};
  const std::uint32_t at = d.receive(d.last(), to, in.data, d.step(place == 1, is_root));
  if (!is_root) d.send(d.next(), to, static_cast<std::int32_t>(at));
}

void plan_gather(Draft& d) {
  const std::uint32_t root = static_cast<std::uint32_t>(d.call.root);
  if (d.rank != root) {
    d.send(root, d.call.inputs[0]);
    return;
  }
  for (std::uint32_t step = 1; step < d.size; ++step) d.receive((root + step) % d.size, d.call.outputs[(root + step) % d.size]);
  d.copy(d.call.outputs[root], d.call.inputs[0]);
}

void plan_scatter(Draft& d) {
  const std::uint32_t root = static_cast<std::uint32_t>(d.call.root);
  if (d.rank != root) {
    d.receive(root, d.call.outputs[0]);
    return;
  }
  for (std::uint32_t step = 1; step < d.size; ++step) d.send((root + step) % d.size, d.call.inputs[(root + step) % d.size]);
  d.copy(d.call.outputs[0], d.call.inputs[root]);
}

// A reduction over one rank is what that rank has.
void plan_alone(Draft& d) {
  if (d.call.kind == Kind::barrier || d.call.kind == Kind::broadcast) return;
  const Part in = d.call.inputs[0], out = d.call.outputs[0];
  if (d.call.op == ReduceOp::premul_sum && reduces(d.call.kind)) {
    d.op.finish = [in, out, r = d.reduction()] { r.scale(out.data, in.data, in.bytes / r.element, r.factor); };
  } else {
    d.copy(out, in);
  }
}

std::uint64_t hash_of(const Call& call) {
  std::uint64_t state = std::bit_cast<std::uint64_t>(call.op == ReduceOp::premul_sum ? call.factor : 0.0);
  const auto mix = [&state](const std::vector<Part>& parts) {
    for (const Part& part : parts) state ^= part.bytes, state = splitmix64(state);
  };
  if (call.kind == Kind::reduce_scatter) mix(call.inputs);
  if (call.kind == Kind::all_gather) mix(call.outputs);
  return state;
}

std::uint64_t count_of(const Call& call) {
  std::uint64_t bytes = 0;
  switch (call.kind) {
    case Kind::all_reduce: case Kind::reduce: case Kind::reduce_scatter:
      for (const Part& part : call.inputs) bytes += part.bytes;
      break;
    case Kind::all_gather: case Kind::broadcast:
      for (const Part& part : call.outputs) bytes += part.bytes;
      break;
    case Kind::gather: case Kind::scatter: case Kind::all_to_all: case Kind::barrier:
      break;  // each pair has its own
  }
  return bytes / size_of(call.dtype);
}

std::string check_parts(const std::vector<Part>& parts, std::size_t wanted, const char* what) {
  if (parts.size() == wanted) return {};
  return std::string(what) + " has " + std::to_string(parts.size()) + " parts, not " + std::to_string(wanted);
}

}  // namespace

std::string check(const Call& call, Place place) {
  const std::size_t n = place.size;
  const bool is_root = call.root == static_cast<std::int32_t>(place.rank);
  if (reduces(call.kind) && !combine_for(call.dtype, call.op))
    return std::string(op_names[static_cast<std::size_t>(call.op)]) + " makes no sense for " + dtype_names[static_cast<std::size_t>(call.dtype)];
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
  const bool is_rooted = call.kind == Kind::broadcast || call.kind == Kind::reduce || call.kind == Kind::gather || call.kind == Kind::scatter;
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

std::unique_ptr<Operation> plan(const Call& call, Place place) {
  auto op = std::make_unique<Operation>();
  op->descriptor.kind = call.kind;
  op->descriptor.dtype = call.dtype;
  if (reduces(call.kind)) op->descriptor.op = call.op;
  op->descriptor.root = call.root;
  op->descriptor.count = count_of(call);
  op->descriptor.shape = hash_of(call);
  for (const Part& part : call.inputs) op->ranges.push_back({part.data, part.data + part.bytes, false});
  for (const Part& part : call.outputs) op->ranges.push_back({part.data, part.data + part.bytes, true});
  Draft d{call, place.rank, place.size, place.unit, *op};
  if (place.size == 1) {
    plan_alone(d);
    return op;
  }
  switch (call.kind) {
    case Kind::all_reduce: plan_all_reduce(d); break;
    case Kind::reduce_scatter: plan_reduce_scatter(d); break;
    case Kind::all_gather: plan_exchange(d, std::vector<Part>(place.size, call.inputs[0]), call.outputs); break;
    case Kind::broadcast: plan_broadcast(d); break;
    case Kind::reduce: plan_reduce(d); break;
    case Kind::gather: plan_gather(d); break;
    case Kind::scatter: plan_scatter(d); break;
    case Kind::all_to_all: plan_exchange(d, call.inputs, call.outputs); break;
    case Kind::barrier: plan_exchange(d, std::vector<Part>(place.size), std::vector<Part>(place.size)); break;
  }
  return op;
}

}  // namespace softmrc::collectives
