#include "sim/pump.h"

#include <algorithm>
#include <array>

namespace softmrc::sim {

PumpResult pump(Mesh& mesh, const PumpPlan& plan, Time limit) {
  PumpResult result;
  proto::Endpoint& endpoint = mesh.side(plan.side);
  std::array<proto::Completion, 64> completions;
  // Whole messages only: the last one must not reach over the end of either memory.
  const std::uint64_t places = std::max<std::uint64_t>(1, plan.region_length / plan.length);
  std::uint64_t posted = 0;
  std::uint64_t finished = 0;
  while (finished < plan.count) {
    while (posted < plan.count && posted - finished < plan.depth) {
      const std::uint64_t offset = posted % places * plan.length;
      proto::WorkRequest request;
      request.wr_id = posted;
      request.data = plan.source ? plan.source + offset : nullptr;
      request.remote_va = plan.remote_va + offset;
      request.rkey = plan.rkey;
      request.length = plan.length;
      if (endpoint.post_write(mesh.now(), plan.qpn, request) != proto::PostStatus::ok) return result;
      ++posted;
    }
    mesh.run_until_completions(limit, plan.side, plan.cq, 1);
    const std::size_t count = endpoint.poll_completions(plan.cq, completions);
    if (count == 0) return result;
    for (std::size_t i = 0; i < count; ++i) {
      result.out_of_order += completions[i].wr_id != finished;
      if (completions[i].status == proto::CompletionStatus::success) ++result.completed;
      else ++result.failed;
      ++finished;
    }
  }
  return result;
}

}  // namespace softmrc::sim
