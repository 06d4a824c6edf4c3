// What an operator sets on a running device: path MTU, injected faults, polling time, captures.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "udp/lane_set.h"

namespace softmrc::udp {

struct CaptureView {
  std::string path;
  std::uint64_t packets = 0;
};

class DeviceDiagnostics {
 public:
  explicit DeviceDiagnostics(LaneSet& lanes)
      : lanes_(lanes), spin_(lanes.plan().spin), faults_(lanes.planes()), path_mtus_(lanes.planes()) {}

  // With the lanes' mutex held: what a lane that opens is given; and the device closes.
  void set_up(Lane& lane);
  void close();

  void set_faults(std::uint32_t plane, const Faults& faults);
  Faults faults(std::uint32_t plane);
  // The largest IP packets that get through where full ones do not, to the peer to which the least does; 0: full ones
  // do, as far as is known. Set by those who ask the peers; it is only shown.
  void set_path_mtu(std::uint32_t plane, std::uint32_t bytes);
  std::uint32_t path_mtu(std::uint32_t plane);
  void set_spin(Duration spin);
  Duration spin();
  // One at a time.
  void start_capture(const std::string& path, std::uint64_t max_bytes);
  // How many packets the last one holds, whether it is ended by this or was when the device closed. Throws DeviceError
  // where it ended before, for want of room.
  std::uint64_t stop_capture();
  std::optional<CaptureView> capture();

 private:
  LaneSet& lanes_;
  // All under the lanes' mutex.
  Duration spin_;
  std::vector<Faults> faults_;
  std::vector<std::uint32_t> path_mtus_;
  std::shared_ptr<Capture> capture_;
  std::string capture_path_;
  std::uint64_t captured_ = 0;
};

}  // namespace softmrc::udp
