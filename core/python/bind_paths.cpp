// Entropy values and SRv6 paths.
#include "python/bind.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "python/wire_values.h"

namespace softmrc::python {
namespace {

using namespace nb::literals;
using Usids = std::vector<std::uint16_t>;

nb::bytes expand(const nb::bytes& ev, const nb::tuple& layout) {
  const wire::EvLayout parsed = layout_from(layout);
  require(wire::validate(parsed));
  return to_bytes(wire::expand(parsed, ev_bytes_from(ev)));
}

wire::BitField bit_field(const nb::object& t) {
  if (t.is_none()) return {};
  const nb::tuple pair = nb::cast<nb::tuple>(t);
  return {nb::cast<std::uint8_t>(pair[0]), nb::cast<std::uint8_t>(pair[1])};
}

nb::bytes computed_destination(std::uint32_t block, const Usids& usids, const nb::object& plane_in_usid,
                               const nb::object& plane_in_block, const nb::object& uplink_in_t1, std::uint8_t t1,
                               std::uint32_t plane, std::uint32_t uplink) {
  wire::PathTemplate path;
  path.block = block;
  path.count = static_cast<std::uint8_t>(std::min<std::size_t>(usids.size(), 255));
  std::copy_n(usids.begin(), std::min(usids.size(), wire::max_usids), path.usids.begin());
  path.plane_in_usid = bit_field(plane_in_usid);
  path.plane_in_block = bit_field(plane_in_block);
  path.uplink_in_t1 = bit_field(uplink_in_t1);
  path.t1 = t1;
  wire::Ipv6 address{};
  require(wire::computed_destination(path, plane, uplink, address));
  return to_bytes(address);
}

std::variant<nb::object, std::string> parse_srh(const nb::bytes& data) {
  wire::Srh srh;
  std::size_t size = 0;
  switch (wire::parse_srh(view(data), srh, size)) {
    case wire::SrhError::none: return to_object(srh);
    case wire::SrhError::truncated: return "shorter than its own length";
    case wire::SrhError::not_srh: return "a routing header of another type";
    case wire::SrhError::too_many_segments: return "more than 8 segments";
    case wire::SrhError::bad_length: return "a length without room for its segments";
    case wire::SrhError::bad_segments_left: return "more segments left than there are";
  }
  __builtin_unreachable();
}

void bind_entropy(nb::module_& m) {
  m.def("expand", &expand, "ev"_a, "layout"_a);
  m.def("validate_layout", [](const nb::tuple& layout, unsigned room) {
    require(wire::validate(layout_from(layout), room));
  }, "layout"_a, "room"_a);
  m.def("path_of", [](const nb::bytes& expanded) { return to_object(wire::path_of(ev_bytes_from(expanded))); },
        "expanded"_a);
  m.def("ev_of_path", [](nb::handle path) {
    wire::EvBytes ev{};
    require(wire::ev_of_path(path_from(path), ev));
    return to_bytes(ev);
  }, "path"_a);
  m.def("pack_stev", [](const std::vector<std::uint8_t>& widths, const std::vector<std::uint32_t>& values) {
    std::uint32_t ev = 0;
    require(wire::pack_stev(widths, values, ev));
    return ev;
  }, "widths"_a, "values"_a);
  m.def("unpack_stev", [](const std::vector<std::uint8_t>& widths, std::uint32_t ev) {
    std::vector<std::uint32_t> values;
    require(wire::unpack_stev(widths, ev, values));
    return values;
  }, "widths"_a, "ev"_a);
  m.def("ev_of", [](std::uint16_t source_port, std::uint32_t flow_label) {
    return wire::ev_of(source_port, flow_label);
  }, "source_port"_a, "flow_label"_a);
  m.def("carried_by",
        [](std::uint32_t ev) { return nb::make_tuple(wire::source_port_of(ev), wire::flow_label_of(ev)); }, "ev"_a);
}

void bind_srv6(nb::module_& m) {
  m.def("build_carrier", [](std::uint32_t block, const Usids& usids) {
    wire::Ipv6 address{};
    require(wire::build_carrier(block, usids, address));
    return to_bytes(address);
  }, "block"_a, "usids"_a);
  m.def("split_carrier", [](const nb::bytes& address) {
    const wire::Carrier c = wire::split_carrier(ipv6_from(address));
    return nb::make_tuple(c.block, Usids(c.usids.begin(), c.usids.begin() + c.count));
  }, "address"_a);
  m.def("matches_usid", [](const nb::bytes& address, std::uint32_t block, std::uint16_t usid) {
    return wire::matches_usid(ipv6_from(address), block, usid);
  }, "address"_a, "block"_a, "usid"_a);
  m.def("shift_carrier", [](const nb::bytes& address) { return to_bytes(wire::shift_carrier(ipv6_from(address))); },
        "address"_a);
  m.def("build_path", [](std::uint32_t block, const Usids& usids) {
    wire::Path path;
    require(wire::build_path(block, usids, path));
    return to_object(path);
  }, "block"_a, "usids"_a);
  m.def("path_usids", [](nb::handle path) { return wire::path_usids(path_from(path)); }, "path"_a);
  m.def("advance_path", [](nb::handle path) -> std::optional<nb::object> {
    wire::Path moved = path_from(path);
    if (!wire::advance_path(moved)) return std::nullopt;
    return to_object(moved);
  }, "path"_a);
  m.def("parse_srh", &parse_srh, "data"_a);
  m.def("emit_srh", [](nb::handle object) {
    const wire::Srh srh = srh_from(object);
    std::vector<std::uint8_t> out(srh.size());
    wire::emit_srh(srh, out.data());
    return to_bytes(out);
  }, "srh"_a);
  m.def("computed_destination", &computed_destination, "block"_a, "usids"_a, "plane_in_usid"_a.none(),
        "plane_in_block"_a.none(), "uplink_in_t1"_a.none(), "t1"_a, "plane"_a, "uplink"_a);
}

}  // namespace

void bind_paths(nanobind::module_& m) {
  bind_entropy(m);
  bind_srv6(m);
}

}  // namespace softmrc::python
