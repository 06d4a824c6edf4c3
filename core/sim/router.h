// Which link a packet takes next: the tables of all switches, and the source routes that hosts write for them.
#pragma once

#include <cstdint>

#include "sim/fabric.h"
#include "sim/link_faults.h"
#include "sim/network_config.h"
#include "sim/scheduler.h"
#include "sim/sim_packet.h"

namespace softmrc::sim {

class Router {
 public:
  // What these refer to outlives it.
  Router(const NetworkConfig& config, const Fabric& fabric, const LinkFaults& faults, const Scheduler& clock)
      : forwarding_(config.forwarding),
        convergence_delay_(config.convergence_delay),
        fabric_(fabric),
        faults_(faults),
        clock_(clock) {}

  // Writes the route of a packet that leaves its source, where the forwarding needs one.
  void address(SimPacket& packet_id) const {
    if (forwarding_ == Forwarding::srv6) packet_id.route = route_of(packet_id);
  }

  // The link by which this switch sends it on, or none.
  LinkId next_link(const FabricNode& at, const SimPacket& packet_id) const {
    return forwarding_ == Forwarding::srv6 ? by_usid(at, packet_id) : by_choice(at, packet_id);
  }

 private:
  SimRoute route_of(const SimPacket& packet_id) const;
  LinkId by_usid(const FabricNode& at, const SimPacket& packet_id) const;
  LinkId by_choice(const FabricNode& at, const SimPacket& packet_id) const;
  LinkId choose_uplink(const FabricNode& at, const SimPacket& packet_id) const;
  bool is_routable(LinkId link) const { return faults_.is_routable(link, clock_.now(), convergence_delay_); }

  Forwarding forwarding_;
  Duration convergence_delay_;
  const Fabric& fabric_;
  const LinkFaults& faults_;
  const Scheduler& clock_;
};

}  // namespace softmrc::sim
