// What a simulated network is made from.
#pragma once

#include <cstdint>
#include <memory>

#include "base/time.h"
#include "proto/config.h"
#include "sim/baselines/roce.h"
#include "sim/fabric.h"
#include "sim/process.h"

namespace softmrc::sim {

enum class Forwarding : std::uint8_t {
  srv6,        // the packet's uSIDs name each switch; static tables
  ecmp,        // a hash of the flow and its EV at each switch; dead links leave the group after a delay
  structured,  // fields of the EV name the uplink of each tier
};

enum class Transport : std::uint8_t { mrc, roce };

struct QueueConfig {
  std::uint32_t data_bytes = 0;      // tail drop above this
  std::uint32_t control_bytes = 0;   // the same, for control packets and trimmed headers
  std::uint32_t ecn_low_bytes = 0;   // marking probability rises from 0 here ...
  std::uint32_t ecn_high_bytes = 0;  // ... to 1 here; both 0: no marking
  std::uint32_t trim_bytes = 0;      // data is trimmed above this; 0: never
  std::uint32_t last_hop_trim_bytes = 0;
  bool ecn_on_last_hop = false;
};

struct NetworkConfig {
  std::uint64_t seed = 1;
  std::uint32_t cores = 1;  // at most; what happens does not depend on it
  FabricConfig fabric;
  QueueConfig queue;
  Forwarding forwarding = Forwarding::srv6;
  Transport transport = Transport::mrc;
  RoceConfig roce;                                 // with Transport::roce
  Duration convergence_delay = milliseconds(100);  // until ECMP groups leave out a dead link
  std::uint32_t data_overhead_bytes = 104;         // on the link, besides the payload
  std::uint32_t control_packet_bytes = 128;
  std::uint32_t trimmed_packet_bytes = 128;
  std::uint32_t mtu = 4096;
  std::uint32_t mpr = 16;
  std::uint32_t timeout = 8;
  std::uint32_t qps_per_pair = 1;         // of MRC: flows between two hosts take them in turn
  bool hints = false;                     // queue pairs know how many others there will be
  bool chain_on_acknowledgement = false;  // a flow that waits for another one starts when its sender knows
  ProcessConfig process;                  // of every host; by default none: NICs do the work
  proto::EndpointConfig endpoint;
  std::shared_ptr<const proto::EvProfile> ev_profile;
  std::shared_ptr<const proto::CcProfile> cc_profile;
};

}  // namespace softmrc::sim
