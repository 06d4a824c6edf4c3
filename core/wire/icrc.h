// ICRC, the invariant CRC that ends every RoCEv2 packet: a CRC-32 over everything that no switch on the way may change.
//
// What may change is counted as ones, in this order: 8 bytes of ones in the place of an InfiniBand local header; the IP
// header with its traffic class (TOS), flow label, hop limit (TTL) and IPv4 header checksum masked; the UDP header with
// its checksum masked; BTH with byte 4 masked; the rest of the packet as it is. Lengths count the ICRC itself.
// With IPv6-in-IPv6 the header that counts is the inner one: the outer is the path, and it shrinks on the way.
//
// Of an IPv4 header the identification and the fragment bits count too, but a sender on a socket cannot know what its
// kernel will write there. Between sockets both ends therefore count the default, 0 and "don't fragment".
#pragma once

#include <initializer_list>

#include "wire/route.h"

namespace softmrc::wire {

// Two ways to the same number. `automatic` takes the carry-less multiply where the processor has one.
enum class CrcMethod : std::uint8_t { automatic, table, carryless };

bool carryless_available();

// The second word of an IPv4 header: identification, flags, fragment offset.
constexpr std::uint32_t default_ipv4_identity = 0x00004000;

// One step of the plain CRC-32 (polynomial 0x04C11DB7, reflected). The register starts at all ones and is inverted
// at the end; that is the caller's to do, so that a checksum may be taken over pieces.
std::uint32_t crc32_update(std::uint32_t state, Bytes bytes, CrcMethod method = CrcMethod::automatic);

// The register after everything in front of the UDP payload. It is the same for all packets of one flow and size, so a
// sender of many may keep it; what follows goes through crc32_update, with byte 4 of BTH as ones.
std::uint32_t icrc_seed(const Route& route, std::size_t udp_payload_size,
                        std::uint32_t ipv4_identity = default_ipv4_identity);
constexpr std::size_t icrc_masked_byte = 4;  // of BTH: the bits that InfiniBand gave to congestion marks

// Whether `udp_payload`, a whole packet with its ICRC, agrees with the register that icrc_seed gave for its size.
bool verify_from(std::uint32_t seed, Bytes udp_payload);

// The ICRC of one packet, taken over its pieces in order: header, payload, padding. Nothing is copied but the first
// few bytes, where BTH hides its masked one.
// spec: icrc
class Icrc {
 public:
  // `udp_payload_size` counts everything after the UDP header, the four bytes of the ICRC included.
  Icrc(const Route& route, std::size_t udp_payload_size, CrcMethod method = CrcMethod::automatic,
       std::uint32_t ipv4_identity = default_ipv4_identity);

  Icrc& add(Bytes piece);
  // As a number; the wire carries it least significant byte first.
  std::uint32_t value() const { return ~state_; }
  void store(std::uint8_t* out) const;

 private:
  std::uint32_t state_;
  std::size_t at_ = 0;  // bytes of the UDP payload seen so far
  CrcMethod method_;
};

// The ICRC of the packet that these pieces make up, none of which is the ICRC's own place.
std::uint32_t icrc(const Route& route, std::span<const Bytes> pieces);
std::uint32_t icrc(const Route& route, std::initializer_list<Bytes> pieces);

// `udp_payload` is a whole packet that ends with four bytes for the ICRC. Shorter than BTH and ICRC: nothing is
// appended, nothing verifies.
bool append_icrc(const Route& route, MutableBytes udp_payload, std::uint32_t ipv4_identity = default_ipv4_identity);
bool verify(const Route& route, Bytes udp_payload, std::uint32_t ipv4_identity = default_ipv4_identity);

}  // namespace softmrc::wire
