// Who the peers are, by address: where their packets are sent, and whose a packet is that came in.
// A peer is a list of planes. Its packets come from known addresses and, where it named its sockets, known ports;
// anything else is of an unknown source. What a peer says of itself may be a lie: only addresses of single nodes are
// taken, and none at which another peer is being talked to.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <unordered_map>
#include <vector>

#include "proto/config.h"
#include "proto/transmit.h"
#include "udp/socket.h"

namespace softmrc::udp {

struct PeerPlane {
  wire::Address address;
  std::uint32_t scope_id = 0;
  std::uint16_t port = wire::default_udp_port;
  std::vector<std::uint16_t> source_ports;  // empty: any

  Destination to;  // filled in by the book; for packets that name no SRv6 path
};

// Of one plane: each is a path, and a queue pair has no use for more.
constexpr std::size_t max_sockets = 256;

class PeerBook {
 public:
  void add(std::uint32_t peer, std::vector<PeerPlane> planes);
  void remove(std::uint32_t peer);
  // What comes from there is this peer's again, whichever had it since.
  void claim(std::uint32_t peer);
  // Whether a peer may be added there. `owns` says of a peer whether what it has stays its own.
  proto::MaybeError check(const std::vector<PeerPlane>& planes, const std::function<bool(std::uint32_t)>& owns) const;
  // Calls back with every peer that is known.
  template <typename F>
  void for_each(F f) const {
    for (std::uint32_t peer = 0; peer < peers_.size(); ++peer)
      if (!peers_[peer].empty()) f(peer);
  }
  const PeerPlane& plane(std::uint32_t peer, std::uint32_t plane) const { return peers_[peer][plane]; }
  const std::vector<PeerPlane>& planes(std::uint32_t peer) const { return peers_[peer]; }
  bool contains(std::uint32_t peer) const { return peer < peers_.size() && !peers_[peer].empty(); }
  // The peer that was added with these very planes, so that a second connection to it finds the first one's.
  std::uint32_t find_same(const std::vector<PeerPlane>& planes) const;

  // proto::no_peer for an unknown source.
  std::uint32_t find(const sockaddr_storage& from) const {
    const Key exact = key_of(from);
    if (const auto found = by_address_.find(exact); found != by_address_.end()) return found->second;
    if (!wildcards_) return proto::no_peer;
    const auto found = by_address_.find({exact.high, exact.low, 0});
    return found == by_address_.end() ? proto::no_peer : found->second;
  }

 private:
  struct Key {
    std::uint64_t high = 0;
    std::uint64_t low = 0;
    std::uint32_t port = 0;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& k) const {
      std::uint64_t h = k.high * 0x9E3779B97F4A7C15u ^ k.low;
      h = (h ^ (h >> 29) ^ k.port) * 0xD1342543DE82EF95u;
      return static_cast<std::size_t>(h ^ (h >> 32));
    }
  };
  static Key key_of(const sockaddr_storage& from);
  static Key key_of(const wire::Address& address, std::uint16_t port);
  static std::vector<Key> derive_keys(const PeerPlane& plane);

  std::vector<std::vector<PeerPlane>> peers_;
  std::unordered_map<Key, std::uint32_t, Hash> by_address_;
  std::size_t wildcards_ = 0;
};

// The one's complement sum of an address: two carriers of the same sum leave a UDP checksum valid, so a path that is
// consumed on the way is harmless exactly if its sum is the final address's.
std::uint16_t address_sum(const wire::Ipv6& address);

}  // namespace softmrc::udp
