// Packets, frames and the ICRC. Refused bytes come back as the reason in words; the Python side decides what to raise.
#include "python/bind.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "python/wire_values.h"
#include "wire/describe.h"
#include "wire/icrc.h"

namespace softmrc::python {
namespace {

using namespace nb::literals;

// What the bytes mean, or why they are refused.
using Parsed = std::variant<nb::object, std::string>;

Parsed parse_packet(const nb::bytes& data, bool has_icrc, bool trimmed, std::uint32_t elided_payload) {
  wire::Packet packet;
  const wire::ParseError refusal = wire::parse(view(data), {has_icrc, trimmed, elided_payload}, packet);
  if (refusal != wire::ParseError::none) return std::string(wire::reason_of(refusal));
  return to_object(packet, trimmed && std::holds_alternative<wire::Write>(packet.body));
}

bool is_trimmed(nb::handle packet) { return nb::cast<bool>(packet.attr("trimmed")); }

nb::bytes emit_packet(nb::handle object) {
  const wire::Packet packet = packet_from(object);
  std::vector<std::uint8_t> out(std::max(wire::packet_size(packet), wire::max_header_size));
  const std::size_t size = is_trimmed(object) ? wire::emit_trimmed(packet, out.data()) : wire::emit(packet, out);
  return to_bytes({out.data(), size});
}

wire::FrameOptions options_from(bool has_link_header, std::uint16_t udp_port, nb::handle dscp) {
  return {has_link_header, udp_port, dscp_from(dscp)};
}

Parsed parse_frame(const nb::bytes& data, bool has_link_header, std::uint16_t udp_port, nb::handle dscp) {
  wire::Frame frame;
  const auto verdict = wire::parse_frame(view(data), options_from(has_link_header, udp_port, dscp), frame);
  if (!verdict.ok()) return wire::reason_of(verdict);
  return to_object(frame);
}

nb::bytes emit_frame(nb::handle object) {
  const wire::Frame frame = frame_from(object);
  std::vector<std::uint8_t> out(wire::frame_size(frame) + wire::max_header_size);
  return to_bytes({out.data(), wire::emit_frame(frame, out)});
}

nb::bytes trim_frame(const nb::bytes& data, bool last_hop, bool has_link_header, std::uint16_t udp_port,
                     nb::handle dscp) {
  const wire::Bytes in = view(data);
  std::vector<std::uint8_t> frame(in.begin(), in.end());
  const std::size_t size = wire::trim(frame, last_hop, options_from(has_link_header, udp_port, dscp));
  return to_bytes({frame.data(), size});
}

wire::CrcMethod method_from(unsigned method) { return static_cast<wire::CrcMethod>(method); }

std::uint32_t icrc_of_pieces(nb::handle route, const std::vector<nb::bytes>& pieces, unsigned method,
                             std::uint32_t ipv4_identity) {
  std::size_t size = wire::icrc_size;
  for (const auto& piece : pieces) size += piece.size();
  wire::Icrc sum(route_from(route), size, method_from(method), ipv4_identity);
  for (const auto& piece : pieces) sum.add(view(piece));
  return sum.value();
}

// The same sum over and over, for a clock outside to measure; each round starts from the last one's register, so that
// no compiler can leave one out.
std::uint32_t crc32_rounds(const nb::bytes& data, std::uint64_t rounds, unsigned method) {
  const wire::Bytes bytes = view(data);
  GilRelease released;
  std::uint32_t state = ~0u;
  for (; rounds; --rounds) state = wire::crc32_update(state, bytes, method_from(method));
  return ~state;
}

template <typename Enum>
nb::dict names(std::initializer_list<Enum> values) {
  nb::dict all;
  for (const Enum value : values) all[nb::cast(wire::name_of(value))] = nb::cast(static_cast<unsigned>(value));
  return all;
}

// Every name the core knows, so that a test may hold the Python enums against them.
nb::dict all_names() {
  using wire::EndpointOp, wire::Mark, wire::NackReason, wire::Opcode, wire::Syndrome;
  nb::dict all;
  all["Opcode"] = names({Opcode::write_first, Opcode::write_middle, Opcode::write_last, Opcode::write_last_imm,
                         Opcode::write_only, Opcode::write_only_imm, Opcode::acknowledge, Opcode::endpoint_request,
                         Opcode::endpoint_response, Opcode::sack, Opcode::nack, Opcode::probe});
  all["NackReason"] = names({NackReason::trimmed, NackReason::trimmed_last_hop, NackReason::no_bitmap,
                             NackReason::no_packet_buffer, NackReason::no_resource, NackReason::psn_out_of_window,
                             NackReason::unexpected_event});
  all["Mark"] = names({Mark::none, Mark::skip_once, Mark::always_skip});
  all["Syndrome"] = names(
      {Syndrome::ack, Syndrome::invalid_request, Syndrome::remote_access, Syndrome::remote_operation});
  all["EndpointOp"] = names({EndpointOp::port_status_update, EndpointOp::ev_probe});
  return all;
}

void bind_icrc(nb::module_& m) {
  m.def("icrc", &icrc_of_pieces, "route"_a, "pieces"_a, "method"_a, "ipv4_identity"_a);
  m.def("crc32", [](const nb::bytes& data, std::uint32_t start, unsigned method) {
    return ~wire::crc32_update(~start, view(data), method_from(method));
  }, "data"_a, "start"_a, "method"_a);
  m.def("crc32_rounds", &crc32_rounds, "data"_a, "rounds"_a, "method"_a);
  m.def("carryless_available", &wire::carryless_available);
  m.def("seal",
        [](nb::handle route, const nb::bytes& udp_payload, std::uint32_t ipv4_identity) -> std::optional<nb::bytes> {
    const wire::Bytes in = view(udp_payload);
    std::vector<std::uint8_t> out(in.begin(), in.end());
    if (!wire::append_icrc(route_from(route), out, ipv4_identity)) return std::nullopt;
    return to_bytes(out);
  }, "route"_a, "udp_payload"_a, "ipv4_identity"_a);
  m.def("verify", [](nb::handle route, const nb::bytes& udp_payload, std::uint32_t ipv4_identity) {
    return wire::verify(route_from(route), view(udp_payload), ipv4_identity);
  }, "route"_a, "udp_payload"_a, "ipv4_identity"_a);
}

}  // namespace

void bind_wire(nanobind::module_& m) {
  m.def("parse", &parse_packet, "data"_a, "has_icrc"_a, "trimmed"_a, "elided_payload"_a);
  m.def("emit", &emit_packet, "packet"_a);
  m.def("describe", [](nb::handle packet) { return wire::describe(packet_from(packet), is_trimmed(packet)); },
        "packet"_a);
  m.attr("WRONG_PORT") = wire::reason_of(wire::FrameResult{wire::FrameError::wrong_port}).c_str();
  m.def("parse_frame", &parse_frame, "data"_a, "has_link_header"_a, "udp_port"_a, "dscp"_a);
  m.def("udp_payload", [](const nb::bytes& data, bool has_link_header) {
    return to_bytes(wire::udp_payload(view(data), {.has_link_header = has_link_header, .udp_port = 0}));
  }, "data"_a, "has_link_header"_a);
  m.def("emit_frame", &emit_frame, "frame"_a);
  m.def("trim", &trim_frame, "data"_a, "last_hop"_a, "has_link_header"_a, "udp_port"_a, "dscp"_a);
  m.def("dscp_of", [](nb::handle packet, nb::handle map) { return wire::dscp_of(packet_from(packet), dscp_from(map)); },
        "packet"_a, "map"_a);
  m.def("names", &all_names);
  bind_icrc(m);
  bind_paths(m);
  bind_capture(m);
}

}  // namespace softmrc::python
