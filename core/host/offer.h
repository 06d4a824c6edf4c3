// What each end of a handshake offers the other: its queue pairs, where they are reached, its memory, what it can take.
// The one reader checks every number before anything is made of it: a peer that is authenticated may still lie.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "crypto/crypto.h"
#include "host/bytes.h"
#include "host/planes.h"
#include "udp/peer_book.h"

namespace softmrc::host {

constexpr std::size_t max_offered_qps = 64;
constexpr std::size_t max_offered_regions = 1024;

struct OfferedQp {
  std::uint32_t qpn = 0;
  std::uint32_t first_psn = 0;
  std::uint64_t port_key = 0;  // which port status updates to it must carry; 0: it takes none
  std::vector<udp::PeerPlane> planes;
};

// Memory that the other end may write to.
struct OfferedRegion {
  std::uint64_t va = 0;
  std::uint64_t length = 0;
  std::uint32_t rkey = 0;
};

struct Offer {
  std::uint32_t mtu = 0;  // payload bytes of a full packet
  bool icrc = true;
  bool is_encrypted = false;
  crypto::Cipher cipher{};  // which it is faster with, where packets are encrypted
  std::uint32_t max_wimm = 0;
  std::uint32_t mpr = 0;
  std::vector<OfferedQp> qps;
  std::vector<OfferedRegion> regions;
  Bytes more;  // the application's own
};

Bytes encode(const Offer& offer);
// Throws HandshakeRefused where it makes no sense.
Offer decode_offer(std::span<const std::uint8_t> bytes);

// What of this side an offer has to fit.
struct LocalEnd {
  std::vector<LocalPlane> planes;
  std::vector<udp::PeerPlane> reached_at;  // its own addresses and ports: no device connects to itself
  bool icrc = true;
  bool is_encrypted = false;
};
// Throws HandshakeRefused, in the same words for both ends.
void check_offer(const Offer& offer, const LocalEnd& own);

// Whether packets to this address reach exactly one host: it is not multicast, unspecified, reserved or broadcast, nor
// an IPv4 address inside an IPv6 one.
bool is_address_of_host(const wire::Address& address);

}  // namespace softmrc::host
