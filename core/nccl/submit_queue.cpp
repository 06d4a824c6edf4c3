#include "nccl/submit_queue.h"

#include <array>

#include "nccl/comm.h"

namespace softmrc::nccl {

constexpr Duration check_interval = milliseconds(200);

SubmitQueue::SubmitQueue(host::Node& node, std::uint32_t lane)
    : lane_(node.device().lane(lane)), cq_(node.device().part_of_cq(node.cq(), lane)) {
  lane_.add_progress_handler(this);
}

// In the order in which they were given.
bool SubmitQueue::drain(proto::Endpoint& engine, Time now) {
  SendOrder* newest = orders_.exchange(nullptr, std::memory_order_acquire);
  if (!newest) return false;
  SendOrder* oldest = nullptr;
  while (newest) {
    SendOrder* const before = newest->next;
    newest->next = oldest;
    oldest = newest;
    newest = before;
  }
  while (oldest) {
    SendOrder* const after = oldest->next;  // once posted, it may be reused
    oldest->comm->post(engine, now, *oldest);
    oldest = after;
  }
  return true;
}

bool SubmitQueue::progress(proto::Endpoint& engine, Time now) {
  bool worked = drain(engine, now);
  std::array<proto::Completion, 64> found;
  while (const std::size_t count = engine.poll_completions(cq_, found)) {
    worked = true;
    for (std::size_t i = 0; i < count; ++i)
      if (const auto owner = owners_.find(found[i].qpn); owner != owners_.end())
        owner->second.comm->on_completion(engine, now, owner->second.end, found[i]);
  }
  if (now >= next_check_at_) {
    next_check_at_ = now + check_interval;
    for (const auto& [qpn, owner] : owners_) owner.comm->check_peer(engine, now, owner.end);
  }
  return worked;
}

}  // namespace softmrc::nccl
