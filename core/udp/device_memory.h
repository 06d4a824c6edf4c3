// Memory regions and protection domains, which are the same in every lane.
#pragma once

#include <map>

#include "udp/lane_set.h"

namespace softmrc::udp {

class DeviceMemory {
 public:
  explicit DeviceMemory(LaneSet& lanes) : lanes_(lanes) {}

  // What a lane that opens is given. With the lanes' mutex held.
  void set_up(Lane& lane);

  // So many, with numbers in a row; the first.
  proto::Domain create_domains(std::uint32_t count);
  // False when the key is in use.
  bool add(const proto::MemoryRegion& region);
  bool remove(std::uint32_t rkey);
  bool reads_from(const std::uint8_t* begin, const std::uint8_t* end);
  std::size_t regions();

 private:
  LaneSet& lanes_;
  // These two under the lanes' mutex.
  std::map<std::uint32_t, proto::MemoryRegion> regions_;
  proto::Domain last_domain_ = 0;
};

}  // namespace softmrc::udp
