#include "udp/peer_book.h"

namespace softmrc::udp {

PeerBook::Key PeerBook::key_of(const wire::Address& address, std::uint16_t port) {
  Key key;
  std::memcpy(&key.high, address.bytes.data(), 8);
  std::memcpy(&key.low, address.bytes.data() + 8, 8);
  key.port = port | static_cast<std::uint32_t>(address.is_v4) << 16;
  return key;
}

PeerBook::Key PeerBook::key_of(const sockaddr_storage& from) {
  wire::Address address;
  std::uint16_t port = 0;
  source_of(from, address, port);
  return key_of(address, port);
}

void PeerBook::add(std::uint32_t peer, std::vector<PeerPlane> planes) {
  for (PeerPlane& plane : planes) {
    plane.to = destination_of(plane.address, plane.port, plane.scope_id);
    if (plane.source_ports.empty()) {
      Key any = key_of(plane.address, 0);
      any.port = 0;
      by_address_[any] = peer;
      has_wildcards_ = true;
    }
    for (std::uint16_t port : plane.source_ports) by_address_[key_of(plane.address, port)] = peer;
  }
  if (peer >= peers_.size()) peers_.resize(peer + 1);
  peers_[peer] = std::move(planes);
}

std::uint32_t PeerBook::find_same(const std::vector<PeerPlane>& planes) const {
  const auto is_same = [](const PeerPlane& a, const PeerPlane& b) {
    return a.address == b.address && a.scope_id == b.scope_id && a.port == b.port && a.source_ports == b.source_ports;
  };
  for (std::uint32_t peer = 0; peer < peers_.size(); ++peer) {
    if (peers_[peer].size() != planes.size()) continue;
    bool all = true;
    for (std::size_t i = 0; i < planes.size() && all; ++i) all = is_same(peers_[peer][i], planes[i]);
    if (all) return peer;
  }
  return proto::no_peer;
}

std::uint16_t address_sum(const wire::Ipv6& address) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < address.size(); i += 2) sum += static_cast<std::uint32_t>(address[i] << 8 | address[i + 1]);
  while (sum >> 16) sum = (sum & 0xFFFF) + (sum >> 16);
  return static_cast<std::uint16_t>(sum == 0xFFFF ? 0 : sum);
}

}  // namespace softmrc::udp
