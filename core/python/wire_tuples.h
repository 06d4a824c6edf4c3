// Packets, frames and paths as Python tuples. The classes that people see are written in Python (src/softmrc/wire);
// what crosses here is their fields in order, so that neither side knows the other's objects.
//
// A tuple is made by the classes above and only by them, so a wrong shape is a bug, not bad input.
#pragma once

#include <nanobind/nanobind.h>

#include "wire/entropy.h"
#include "wire/frame.h"

namespace softmrc::python {

namespace nb = nanobind;

template <typename T>
T item(const nb::tuple& t, std::size_t i) {
  return nb::cast<T>(t[i]);
}

inline wire::Bytes view(const nb::bytes& b) { return {static_cast<const std::uint8_t*>(b.data()), b.size()}; }
inline nb::bytes to_bytes(wire::Bytes b) { return nb::bytes(b.data(), b.size()); }

// Raises softmrc.errors.ConfigError.
[[noreturn]] void raise_invalid(const wire::InvalidArgument& invalid);
inline void require(const std::optional<wire::InvalidArgument>& invalid) {
  if (invalid) raise_invalid(*invalid);
}

wire::Ipv6 ipv6_from(const nb::bytes& b);
wire::Address address_from(const nb::bytes& b);  // 4 or 16 bytes
wire::Route route_from(const nb::tuple& t);
nb::tuple to_tuple(const wire::Route& route);

wire::Path path_from(const nb::tuple& t);
nb::tuple to_tuple(const wire::Path& path);
wire::Srh srh_from(const nb::tuple& t);
nb::tuple to_tuple(const wire::Srh& srh);

// Up to 32 bytes, the first bit first; ConfigError for more.
wire::EvBytes ev_bytes_from(const nb::bytes& b);
// (widths, fields), a field being (width, init_val, min, max, mask).
wire::EvLayout layout_from(const nb::tuple& t);

// The packet's payload, if it has one, lies in the tuple's bytes object and must not outlive it.
wire::Packet packet_from(const nb::tuple& t);
nb::tuple to_tuple(const wire::Packet& packet);

wire::DscpMap dscp_from(const nb::tuple& t);
wire::Frame frame_from(const nb::tuple& t);
nb::tuple to_tuple(const wire::Frame& frame);

}  // namespace softmrc::python
