// Events of all lanes, oldest first, with the device's numbers of peers.
#pragma once

#include <vector>

#include "udp/device_peers.h"

namespace softmrc::udp {

class DeviceEvents {
 public:
  DeviceEvents(LaneSet& lanes, const DevicePeers& peers) : lanes_(lanes), peers_(peers) {}
  ~DeviceEvents();
  DeviceEvents(const DeviceEvents&) = delete;
  DeviceEvents& operator=(const DeviceEvents&) = delete;

  // With the lanes' mutex held: what a lane that opens is given; and the device has failed, those that wait return.
  void set_up(Lane& lane) { lane.set_event_fd(fd_); }
  void wake_all();

  void take(std::vector<proto::Event>& out, std::size_t most);
  // The last events again, whether they were taken or not. `from` has a number for each lane, from which on they are
  // wanted, and then from which on they will be new. How many there were besides that are forgotten.
  std::uint64_t recent(std::vector<std::uint64_t>& from, std::vector<proto::Event>& out);
  // A descriptor that is readable while there may be some to take.
  int fd();

 private:
  void add(std::uint32_t lane, proto::Event event, std::vector<proto::Event>& out) const;

  LaneSet& lanes_;
  const DevicePeers& peers_;
  // These two under the lanes' mutex.
  int fd_ = -1;
  std::uint32_t turn_ = 0;  // whose events are taken first
};

}  // namespace softmrc::udp
