// A plane as one device sees it: a local address, the interface behind it, and a small pool of sockets. All but the
// first only send; their source ports are what an ECMP network hashes, so a socket is a path.
#pragma once

#include <string>
#include <vector>

#include "udp/fault.h"
#include "udp/socket.h"
#include "udp/stats.h"

namespace softmrc::udp {

struct PlanePlan {
  wire::Address address;
  std::uint32_t scope_id = 0;
  std::uint16_t port = 0;
  std::string interface;        // bind to it; empty: follow the routes
  std::string link;             // the interface that has the address, whose state is watched; may be empty
  std::uint32_t sockets = 1;
  bool is_any_local = false;
  std::uint32_t buffer_bytes = 8 << 20;
  std::uint32_t send_buffer_bytes = 0;
};

struct Plane {
  PlanePlan plan;
  std::vector<Socket> sockets;
  std::uint32_t link_index = 0;
  int blocked_socket = -1;      // the one without room; the plane takes nothing until it has some
  int watched_socket = -1;      // the one whose room the driver waits for
  bool is_blocked() const { return blocked_socket >= 0; }
  FaultLine weather;
  PlaneStats stats;

  // The socket that carries this EV: the one whose source port it names, or any fixed one.
  std::uint32_t socket_of(std::uint32_t entropy) const {
    const auto port = static_cast<std::uint16_t>(entropy);
    for (std::uint32_t i = 0; i < sockets.size(); ++i)
      if (sockets[i].port() == port) return i;
    return entropy % static_cast<std::uint32_t>(sockets.size());
  }
};

}  // namespace softmrc::udp
