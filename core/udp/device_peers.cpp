#include "udp/device_peers.h"

#include <tuple>

namespace softmrc::udp {

using proto::Error;
using proto::MaybeError;

// Refused where a lane knows another peer there.
MaybeError DevicePeers::check(const std::vector<PeerPlane>& planes) {
  if (planes.size() != lanes_.planes())
    return Error{Error::Kind::config, "planes", std::to_string(planes.size()),
                 "as many as the device has: " + std::to_string(lanes_.planes())};
  for (std::uint32_t i = 0; i < lanes_.open_lanes(); ++i)
    if (auto v = lanes_[i].check_peer(planes)) return v;
  return std::nullopt;
}

MaybeError DevicePeers::expect(std::uint32_t lane, std::vector<PeerPlane> planes, std::uint32_t& place) {
  const std::lock_guard lock(lanes_.mutex());
  if (auto v = check(planes)) return v;
  return lanes_.open(lane).expect(std::move(planes), place);
}

MaybeError DevicePeers::add(std::vector<PeerPlane> planes, std::uint32_t& peer) {
  const std::lock_guard lock(lanes_.mutex());
  if (auto v = check(planes)) return v;
  peer = next_++;
  peers_.emplace(peer, Peer{std::move(planes), {}});
  // Where there is no choice of lanes, it may as well be probed now.
  std::uint32_t known_as = 0;
  if (lanes_.size() > 1) return std::nullopt;
  auto refused = part_in(peer, 0, known_as);  // another peer may be there since it was checked
  if (refused) peers_.erase(peer);
  return refused;
}

bool DevicePeers::remove(std::uint32_t peer) {
  const std::lock_guard lock(lanes_.mutex());
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return false;
  for (const auto& [lane, known_as] : found->second.parts) lanes_[lane].remove_peer(known_as);
  peers_.erase(found);
  return true;
}

MaybeError DevicePeers::part_in(std::uint32_t peer, std::uint32_t number, std::uint32_t& known_as) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return Error{Error::Kind::config, "peer", std::to_string(peer), "a peer that was added"};
  for (const auto& [lane, part] : found->second.parts)
    if (lane == number) {
      known_as = part;
      return std::nullopt;
    }
  if (auto v = lanes_.open(number).add_peer(found->second.planes, known_as)) return v;
  found->second.parts.emplace_back(number, known_as);
  return std::nullopt;
}

// One is decided on at a time.
// spec: seal-agreed
MaybeError DevicePeers::connect(std::uint32_t qpn, proto::RtrAttributes attributes, SealKeys* keys) {
  const std::lock_guard lock(lanes_.mutex());
  const std::uint32_t peer = attributes.peer;
  if (auto v = part_in(peer, lanes_.number_of(qpn), attributes.peer)) return v;
  for (std::uint32_t i = 0; i < lanes_.open_lanes(); ++i)
    if (auto v = lanes_[i].check_sealed(peers_.at(peer).planes, keys != nullptr)) return v;
  return lanes_.lane_of(qpn).modify_rtr(qpn, attributes, keys);
}

std::size_t DevicePeers::probe(std::uint32_t peer, std::uint8_t plane, std::span<const std::uint32_t> entropies,
                               std::uint32_t token, proto::TrafficClass traffic_class) {
  std::uint32_t number = 0;
  std::uint32_t known_as = 0;
  {
    const std::lock_guard lock(lanes_.mutex());
    const auto found = peers_.find(peer);
    if (found != peers_.end() && !found->second.parts.empty()) number = found->second.parts[0].first;
    if (const auto there = of_lane(peer)) std::tie(number, known_as) = *there;
    else if (part_in(peer, number, known_as)) return 0;
  }
  return lanes_[number].with_engine_and_send([&](proto::Endpoint& e, Time now) {
    std::size_t sent = 0;
    while (sent < entropies.size() && e.probe(now, known_as, plane, entropies[sent], token++, traffic_class)) ++sent;
    return sent;
  });
}

std::uint32_t DevicePeers::name_of(std::uint32_t lane, std::uint32_t known_as) const {
  for (const auto& [peer, known] : peers_)
    for (const auto& part : known.parts)
      if (part == std::pair(lane, known_as)) return peer;
  return known_as == proto::no_peer ? known_as : first_of_lanes + known_as * lanes_.size() + lane;
}

std::optional<std::pair<std::uint32_t, std::uint32_t>> DevicePeers::of_lane(std::uint32_t peer) const {
  if (peer < first_of_lanes || (peer - first_of_lanes) % lanes_.size() >= lanes_.open_lanes()) return std::nullopt;
  return std::pair((peer - first_of_lanes) % lanes_.size(), (peer - first_of_lanes) / lanes_.size());
}

std::vector<PeerPlane> DevicePeers::planes_of(std::uint32_t peer) {
  const std::lock_guard lock(lanes_.mutex());
  if (const auto found = peers_.find(peer); found != peers_.end()) return found->second.planes;
  const auto there = of_lane(peer);
  return there ? lanes_[there->first].planes_of_peer(there->second) : std::vector<PeerPlane>{};
}

}  // namespace softmrc::udp
