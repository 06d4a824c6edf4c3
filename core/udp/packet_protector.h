// What closes a packet, and tells when it is opened whether it is what was sent: one interface, chosen by
// peer, so that code which makes packets or takes them in need not know which. A checksum (icrc_protector.h) finds what
// the network did; a cipher (aead_protector.h) what anybody did.
#pragma once

#include <cstdint>

#include "base/time.h"
#include "proto/transmit.h"
#include "udp/peer_book.h"
#include "wire/bytes.h"
#include "wire/route.h"

namespace softmrc::udp {

// A packet that is about to leave. `front` holds its headers, and has room behind them for whatever encryption adds;
// the payload is still the user's memory.
struct OutgoingPacket {
  const proto::Transmit& transmit;
  const wire::Address& from;
  std::uint16_t source_port;
  const PeerPlane& to;
  std::uint8_t* front;
  std::uint32_t front_size;
  const std::uint8_t* payload;
  std::uint32_t payload_size;
  std::uint32_t tail_size = 0;  // of what lies behind `front` and is sent behind the payload

  std::uint32_t size() const { return front_size + payload_size + tail_size; }
};

// What packets that came in one message have in common.
struct Origin {
  wire::Route route;
  std::uint32_t peer = proto::no_peer;
  bool is_trimmed = false;
};

constexpr unsigned padding_of(std::uint32_t payload_size) { return (4 - payload_size % 4) % 4; }

class PacketProtector {
 public:
  virtual ~PacketProtector() = default;

  // How many bytes it adds to a packet with data, besides padding.
  virtual std::uint32_t overhead() const = 0;
  // Writes padding and whatever it adds; the payload may then be in `front`, and its own size 0. False: it must not
  // leave.
  virtual bool seal(Time now, OutgoingPacket& packet) = 0;
  // The next packets to open are from there.
  virtual void begin(const Origin& origin) = 0;
  // Leaves the packet as wire::parse takes it, without an ICRC. `qpn` becomes whose keys opened it, where keys did.
  virtual proto::Integrity open(Time now, wire::MutableBytes& packet, std::uint32_t& qpn) = 0;
  // Planes of peers that were known may be gone, and others stand in their place.
  virtual void on_peers_removed() = 0;
};

}  // namespace softmrc::udp
