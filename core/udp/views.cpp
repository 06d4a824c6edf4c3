#include "udp/views.h"

namespace softmrc::udp {
namespace {

void add(PlaneView& view, const Plane& plane) {
#define X(name) view.stats.name += plane.stats.name;
  SOFTMRC_PLANE_COUNTERS(X)
#undef X
  const FaultStats faulted = plane.fault_stats();
#define X(name) view.faulted.name += faulted.name;
  SOFTMRC_FAULT_COUNTERS(X)
#undef X
  view.has_gso &= plane.has_gso;
  for (const Socket& socket : plane.sockets) view.source_ports.push_back(socket.port());
  if (plane.sockets.empty()) return;
  view.receive_buffer_bytes = plane.sockets[0].receive_buffer_bytes();
  view.send_buffer_bytes = plane.sockets[0].send_buffer_bytes();
  view.has_gro = plane.sockets[0].has_gro();
}

QueuePairView view(proto::Endpoint& engine, std::uint32_t qpn, bool with_evs) {
  QueuePairView found;
  found.qpn = qpn;
  found.state = *proto::view_qp(engine, qpn);
  const proto::QueuePair* pair = engine.qp(qpn);
  if (!pair) return found;
  found.stats = pair->stats();
  if (!with_evs) return found;
  found.evs = *proto::view_evs(engine, qpn);
  if (!found.evs.empty() && pair->requester().evs().wide(0)) found.wide = *proto::view_ev_values(engine, qpn);
  return found;
}

}  // namespace

std::vector<PlaneView> view_planes(Device& device) {
  std::vector<PlaneView> views(device.planes());
  for (std::size_t p = 0; p < views.size(); ++p) {
    PlaneView& view = views[p];
    const PlaneConfig& plan = device.plan().planes[p];
    view.is_admin_up = device.admin_up() >> p & 1;
    view.is_link_up = device.link_up() >> p & 1;
    view.path_mtu = device.path_mtu(static_cast<std::uint32_t>(p));
    view.interface = plan.interface.empty() ? plan.link : plan.interface;
  }
  bool is_first = true;  // the one that reads the link watch
  device.for_each_lane([&](Lane& lane) {
    lane.with_engine([&](proto::Endpoint& e, Time) {
      for (std::size_t p = 0; p < views.size(); ++p) {
        add(views[p], lane.planes()[p]);
        views[p].is_up = e.up_ports() >> p & 1;
        if (is_first) views[p].link_index = lane.planes()[p].link_index;
      }
    });
    is_first = false;
  });
  return views;
}

std::vector<LaneView> view_lanes(Device& device) {
  std::vector<LaneView> views;
  device.for_each_lane([&](Lane& lane) {
    views.push_back(
        lane.with_engine([&](proto::Endpoint& e, Time) { return LaneView{e.stats(), lane.stats(), e.queue_pairs()}; }));
  });
  return views;
}

std::vector<QueuePairView> view_queue_pairs(Device& device, std::uint32_t qpn, bool with_evs) {
  std::vector<QueuePairView> views;
  device.for_each_lane([&](Lane& lane) {
    // The lock is taken for each, so that many of them hold up no thread for long.
    std::vector<std::uint32_t> numbers;
    lane.with_engine([&](proto::Endpoint& e, Time) {
      e.for_each_qpn([&](std::uint32_t one) {
        if (qpn == 0 || qpn == one) numbers.push_back(one);
      });
    });
    for (const std::uint32_t one : numbers)
      lane.with_engine([&](proto::Endpoint& e, Time) {
        if (e.qp_state(one)) views.push_back(view(e, one, with_evs));
      });
  });
  return views;
}

}  // namespace softmrc::udp
