#include "nccl/porter.h"

#include <array>

#include "nccl/comm.h"

namespace softmrc::nccl {

constexpr Duration look_interval = milliseconds(200);

Porter::Porter(face::Node& node, std::uint32_t lane) : lane_(node.device().lane(lane)), cq_(node.device().part_of_cq(node.cq(), lane)) {
  lane_.add_attendant(this);
}

// In the order in which they were given.
bool Porter::carry_out(proto::Endpoint& engine, Time now) {
  Order* newest = orders_.exchange(nullptr, std::memory_order_acquire);
  if (!newest) return false;
  Order* oldest = nullptr;
  while (newest) {
    Order* const before = newest->next;
    newest->next = oldest;
    oldest = newest;
    newest = before;
  }
  while (oldest) {
    Order* const after = oldest->next;  // once posted, it may be asked for again
    oldest->comm->post(engine, now, *oldest);
    oldest = after;
  }
  return true;
}

bool Porter::attend(proto::Endpoint& engine, Time now) {
  bool worked = carry_out(engine, now);
  std::array<proto::Completion, 64> found;
  while (const std::size_t count = engine.poll_completions(cq_, found)) {
    worked = true;
    for (std::size_t i = 0; i < count; ++i)
      if (const auto owner = owners_.find(found[i].qpn); owner != owners_.end()) owner->second.comm->on_completion(engine, now, owner->second.end, found[i]);
  }
  if (now >= looks_at_) {
    looks_at_ = now + look_interval;
    for (const auto& [qpn, owner] : owners_) owner.comm->look(engine, now, owner.end);
  }
  return worked;
}

}  // namespace softmrc::nccl
