#include "udp/device_memory.h"

#include <algorithm>

namespace softmrc::udp {

void DeviceMemory::set_up(Lane& lane) {
  lane.with_engine([&](proto::Endpoint& engine, Time) {
    engine.allow_domains(last_domain_);
    for (const auto& [rkey, region] : regions_) engine.add_region(region);
  });
}

proto::Domain DeviceMemory::create_domains(std::uint32_t count) {
  const std::lock_guard lock(lanes_.mutex());
  const proto::Domain first = last_domain_ + 1;
  last_domain_ += count;
  lanes_.for_each(
      [&](Lane& lane) { lane.with_engine([&](proto::Endpoint& e, Time) { e.allow_domains(last_domain_); }); });
  return first;
}

bool DeviceMemory::add(const proto::MemoryRegion& region) {
  const std::lock_guard lock(lanes_.mutex());
  std::uint32_t added = 0;
  for (; added < lanes_.open_lanes(); ++added)
    if (!lanes_[added].with_engine([&](proto::Endpoint& e, Time) { return e.add_region(region); })) break;
  if (added == lanes_.open_lanes()) {
    regions_.emplace(region.rkey, region);
    return true;
  }
  while (added-- > 0) lanes_[added].with_engine([&](proto::Endpoint& e, Time) { return e.remove_region(region.rkey); });
  return false;
}

bool DeviceMemory::remove(std::uint32_t rkey) {
  const std::lock_guard lock(lanes_.mutex());
  if (regions_.erase(rkey) == 0) return false;
  lanes_.for_each(
      [&](Lane& lane) { lane.with_engine([&](proto::Endpoint& e, Time) { return e.remove_region(rkey); }); });
  return true;
}

bool DeviceMemory::reads_from(const std::uint8_t* begin, const std::uint8_t* end) {
  bool reads = false;
  lanes_.for_each([&](Lane& lane) {
    reads |= lane.with_engine([&](proto::Endpoint& e, Time) { return e.reads_from(begin, end); });
  });
  return reads;
}

std::size_t DeviceMemory::regions() {
  std::size_t most = 0;  // a lane may have additional ones
  lanes_.for_each([&](Lane& lane) {
    most = std::max(most, lane.with_engine([](proto::Endpoint& e, Time) { return e.regions(); }));
  });
  return most;
}

}  // namespace softmrc::udp
