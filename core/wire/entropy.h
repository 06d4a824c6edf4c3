// Entropy values: the 32 bits that choose a packet's path, and the three ways in which a network reads them.
//
//   EV   31            16 15             0
//        +---------------+---------------+
//        |  flow label   |  UDP source   |   low 16 bits of the IPv6 flow label; IPv4 carries the lower half only,
//        |   (low 16)    |     port      |   and what was not carried is echoed as zero
//        +---------------+---------------+
//
// Formats: UDP, the source port alone; STEV, a structured value with a subfield for each tier; SRV6, an outer
// destination address, and the segment of an SRH behind it. In SRV6 the 32-bit EV is the number of a wider value.
// A controller's EV is a string of up to 256 bits, of which field descriptors make what the network reads: see
// `expand`.
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
    case EvFormat::srv6: return 256;
  }
  return 0;
}

constexpr std::size_t ev_bytes = 32;
constexpr unsigned max_field_bits = 32;

// An EV as a controller writes it, and what it expands to: the first bit is the most significant one of the first byte,
// and what is not used is zero.
using EvBytes = std::array<std::uint8_t, ev_bytes>;

// One field of an EV profile. Bits under the mask come from the EV, the others from init_val. What the bits under the
// mask spell together lies between min and max where EVs are generated; a controller's own EVs are not bounded.
struct EvField {
  std::uint8_t width = 0;
  std::uint32_t init_val = 0;
  std::uint32_t min = 0;
  std::uint32_t max = 0;
  std::uint32_t mask = 0;

  bool operator==(const EvField&) const = default;
};

// A format, as the widths of its fields, and the fields of an EV profile, at most one for each width.
struct EvLayout {
  std::vector<std::uint16_t> widths;
  std::vector<EvField> fields;

  bool operator==(const EvLayout&) const = default;
};

// How many bits of the EV the fields use up.
unsigned entropy_bits(std::span<const EvField> fields);

// `room` is how many bits the widths may have together.
std::optional<InvalidArgument> validate(const EvLayout& layout, unsigned room = 8 * ev_bytes);

// Each set mask bit, most significant first, takes the next bit of the EV; each field stands at the right of its width,
// widths stand side by side. The layout must be valid.
EvBytes expand(const EvLayout& layout, const EvBytes& ev);

// The EV whose fields have these values under their masks, the inverse of what expand takes: one value a field.
EvBytes spell(std::span<const EvField> fields, std::span<const std::uint32_t> values);

// The 32 bits that packets carry, of an expanded value in the UDP or STEV format.
std::uint32_t carried_ev(EvFormat format, const EvBytes& expanded);
EvBytes ev_bytes_of(EvFormat format, std::uint32_t carried);

// A structured EV: subfields side by side from the most significant bit down, the rest zero (the same rule).
std::optional<InvalidArgument> pack_stev(std::span<const std::uint8_t> widths, std::span<const std::uint32_t> values,
                                         std::uint32_t& ev);
std::optional<InvalidArgument> unpack_stev(std::span<const std::uint8_t> widths, std::uint32_t ev,
                                           std::vector<std::uint32_t>& values);

// The path that an expanded value of the SRV6 format names: a destination, and a segment to go on to if there is one.
Path path_of(const EvBytes& expanded);
// The other way round; longer paths do not fit an EV.
std::optional<InvalidArgument> ev_of_path(const Path& path, EvBytes& out);

}  // namespace softmrc::wire
