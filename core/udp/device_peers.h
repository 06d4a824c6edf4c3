// The peers of a device: one by name, known to a lane as soon as a queue pair there is connected to it. Numbers are not
// given twice. A peer that was only expected is its lane's alone, as its number shows.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "udp/lane_set.h"

namespace softmrc::udp {

class DevicePeers {
 public:
  explicit DevicePeers(LaneSet& lanes) : lanes_(lanes) {}

  // Refused where a lane knows another peer there. To be removed as often as it was added.
  proto::MaybeError add(std::vector<PeerPlane> planes, std::uint32_t& peer);
  bool remove(std::uint32_t peer);
  // See Lane: who is there becomes a peer of that lane when the first packet comes or goes.
  proto::MaybeError expect(std::uint32_t lane, std::vector<PeerPlane> planes, std::uint32_t& place);
  // INIT to RTR. A peer's queue pairs are all encrypted or none is, whichever lanes they are in.
  proto::MaybeError connect(std::uint32_t qpn, proto::RtrAttributes attributes, SealKeys* keys);
  // Empty where there is no such peer.
  std::vector<PeerPlane> planes_of(std::uint32_t peer);
  // For whom a lane calls by that number. With the lanes' mutex held.
  std::uint32_t name_of(std::uint32_t lane, std::uint32_t known_as) const;
  // One after the other, with tokens that count up; how many of them will be sent, the first that will not ends it.
  std::size_t probe(std::uint32_t peer, std::uint8_t plane, std::span<const std::uint32_t> entropies,
                    std::uint32_t token, proto::TrafficClass traffic_class);

 private:
  struct Peer {
    std::vector<PeerPlane> planes;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> parts;  // lane, and its number there
  };

  proto::MaybeError check(const std::vector<PeerPlane>& planes);
  proto::MaybeError part_in(std::uint32_t peer, std::uint32_t lane, std::uint32_t& known_as);
  // From here on, numbers of peers of one lane alone: which one, and what it calls them.
  static constexpr std::uint32_t first_of_lanes = 1u << 24;
  std::optional<std::pair<std::uint32_t, std::uint32_t>> of_lane(std::uint32_t peer) const;

  LaneSet& lanes_;
  // These two under the lanes' mutex.
  std::map<std::uint32_t, Peer> peers_;
  std::uint32_t next_ = 0;
};

}  // namespace softmrc::udp
