// Recursive doubling: partners exchange all they have summed up, and after each step twice as many ranks share one sum.
// Both compute it alike, the lower rank's on the left, so it is the same bit for bit on both. Where the number of ranks
// is no power of two, the first ones go in pairs: the second of a pair gives its own to the first, and gets the result.
#include <bit>

#include "collectives/plan_builder.h"

namespace softmrc::collectives {

void plan_doubling(PlanBuilder& d) {
  d.uses_messages = true;
  const Part out = d.call.outputs[0];
  const std::uint32_t power = std::bit_floor(d.size), pairs = d.size - power;
  const bool is_paired = d.rank < 2 * pairs;
  // What is sent lies apart from the result: it may have to be retransmitted when that is there.
  std::uint8_t* sum = d.alloc_scratch(padded(out.bytes) * static_cast<std::uint64_t>(std::bit_width(power) + 1));
  std::uint8_t* landing = sum + padded(out.bytes);
  d.add_contribution({sum, out.bytes}, d.call.inputs[0]);
  if (is_paired && d.rank % 2) {
    d.send_next(d.rank - 1, {sum, out.bytes});
    d.receive(d.rank - 1, out);
    return;
  }
  const auto merge_from = [&](std::uint32_t peer, bool is_last) {
    const std::uint32_t in = d.receive(peer, {landing, out.bytes});
    std::uint8_t* to = is_last ? out.data : landing;
    d.merge(in, to, peer < d.rank ? landing : sum, peer < d.rank ? sum : landing, is_last);
    sum = to;
    landing += padded(out.bytes);
  };
  if (is_paired) merge_from(d.rank + 1, false);
  const std::uint32_t place = is_paired ? d.rank / 2 : d.rank - pairs;  // among those that go on
  for (std::uint32_t bit = 1; bit < power; bit *= 2) {
    const std::uint32_t other = place ^ bit;
    const std::uint32_t peer = other < pairs ? 2 * other : other + pairs;
    d.send_next(peer, {sum, out.bytes});
    merge_from(peer, 2 * bit == power);
  }
  if (is_paired) d.send_next(d.rank + 1, out);
}

}  // namespace softmrc::collectives
