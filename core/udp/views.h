// A device's tables, copied for monitoring. Each asks one lane after the other, and holds up none for
// longer than the copy takes.
#pragma once

#include <string>
#include <vector>

#include "proto/views.h"
#include "udp/device.h"

namespace softmrc::udp {

// All lanes together.
struct PlaneView {
  PlaneStats stats;
  FaultStats faulted;
  bool is_up = false;
  bool is_admin_up = false;
  bool is_link_up = false;
  std::uint32_t link_index = 0;
  std::uint32_t path_mtu = 0;  // see Device
  std::string interface;
  std::vector<std::uint16_t> source_ports;
  int receive_buffer_bytes = 0;
  int send_buffer_bytes = 0;
  bool has_gro = false;
  bool has_gso = true;  // in every lane, at this moment
};
std::vector<PlaneView> view_planes(Device& device);

struct LaneView {
  proto::EndpointStats engine;
  LaneStats lane;
  std::size_t queue_pairs = 0;
};
std::vector<LaneView> view_lanes(Device& device);

struct QueuePairView {
  std::uint32_t qpn = 0;
  proto::QpView state;
  proto::QpStats stats;
  std::vector<proto::Ev> evs;
  std::vector<wire::EvBytes> wide;  // empty where 32 bits are all there is
};
// With `qpn` of 0, all of them. Paths only with `with_evs`.
std::vector<QueuePairView> view_queue_pairs(Device& device, std::uint32_t qpn, bool with_evs);

}  // namespace softmrc::udp
