#include "udp/fault.h"

namespace softmrc::udp {

void FaultLine::push(Time at, OwnedDatagram packet) {
  if (held_.size() >= most_held) {
    ++stats.dropped;
    return;
  }
  held_.push({at, order_++, std::move(packet)});
}

void FaultLine::hold(Time now, OwnedDatagram packet) {
  constexpr std::uint8_t congestion_experienced = 3;
  Time at = now + faults.delay;
  if (chance(faults.duplicate, stats.duplicated)) push(at, packet);
  if (chance(faults.mark, stats.marked)) packet.tos |= congestion_experienced;
  if (!packet.bytes.empty() && chance(faults.corrupt, stats.corrupted)) {
    const std::uint32_t bit = prng_.below(static_cast<std::uint32_t>(packet.bytes.size() * 8));
    packet.bytes[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
  }
  if (chance(faults.reorder, stats.reordered))
    at = at + Duration{static_cast<std::int64_t>(prng_.unit() * static_cast<double>(faults.reorder_delay.ps))};
  push(at, std::move(packet));
}

bool FaultLine::release(Time now, OwnedDatagram& out) {
  if (held_.empty() || held_.top().at > now) return false;
  out = std::move(const_cast<Held&>(held_.top()).packet);
  held_.pop();
  return true;
}

}  // namespace softmrc::udp
