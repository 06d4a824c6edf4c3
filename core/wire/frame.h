// A whole frame around an MRC packet: Ethernet, an optional outer IPv6 that is the path, IP, UDP, and the ICRC.
//
//   Ethernet | [outer IPv6 [SRH]] | IPv6 or IPv4 | UDP | MRC packet | ICRC
//
// Decides the bytes of these layers and what is refused in them; leaves the packet to packet.h and the path to srv6.h.
// Also what a switch does to a frame that it has no room for: `trim`.
// spec: trimmed-layout
#pragma once

#include "wire/entropy.h"
#include "wire/packet.h"
#include "wire/route.h"
#include "wire/sealed.h"
#include "wire/srv6.h"

namespace softmrc::wire {

// The operator's DSCP code points.
struct DscpMap {
  std::uint8_t no_trim = 0;
  std::uint8_t trimmable = 4;
  std::uint8_t trimmable_retx = 8;
  std::uint8_t trimmed = 12;
  std::uint8_t trimmed_last_hop = 16;
  std::uint8_t control = 46;

  bool operator==(const DscpMap&) const = default;
  constexpr bool may_trim(std::uint8_t dscp) const { return dscp == trimmable || dscp == trimmable_retx; }
  constexpr bool was_trimmed(std::uint8_t dscp) const { return dscp == trimmed || dscp == trimmed_last_hop; }
};

// The class that a packet travels in. Acknowledgements and endpoint responses are control. Requests of both kinds
// travel with the data whose paths they ask about, but have nothing to trim.
std::uint8_t dscp_of(const Packet& packet, const DscpMap& map = {});

enum class Ecn : std::uint8_t { not_capable = 0, capable_1 = 1, capable_0 = 2, congestion = 3 };

// The header in front of the real one: its destination is the path.
struct Outer {
  Ipv6 source{};
  Path path;
  std::uint32_t flow_label = 0;
  std::uint8_t dscp = 0;
  Ecn ecn = Ecn::not_capable;
  std::uint8_t hop_limit = 64;

  bool operator==(const Outer&) const = default;
};

// What parse found out about a checksum. A trimmed frame has no ICRC, and a UDP checksum of zero says nothing.
enum class Checksum : std::uint8_t { absent, good, bad };

struct Frame {
  Mac source_mac{};
  Mac destination_mac{};
  std::optional<Outer> outer;
  Route route;
  std::uint32_t flow_label = 0;      // 20 bits, IPv6 only
  std::uint16_t identification = 0;  // IPv4 only, like the next
  bool dont_fragment = true;
  std::uint8_t dscp = 0;
  Ecn ecn = Ecn::capable_0;
  std::uint8_t hop_limit = 64;
  bool trimmed = false;  // headers end with RETH, there is no ICRC
  Packet packet;

  // Set by parse where the packet is encrypted. `packet` then has the headers, which are in the clear, an immediate of
  // 0, and for a payload bytes that only the peer can make sense of.
  std::optional<SealHeader> sealed;
  Checksum icrc = Checksum::absent;  // found by parse; emit always writes a good one
  Checksum udp_checksum =
      Checksum::good;  // found by parse; emit writes one unless this is absent or the frame is trimmed

  // The EV as far as this frame carries it.
  std::uint32_t ev() const {
    return route.is_v4() ? ev_of_ipv4(route.source_port) : ev_of(route.source_port, flow_label);
  }
  void carry(std::uint32_t ev) {
    route.source_port = source_port_of(ev);
    flow_label = route.is_v4() ? 0 : flow_label_of(ev);
  }
  std::uint32_t ipv4_identity() const {
    return static_cast<std::uint32_t>(identification) << 16 | (dont_fragment ? 0x4000u : 0u);
  }
};

enum class FrameError : std::uint8_t {
  none,
  truncated_link,  // shorter than an Ethernet header
  not_ip,          // another EtherType, or an IP version that is neither 4 nor 6
  truncated_ip,    // fewer bytes than the IP header or its length field calls for
  bad_ip_header,   // IPv4 options, or the bit that must be zero
  bad_ip_checksum,
  bad_ip_length,  // the length field leaves no room for what must follow
  fragment,
  bad_srh,            // a routing header that is not a well-formed SRH
  srh_without_inner,  // an SRH that is followed by no second IP header
  not_udp,
  wrong_port,
  bad_udp_length,  // differs from what IP carries
  bad_packet,      // see the packet's own refusal
};

struct FrameResult {
  FrameError frame = FrameError::none;
  ParseError packet = ParseError::none;

  bool ok() const { return frame == FrameError::none; }
  bool operator==(const FrameResult&) const = default;
};

struct FrameOptions {
  bool has_link_header = true;                // false: the bytes begin with an IP header
  std::uint16_t udp_port = default_udp_port;  // 0: whichever
  DscpMap dscp;
};

// Reads one frame. Any bytes are understood or refused; `out` is unspecified when refused. A bad ICRC or UDP checksum
// is reported, not refused: what to do with it is the reader's choice. Bytes after the IP packet (Ethernet's own
// padding) are ignored.
[[nodiscard]] FrameResult parse_frame(Bytes bytes, const FrameOptions& options, Frame& out);

// The packet of a frame and whatever closes it, as they are; empty where the frame is refused before that.
Bytes udp_payload(Bytes frame, const FrameOptions& options);

// What is left of a write after trimming: BTH through RETH, into `out`, which has room for max_header_size. Returns the
// length. bth.pad is kept where the payload is unknown, for it is all that still tells of it.
std::size_t emit_trimmed(const Packet& packet, std::uint8_t* out);

std::size_t frame_size(const Frame& frame);
// Writes the frame and returns its size; 0 when `out` is too small or a length field cannot hold the length.
std::size_t emit_frame(const Frame& frame, MutableBytes out);

// What a switch does to a frame that finds no room: cut it after RETH (of an encrypted one after the tag of its
// headers), rewrite all lengths, mark it TRIMMED in every IP header (the outer one may be gone when it arrives), and
// drop the UDP checksum. Works in place; returns the new size, or 0 when the frame is not one that may be trimmed.
std::size_t trim(MutableBytes frame, bool last_hop, const FrameOptions& options = {});

}  // namespace softmrc::wire
