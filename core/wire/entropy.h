// Entropy values: the 32 bits that choose a packet's path, and the three ways in which a network reads them.
//
//   EV   31            16 15             0
//        +---------------+---------------+
//        |  flow label   |  UDP source   |   low 16 bits of the IPv6 flow label; IPv4 carries the lower half only,
//        |   (low 16)    |     port      |   and what was not carried is echoed as zero
//        +---------------+---------------+
//
// Formats: UDP, the source port alone; STEV, a structured value with a subfield for each tier; SRV6, an outer
// destination address. In explicit SRV6 mode the EV is the index of a path in the controller's list.
// A GENERATED value is expanded from field descriptors, see `expand`.
// spec: entropy-split ev-formats ev-expansion
#pragma once

#include <bit>

#include "wire/srv6.h"

namespace softmrc::wire {

constexpr std::uint16_t source_port_of(std::uint32_t ev) { return static_cast<std::uint16_t>(ev); }
constexpr std::uint32_t flow_label_of(std::uint32_t ev) { return ev >> 16; }
constexpr std::uint32_t ev_of(std::uint16_t source_port, std::uint32_t flow_label) {
  return (flow_label & 0xFFFF) << 16 | source_port;
}
constexpr std::uint32_t ev_of_ipv4(std::uint16_t source_port) { return source_port; }

enum class EvFormat : std::uint8_t { udp, stev, srv6 };

// The bits that a format has room for.
constexpr unsigned format_width(EvFormat format) {
  switch (format) {
    case EvFormat::udp: return 16;
    case EvFormat::stev: return 32;
    case EvFormat::srv6: return 128;
  }
  return 0;
}

constexpr unsigned max_entry_bits = 256;  // a controller's entry is at most 32 bytes
constexpr unsigned max_field_bits = 32;

// One field of a GENERATED value. Bits under the mask come from the EV, the others from init_val; the field's value
// then has to lie between min and max.
struct EvField {
  std::uint8_t width = 0;
  std::uint32_t init_val = 0;
  std::uint32_t min = 0;
  std::uint32_t max = 0;
  std::uint32_t mask = 0;

  bool operator==(const EvField&) const = default;
};

// How many bits of the EV the fields use up.
unsigned entropy_bits(std::span<const EvField> fields);

// The format's bits, most significant first, in as many whole bytes as they need.
struct EvValue {
  std::array<std::uint8_t, max_entry_bits / 8> bytes{};
  unsigned bits = 0;

  bool operator==(const EvValue&) const = default;
};

std::optional<Invalid> validate(std::span<const EvField> fields, unsigned format_bits, unsigned ev_bits = 32);

// Each set mask bit, most significant first, takes the next most significant bit of the EV; the fields are
// concatenated, and what the format has left over is zero. `ev_bits` says where the EV's own most significant bit is:
// 32 for a value drawn at random, entropy_bits(fields) for one that counts 0, 1, 2, ...
std::optional<Invalid> expand(std::uint32_t ev, std::span<const EvField> fields, unsigned format_bits, EvValue& out,
                              unsigned ev_bits = 32);

// A structured EV: subfields side by side from the most significant bit down, the rest zero (the same rule).
std::optional<Invalid> pack_stev(std::span<const std::uint8_t> widths, std::span<const std::uint32_t> values,
                                 std::uint32_t& ev);
std::optional<Invalid> unpack_stev(std::span<const std::uint8_t> widths, std::uint32_t ev,
                                   std::vector<std::uint32_t>& values);

// Explicit SRV6 mode: the controller's list. Null or nothing: the EV names no path, the path has no EV.
const Path* path_of(std::uint32_t ev, std::span<const Path> paths);
std::optional<std::uint32_t> ev_of_path(const Path& path, std::span<const Path> paths);

}  // namespace softmrc::wire
