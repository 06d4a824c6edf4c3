#include "python/wire_values.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <type_traits>

#include "python/bind.h"

namespace softmrc::python {
namespace {

using wire::Opcode;

// The classes of softmrc.wire, what the core calls them, and their fields, for both directions.
#define CLASS(name, Type, ...)                                               \
  [[maybe_unused]] const char* class_of(const wire::Type&) { return #name; } \
  template <typename Visit>                                                  \
  void each(wire::Type& h, Visit&& f) {                                      \
    __VA_ARGS__;                                                             \
  }
#define F(name) f(#name, h.name)
CLASS(Bth, Bth, F(opcode), F(solicited), F(migration), F(pad), F(version), F(p_key), F(dqp), F(ack_request),
      F(retransmission), F(timestamped), F(psn))
CLASS(Timestamp, Timestamp, F(ticks), f("fine", h.resolution), F(ftype))
// Without what only some packets have.
CLASS(Write, Write, f("rqmsn", h.meth.rqmsn), f("msn", h.meth.msn), f("va", h.reth.va), f("rkey", h.reth.rkey),
      f("dmalen", h.reth.dmalen), F(payload_size))
CLASS(Ack, Aeth, F(syndrome), F(msn))
CLASS(CcState, CcState, F(tx_timestamp), F(ooo_count), F(restore_cwnd), F(rcv_cwnd_pen), F(rcvd_bytes))
CLASS(Sack, Sack, F(mark), F(answers_probe), F(ack_psn_offset), F(entropy), F(spdcid), F(dpdcid), F(cack_psn),
      F(cc_flags), F(mpr), F(sack_offset), F(bitmap), F(cc))
CLASS(Nack, Nack, F(reason), F(vendor), F(entropy), F(spdcid), F(dpdcid), F(nack_psn), F(cc_flags), F(tx_timestamp))
CLASS(Probe, Probe, F(vendor), F(probe_id), F(spdcid), F(dpdcid), F(timestamp))
CLASS(EndpointRequest, EndpointRequest, F(op), F(vendor), F(port_status_mask), F(key), F(timestamp))
CLASS(EndpointResponse, EndpointResponse, F(op), F(key), F(timestamp), F(service_ns))
CLASS(Route, Route, F(source), F(destination), F(source_port), F(destination_port))
CLASS(Path, Path, F(destination), F(srh))
CLASS(Outer, Outer, F(source), F(path), F(flow_label), F(dscp), F(ecn), F(hop_limit))
CLASS(EvField, EvField, F(width), F(init_val), F(min), F(max), F(mask))
CLASS(DscpMap, DscpMap, F(no_trim), F(trimmable), F(trimmable_retx), F(trimmed), F(trimmed_last_hop), F(control))
// Without the packet, and what parsing alone finds.
CLASS(Frame, Frame, F(route), F(flow_label), F(dscp), F(ecn), F(hop_limit), F(outer), F(source_mac), F(destination_mac),
      F(identification), F(dont_fragment), F(udp_checksum), F(icrc))
const char* class_of(const wire::Srh&) { return "Srh"; }
template <typename Visit>
void each(wire::Srh& h, Visit&& f) {
  std::vector<wire::Ipv6> segments(h.segments.begin(), h.segments.begin() + h.count);
  F(next_header), F(segments_left), F(flags), F(tag), f("segments", segments);
  h.count = static_cast<std::uint8_t>(std::min(segments.size(), wire::max_segments));
  std::copy_n(segments.begin(), h.count, h.segments.begin());
}
#undef F
#undef CLASS

template <typename T>
nb::object made(const T& value, const nb::kwargs& fields) {
  return nb::module_::import_("softmrc.wire").attr(class_of(value))(**fields);
}

// Into a value, from what Python has in its place.
void read(nb::handle from, wire::Ipv6& into) { into = ipv6_from(nb::cast<nb::bytes>(from.attr("packed"))); }
void read(nb::handle from, wire::Address& into) { into = address_from(nb::cast<nb::bytes>(from.attr("packed"))); }
void read(nb::handle from, wire::Mac& into) {
  const auto text = nb::cast<std::string>(from);
  for (std::size_t i = 0; i < into.size(); ++i)
    into[i] = static_cast<std::uint8_t>(std::stoul(text.substr(3 * i, 2), nullptr, 16));
}
template <typename T>
void read(nb::handle from, std::optional<T>& into);
template <typename T>
void read(nb::handle from, std::vector<T>& into);
template <typename T>
void read(nb::handle from, T& into) {
  if constexpr (std::is_enum_v<T>) into = static_cast<T>(nb::cast<unsigned>(from));
  else if constexpr (std::is_integral_v<T>) into = nb::cast<T>(from);
  else each(into, [&](const char* name, auto& field) { read(nb::object(from.attr(name)), field); });
}
template <typename T>
void read(nb::handle from, std::optional<T>& into) {
  if (!from.is_none()) read(from, into.emplace());
}
template <typename T>
void read(nb::handle from, std::vector<T>& into) {
  for (const nb::handle one : from) read(one, into.emplace_back());
}
template <typename T>
T value_of(nb::handle from) {
  T value;
  read(from, value);
  return value;
}

nb::object written(const wire::Ipv6& address) { return to_bytes(address); }
nb::object written(const wire::Address& address) { return to_bytes({address.bytes.data(), address.size()}); }
nb::object written(const wire::Mac& mac) {
  char text[18];
  std::snprintf(text, sizeof text, "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]);
  return nb::str(text);
}
template <typename T>
nb::object written(const T& value);
template <typename T>
nb::object written(const std::vector<T>& values);
template <typename T>
nb::object written(const std::optional<T>& value) {
  return value ? written(*value) : nb::none();
}
template <typename T>
nb::object written(const std::vector<T>& values) {
  nb::list rows;
  for (const T& one : values) rows.append(written(one));
  return nb::tuple(rows);
}
template <typename T>
nb::kwargs fields_of(T value) {
  nb::dict fields;
  each(value, [&](const char* name, const auto& field) { fields[name] = written(field); });
  return nb::borrow<nb::kwargs>(fields);
}
template <typename T>
nb::object written(const T& value) {
  if constexpr (std::is_enum_v<T>) return nb::cast(static_cast<unsigned>(value));
  else if constexpr (std::is_integral_v<T>) return nb::cast(value);
  else return made(value, fields_of(value));
}

wire::Write write_from(nb::handle body) {
  auto w = value_of<wire::Write>(body);
  const nb::object imm = body.attr("imm"), timestamp = body.attr("timestamp"), payload = body.attr("payload");
  if (!imm.is_none()) w.imm = nb::cast<std::uint32_t>(imm);
  if (!timestamp.is_none()) read(timestamp, w.tseth);
  if (!payload.is_none() && w.payload_size) w.payload = view(nb::cast<nb::bytes>(payload)).data();
  return w;
}

nb::object written(const wire::Bth& bth, const wire::Write& w, bool trimmed) {
  nb::kwargs fields = fields_of(w);
  if (wire::has_imm(bth.opcode) && !trimmed) fields["imm"] = w.imm;
  if (bth.timestamped) fields["timestamp"] = written(w.tseth);
  if (w.payload) fields["payload"] = to_bytes({w.payload, w.payload_size});
  fields["trimmed"] = trimmed;
  return made(w, fields);
}
template <typename Body>
nb::object written(const wire::Bth&, const Body& body, bool) {
  return written(body);
}

}  // namespace

void raise_invalid(const wire::InvalidArgument& invalid) {
  raise_if(proto::refused(invalid.field.c_str(), invalid.value, invalid.expected));
  std::abort();  // unreached: it has thrown
}

wire::Ipv6 ipv6_from(const nb::bytes& b) {
  wire::Ipv6 address{};
  std::memcpy(address.data(), b.data(), std::min(b.size(), address.size()));
  return address;
}

wire::Address address_from(const nb::bytes& b) {
  if (b.size() != 4) return wire::Address(ipv6_from(b));
  wire::Ipv4 v4{};
  std::memcpy(v4.data(), b.data(), 4);
  return wire::Address(v4);
}

wire::Route route_from(nb::handle route) { return value_of<wire::Route>(route); }
wire::Path path_from(nb::handle path) { return value_of<wire::Path>(path); }
wire::Srh srh_from(nb::handle srh) { return value_of<wire::Srh>(srh); }
wire::DscpMap dscp_from(nb::handle map) { return value_of<wire::DscpMap>(map); }
nb::object to_object(const wire::Path& path) { return written(path); }
nb::object to_object(const wire::Srh& srh) { return written(srh); }

wire::EvBytes ev_bytes_from(const nb::bytes& b) {
  wire::EvBytes ev{};
  if (b.size() == 0 || b.size() > ev.size())
    raise_invalid({"ev", std::to_string(b.size()) + " bytes", "1 to 32 bytes"});
  std::copy_n(view(b).begin(), b.size(), ev.begin());
  return ev;
}

wire::EvLayout layout_from(const nb::tuple& t) {
  wire::EvLayout layout;
  read(t[0], layout.widths);
  read(t[1], layout.fields);
  return layout;
}

wire::Packet packet_from(nb::handle packet) {
  const nb::object body = packet.attr("body");
  wire::Packet found;
  read(nb::object(packet.attr("bth")), found.bth);
  switch (found.bth.opcode) {
    case Opcode::write_first:
    case Opcode::write_middle:
    case Opcode::write_last:
    case Opcode::write_last_imm:
    case Opcode::write_only:
    case Opcode::write_only_imm: found.body = write_from(body); break;
    case Opcode::acknowledge: found.body = value_of<wire::Aeth>(body); break;
    case Opcode::endpoint_request: found.body = value_of<wire::EndpointRequest>(body); break;
    case Opcode::endpoint_response: found.body = value_of<wire::EndpointResponse>(body); break;
    case Opcode::sack: found.body = value_of<wire::Sack>(body); break;
    case Opcode::nack: found.body = value_of<wire::Nack>(body); break;
    case Opcode::probe: found.body = value_of<wire::Probe>(body); break;
  }
  return found;
}

nb::object to_object(const wire::Packet& packet, bool trimmed) {
  const nb::object body = std::visit([&](const auto& b) { return written(packet.bth, b, trimmed); }, packet.body);
  return nb::module_::import_("softmrc.wire").attr("Packet").attr("_of")(written(packet.bth), body);
}

wire::Frame frame_from(nb::handle frame) {
  auto found = value_of<wire::Frame>(frame);
  found.packet = packet_from(nb::object(frame.attr("packet")));
  found.trimmed = nb::cast<bool>(frame.attr("trimmed"));
  return found;
}

nb::object to_object(const wire::Frame& frame) {
  nb::kwargs fields = fields_of(frame);
  fields["packet"] = to_object(frame.packet, frame.trimmed);
  if (frame.sealed) fields["sealed"] = nb::make_tuple(frame.sealed->qpn, frame.sealed->epoch, frame.sealed->number);
  return made(frame, fields);
}

}  // namespace softmrc::python
