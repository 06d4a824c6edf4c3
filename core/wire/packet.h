// A whole MRC packet: the UDP payload between the UDP header and the ICRC, as meaning instead of bytes.
// Decides which headers follow which opcode and what is refused; leaves IP, UDP and the ICRC to frame.h and icrc.h.
#pragma once

#include <variant>

#include "wire/ack.h"
#include "wire/bth.h"
#include "wire/endpoint_op.h"
#include "wire/nack.h"
#include "wire/probe.h"
#include "wire/sack.h"
#include "wire/write.h"

namespace softmrc::wire {

constexpr std::uint16_t default_udp_port = 4791;
constexpr std::size_t icrc_size = 4;

struct Write {
  Meth meth;
  Timestamp tseth;  // meaningful when bth.timestamped
  Reth reth;
  std::uint32_t imm = 0;  // meaningful when the opcode carries one
  // Where the payload lies. In a packet whose payload is elided (a trimmed one, or one that a simulator carries
  // without bytes) `payload` is null and only `payload_size` speaks.
  const std::uint8_t* payload = nullptr;
  std::uint32_t payload_size = 0;
};

struct Packet {
  Bth bth;
  std::variant<Write, Aeth, Sack, Nack, Probe, EndpointRequest, EndpointResponse> body;
};

enum class ParseError : std::uint8_t {
  none,
  truncated,  // shorter than its headers
  unknown_opcode,
  bad_version,      // tver is not 0
  bad_padding,      // pad bits disagree with the length
  trailing_bytes,   // a control packet longer than its headers
  trimmed_control,  // marked as trimmed, but no write
  bad_field,        // a field holds a value that has no meaning
};

// How the bytes at hand relate to the packet that was sent.
struct ParseOptions {
  bool has_icrc = true;              // four bytes of ICRC end the span; they are not looked at here
  bool trimmed = false;              // a switch cut everything after RETH
  std::uint32_t elided_payload = 0;  // so many payload bytes were sent but are not in the span
};

// Reads one packet. Any bytes are either understood or refused; `out` is unspecified when refused.
[[nodiscard]] ParseError parse(Bytes bytes, const ParseOptions& options, Packet& out);

// The bytes that `emit_headers` writes: everything before the payload.
std::size_t header_size(const Packet& packet);
// Headers plus payload plus padding, without the ICRC.
std::size_t packet_size(const Packet& packet);

// The longest header chain: BTH + METH + TSETH + RETH + ImmDt = 40; longer are SACK at 48 and EETH with a key.
constexpr std::size_t max_header_size = Bth::size + EndpointResponse::size + key_size;

// Writes the headers and returns their length; `out` has room for max_header_size. BTH.pad is derived from the payload.
std::size_t emit_headers(const Packet& packet, std::uint8_t* out);
// Headers, payload and padding into `out`, which must have room for packet_size(); returns that size.
std::size_t emit(const Packet& packet, MutableBytes out);

}  // namespace softmrc::wire
