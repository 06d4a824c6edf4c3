// Broadcast and reduce along a tree whose top is the root: binomial where latency counts, binary where slices follow
// each other, and a chain where they fill the path. Ranks are counted from the root on.
#include "collectives/plan_builder.h"

namespace softmrc::collectives {
namespace {

// Above and below a rank, all counted from the root; the lower the nearer.
struct Kin {
  std::uint32_t parent = 0;
  std::vector<std::uint32_t> children;
};

Kin kin_of(Algorithm algorithm, std::uint32_t at, std::uint32_t size) {
  Kin kin;
  if (algorithm == Algorithm::chain) {
    kin.parent = at - 1;
    if (at + 1 < size) kin.children = {at + 1};
  } else if (algorithm == Algorithm::binary) {
    kin.parent = (at - 1) / 2;
    for (const std::uint32_t child : {2 * at + 1, 2 * at + 2})
      if (child < size) kin.children.push_back(child);
  } else {
    kin.parent = at & (at - 1);
    for (std::uint32_t bit = 1; at + bit < size && !(at & bit); bit *= 2) kin.children.push_back(at + bit);
  }
  return kin;
}

void broadcast(PlanBuilder& d, Algorithm algorithm) {
  const std::uint32_t root = static_cast<std::uint32_t>(d.call.root), at = d.prev(root);
  const Part block = d.call.outputs[0];
  const Kin kin = kin_of(algorithm, at, d.size);
  const std::int32_t in = at ? static_cast<std::int32_t>(d.receive((root + kin.parent) % d.size, block)) : -1;
  // The farthest child has the most below it.
  for (auto child = kin.children.rbegin(); child != kin.children.rend(); ++child)
    d.forward((root + *child) % d.size, block, in);
}

// Added up while it lands. The chain ends at the root; it begins with the rank after it.
void reduce_along_chain(PlanBuilder& d) {
  const std::uint32_t root = static_cast<std::uint32_t>(d.call.root), at = d.prev(root + 1);
  const Part mine = d.call.inputs[0];
  if (at == 0) return d.forward(d.next(1), mine, -1);
  const bool is_root = d.rank == root;
  const Part to = is_root ? d.call.outputs[0] : Part{d.alloc_scratch(mine.bytes), mine.bytes};
  const std::uint32_t in = d.receive(d.prev(1), to);
  d.reduce_on_landing(in, mine.data, at == 1, is_root);
  if (!is_root) d.forward(d.next(1), to, static_cast<std::int32_t>(in));
}

// The nearest child has the least below it and comes first: sums go in the order of ranks.
void reduce(PlanBuilder& d) {
  const std::uint32_t root = static_cast<std::uint32_t>(d.call.root), at = d.prev(root);
  const Part mine = d.call.inputs[0];
  const Kin kin = kin_of(Algorithm::binomial, at, d.size);
  std::uint8_t* landing = d.alloc_scratch(padded(mine.bytes) * (kin.children.size() + 1));
  const std::uint8_t* sum = mine.data;
  if (d.has_factor()) {
    d.add_contribution({landing, mine.bytes}, mine);
    sum = landing;
    landing += padded(mine.bytes);
  }
  for (const std::uint32_t child : kin.children) {
    const std::uint32_t in = d.receive((root + child) % d.size, {landing, mine.bytes});
    const bool is_last = at == 0 && child == kin.children.back();
    d.merge(in, is_last ? d.call.outputs[0].data : landing, sum, landing, is_last);
    sum = landing;
    landing += padded(mine.bytes);
  }
  if (at) d.send_next((root + kin.parent) % d.size, {const_cast<std::uint8_t*>(sum), mine.bytes});
}

}  // namespace

void plan_tree(PlanBuilder& d, Algorithm algorithm) {
  if (d.call.kind == Kind::broadcast) return broadcast(d, algorithm);
  if (algorithm == Algorithm::chain) return reduce_along_chain(d);
  reduce(d);
}

}  // namespace softmrc::collectives
