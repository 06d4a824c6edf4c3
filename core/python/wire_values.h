// Packets, frames and paths between the core and the classes of `softmrc.wire`, which check what they are given: a
// value that came from them is one that the core can hold.
#pragma once

#include <nanobind/nanobind.h>

#include "wire/entropy.h"
#include "wire/frame.h"

namespace softmrc::python {

namespace nb = nanobind;

inline wire::Bytes view(const nb::bytes& b) { return {static_cast<const std::uint8_t*>(b.data()), b.size()}; }
inline nb::bytes to_bytes(wire::Bytes b) { return nb::bytes(b.data(), b.size()); }

// Raises softmrc.errors.ConfigError.
[[noreturn]] void raise_invalid(const wire::InvalidArgument& invalid);
inline void require(const std::optional<wire::InvalidArgument>& invalid) {
  if (invalid) raise_invalid(*invalid);
}

wire::Ipv6 ipv6_from(const nb::bytes& b);
wire::Address address_from(const nb::bytes& b);  // 4 or 16 bytes

wire::Route route_from(nb::handle route);
wire::Path path_from(nb::handle path);
nb::object to_object(const wire::Path& path);
wire::Srh srh_from(nb::handle srh);
nb::object to_object(const wire::Srh& srh);

// Up to 32 bytes, the first bit first; ConfigError for more.
wire::EvBytes ev_bytes_from(const nb::bytes& b);
// (widths, fields)
wire::EvLayout layout_from(const nb::tuple& t);

// The packet's payload, if it has one, lies in the object's bytes and must not outlive it.
wire::Packet packet_from(nb::handle packet);
nb::object to_object(const wire::Packet& packet, bool trimmed);

wire::DscpMap dscp_from(nb::handle map);
wire::Frame frame_from(nb::handle frame);
nb::object to_object(const wire::Frame& frame);

}  // namespace softmrc::python
