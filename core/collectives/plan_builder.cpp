#include "collectives/plan_builder.h"

#include <algorithm>

namespace softmrc::collectives {
namespace {

constexpr std::uint64_t stream_from = 4 * 1024 * 1024;  // more than the caches near a core

}  // namespace

std::uint32_t PlanBuilder::receive(std::uint32_t peer, Part to) {
  Inbound& in = op.ins.emplace_back();
  in.peer = peer;
  in.is_eager = uses_messages && to.bytes <= eager_limit;
  in.index = indices[std::size_t{4} * peer + (in.is_eager ? 1 : 0)]++;
  in.to = to.data;
  in.bytes = to.bytes;
  in.site = to.site;
  in.slices = Slices(to.bytes, unit);
  if (to.bytes >= stream_from) in.stream = best_kernels().stream;
  return static_cast<std::uint32_t>(op.ins.size()) - 1;
}

std::uint32_t PlanBuilder::send(std::uint32_t peer, Part from) {
  Outbound& out = op.outs.emplace_back();
  out.peer = peer;
  out.is_eager = uses_messages && from.bytes <= eager_limit;
  out.index = indices[std::size_t{4} * peer + (out.is_eager ? 3 : 2)]++;
  out.from = from.data;
  out.bytes = from.bytes;
  out.site = from.site;
  out.slices = Slices(from.bytes, unit);
  return static_cast<std::uint32_t>(op.outs.size()) - 1;
}

void PlanBuilder::forward(std::uint32_t peer, Part from, std::int32_t after) {
  const std::uint32_t out = send(peer, from);
  op.outs[out].after = after;
  if (after >= 0) op.ins[static_cast<std::size_t>(after)].feeds.push_back(out);
}

void PlanBuilder::send_next(std::uint32_t peer, Part from) {
  const std::uint32_t out = send(peer, from);
  op.outs[out].step = static_cast<std::int32_t>(op.ins.size());
  if (!op.ins.empty()) op.ins.back().feeds.push_back(out);
}

void PlanBuilder::copy(Part to, Part from) {
  if (to.data != from.data && from.bytes) op.copies.push_back({to.data, from.data, from.bytes});
}

void PlanBuilder::add_contribution(Part to, Part from) {
  if (!has_factor()) return copy(to, from);
  op.reductions.push_back(reduction());
  if (from.bytes) op.copies.push_back({to.data, from.data, from.bytes, &op.reductions.back()});
}

std::uint8_t* PlanBuilder::alloc_scratch(std::uint64_t bytes) {
  op.temporary.reset(new std::uint8_t[std::max<std::uint64_t>(bytes, 1)]);
  return op.temporary.get();
}

Reduction PlanBuilder::reduction() const {
  Reduction r;
  r.combine = combine_for(call.dtype, call.op);
  r.scale = scale_for(call.dtype);
  r.divide = divide_for(call.dtype);
  r.element = size_of(call.dtype);
  r.factor = call.factor;
  return r;
}

void PlanBuilder::reduce_on_landing(std::uint32_t index, const std::uint8_t* local, bool is_first, bool is_last) {
  Reduction& r = op.reductions.emplace_back(reduction());
  r.scales_local = has_factor();
  r.scales_incoming = r.scales_local && is_first;
  if (call.op == ReduceOp::avg && is_last) r.divide_by = size;
  Inbound& in = op.ins[index];
  in.local = local;
  in.reduction = &r;
}

void PlanBuilder::merge(std::uint32_t index, std::uint8_t* to, const std::uint8_t* left, const std::uint8_t* right,
                        bool is_last) {
  Reduction& r = op.reductions.emplace_back(reduction());
  if (call.op == ReduceOp::avg && is_last) r.divide_by = size;
  Inbound& in = op.ins[index];
  in.merge = {to, left, right, &r};
  in.stream = nullptr;  // it is read again at once
}

std::vector<Part> cut(Part whole, std::uint32_t parts) {
  std::vector<Part> result;
  result.reserve(parts);
  for (std::uint64_t i = 0; i < parts; ++i) {
    const std::uint64_t begin = begin_of_part(whole.bytes, i, parts), end = begin_of_part(whole.bytes, i + 1, parts);
    result.push_back({whole.data + begin, end - begin});
  }
  return result;
}

}  // namespace softmrc::collectives
