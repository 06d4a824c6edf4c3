#include "udp/peer_book.h"

#include <algorithm>
#include <string>

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

// By which its packets are known. One that does not tell its ports may send from any.
std::vector<PeerBook::Key> PeerBook::derive_keys(const PeerPlane& plane) {
  std::vector<Key> keys;
  for (std::uint16_t port : plane.source_ports) keys.push_back(key_of(plane.address, port));
  if (keys.empty()) {
    keys.push_back(key_of(plane.address, 0));
    keys.back().port = 0;
  }
  return keys;
}

namespace {

proto::MaybeError refused(const char* field, std::string value, std::string expected) {
  return proto::Error{proto::Error::Kind::config, field, std::move(value), std::move(expected)};
}

// Of one node: not multicast, not broadcast, not unspecified, and not one address embedded in another.
bool is_unicast(const wire::Address& address) {
  const auto& b = address.bytes;
  if (address.is_v4) return b[0] != 0 && b[0] < 224;
  const bool is_low = std::all_of(b.begin(), b.begin() + 10, [](std::uint8_t byte) { return byte == 0; });
  const bool is_loopback = is_low && b[10] == 0 && b[11] == 0 && b[12] == 0 && b[13] == 0 && b[14] == 0 && b[15] == 1;
  return b[0] != 0xFF && (!is_low || is_loopback);
}

}  // namespace

// spec: peer-addresses
proto::MaybeError PeerBook::check(const std::vector<PeerPlane>& planes,
                                  const std::function<bool(std::uint32_t)>& owns) const {
  for (const PeerPlane& plane : planes) {
    if (!is_unicast(plane.address)) return refused("planes.address", text_of(plane.address), "the address of one node");
    const auto has_zero = std::count(plane.source_ports.begin(), plane.source_ports.end(), 0);
    if (plane.port == 0 || has_zero) return refused("planes.port", "0", "1 to 65535");
    if (plane.source_ports.size() > max_sockets)
      return refused("planes.source_ports", std::to_string(plane.source_ports.size()),
                     "at most " + std::to_string(max_sockets));
    const auto is_owned = [&](const Key& key) {
      const auto found = by_address_.find(key);
      return found != by_address_.end() && owns(found->second);
    };
    for (const Key& key : derive_keys(plane)) {
      // A peer without ports has all those that are no other peer's.
      if (is_owned(key) || is_owned({key.high, key.low, 0}))
        return refused("planes.source_ports", text_of(plane.address) + " port " + std::to_string(key.port & 0xFFFF),
                       "an address and a port that are no other peer's");
    }
  }
  return std::nullopt;
}

void PeerBook::add(std::uint32_t peer, std::vector<PeerPlane> planes) {
  for (PeerPlane& plane : planes) {
    plane.to = destination_of(plane.address, plane.port, plane.scope_id);
    wildcards_ += plane.source_ports.empty();
  }
  if (peer >= peers_.size()) peers_.resize(peer + 1);
  peers_[peer] = std::move(planes);
  claim(peer);
}

void PeerBook::claim(std::uint32_t peer) {
  for (const PeerPlane& plane : peers_[peer])
    for (const Key& key : derive_keys(plane)) by_address_[key] = peer;
}

void PeerBook::remove(std::uint32_t peer) {
  for (const PeerPlane& plane : peers_[peer]) {
    for (const Key& key : derive_keys(plane))
      if (const auto found = by_address_.find(key); found != by_address_.end() && found->second == peer)
        by_address_.erase(found);
    wildcards_ -= plane.source_ports.empty();
  }
  peers_[peer] = {};
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
  for (std::size_t i = 0; i < address.size(); i += 2)
    sum += static_cast<std::uint32_t>(address[i] << 8 | address[i + 1]);
  while (sum >> 16) sum = (sum & 0xFFFF) + (sum >> 16);
  return static_cast<std::uint16_t>(sum == 0xFFFF ? 0 : sum);
}

}  // namespace softmrc::udp
