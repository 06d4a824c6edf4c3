// Packets that no host's engine sends: a mapper's, whose routes are written uSID by uSID and lead back to a host. What
// they find (that they came back, when, and whether whole) is kept here until it is taken.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/time.h"
#include "sim/sim_packet.h"

namespace softmrc::sim {

class ProbeTraffic {
 public:
  struct MapperProbe {
    Time at{};
    std::uint32_t host = 0;
    std::uint32_t plane = 0;
    std::uint32_t bytes = 0;
    SimRoute route{};
    Time back = Time::never();  // never: lost, or still under way
    bool is_corrupt = false;
  };

  // Packets of one shard; what one sends, another may get back.
  struct Count {
    std::int64_t sent = 0, arrived = 0, lost = 0;
  };

  // Its number, until the next `take`.
  std::uint32_t add(const MapperProbe& probe) {
    probes_.push_back(probe);
    return static_cast<std::uint32_t>(probes_.size() - 1);
  }

  void prepare(Count& count, std::uint32_t number, SimPacket& packet_id) const {
    const MapperProbe& probe = probes_[number];
    packet_id.route = probe.route;
    packet_id.entropy = 0;
    packet_id.source = packet_id.destination = probe.host;
    packet_id.peer = number;
    packet_id.bytes = probe.bytes;
    packet_id.came_from = no_link;
    packet_id.plane = static_cast<std::uint8_t>(probe.plane);
    packet_id.is_control = packet_id.is_survey = true;
    packet_id.is_trimmable = packet_id.congestion = packet_id.is_corrupt = false;
    packet_id.trim = proto::Trim::none;
    ++count.sent;
  }

  void on_back(Count& count, Time now, const SimPacket& packet_id) {
    probes_[packet_id.peer].back = now;
    probes_[packet_id.peer].is_corrupt = packet_id.is_corrupt;
    ++count.arrived;
  }

  const std::vector<MapperProbe>& probes() const { return probes_; }
  // All that were added, in that order; call it once none is under way any more.
  std::vector<MapperProbe> take() {
    taken_ += static_cast<std::int64_t>(probes_.size());
    return std::exchange(probes_, {});
  }
  // Ever.
  std::int64_t added() const { return taken_ + static_cast<std::int64_t>(probes_.size()); }

 private:
  std::vector<MapperProbe> probes_;
  std::int64_t taken_ = 0;
};

}  // namespace softmrc::sim
