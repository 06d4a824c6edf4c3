// One packet that the engine wants sent. The driver turns it into bytes on the named port; the simulator may skip the
// bytes. The payload pointer is the user's memory and stays valid until the message completes.
#pragma once

#include <cstdint>
#include <optional>

#include "base/time.h"
#include "wire/entropy.h"
#include "wire/packet.h"

namespace softmrc::proto {

// How the network should treat a packet; the driver maps it to a DSCP code point.
enum class TrafficClass : std::uint8_t {
  data,             // trimmable
  data_no_trim,     // the receiver cannot answer trimmed packets
  data_retransmit,  // trimmable, and has been sent before
  control,          // high priority, never trimmed or marked
  own = 0x40,       // and above: a code point that the caller chose
};
constexpr std::uint8_t max_dscp = 63;
constexpr TrafficClass with_dscp(std::uint8_t dscp) {
  return static_cast<TrafficClass>(static_cast<std::uint8_t>(TrafficClass::own) | dscp);
}
// Nothing: it is for the driver to choose.
constexpr std::optional<std::uint8_t> dscp_of(TrafficClass traffic_class) {
  if (traffic_class < TrafficClass::own) return std::nullopt;
  return static_cast<std::uint8_t>(static_cast<std::uint8_t>(traffic_class) & max_dscp);
}

constexpr std::uint32_t no_peer = 0xFFFFFFFF;
constexpr std::uint32_t no_qpn = 0xFFFFFFFF;

struct Transmit {
  wire::Packet packet;
  std::uint32_t peer = 0;
  std::uint32_t qpn = no_qpn;  // our queue pair that sends it, or whose keys an answer wants; none: the node speaks
  std::uint32_t entropy = 0;
  std::uint8_t port = 0;
  const wire::EvBytes* wide = nullptr;  // the SRv6 path that `entropy` is the number of; valid until the next input
  TrafficClass traffic_class = TrafficClass::data;
};

// What the driver saw around a packet that arrived.
enum class Integrity : std::uint8_t {
  unchecked,
  verified,
  bad,       // its ICRC is wrong
  unsealed,  // encrypted packets are required, and this is none
  forged,    // not encrypted by the peer, or changed since
  replayed,  // it was here before
};
constexpr bool is_refused(Integrity integrity) { return integrity >= Integrity::bad; }
enum class Trim : std::uint8_t { none, trimmed, trimmed_last_hop };

struct Arrival {
  std::uint32_t peer = 0;      // whose address it came from; no_peer when it is no peer's
  std::uint32_t qpn = no_qpn;  // our queue pair whose keys opened it, where it was encrypted
  std::uint32_t entropy = 0;   // as far as the headers carried it
  std::uint8_t port = 0;
  bool congestion = false;  // ECN: CE
  Trim trim = Trim::none;
  Integrity integrity = Integrity::unchecked;
};

// Headers of a data packet, without an immediate and with one.
constexpr std::uint32_t data_headers = wire::Bth::size + wire::Meth::size + wire::Timestamp::size + wire::Reth::size;
constexpr std::uint32_t longest_data_headers = data_headers + 4;

// IPv6 and UDP headers and the ICRC, which the congestion window counts with every packet.
constexpr std::uint32_t nominal_overhead = 40 + 8 + wire::icrc_size;

// A moment as the wire carries it: 16 bits that wrap every 8.4 ms.
inline std::uint16_t timestamp_ticks(Time t) { return static_cast<std::uint16_t>(t.ps / wire::Timestamp::unit_ps); }

}  // namespace softmrc::proto
