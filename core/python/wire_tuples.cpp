#include "python/wire_tuples.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>

#include "python/bind.h"

namespace softmrc::python {
namespace {

using wire::Opcode;

template <typename Enum>
Enum enum_item(const nb::tuple& t, std::size_t i) {
  return static_cast<Enum>(item<unsigned>(t, i));
}

template <typename Enum>
unsigned number(Enum value) {
  return static_cast<unsigned>(value);
}

wire::Bth bth_from(const nb::tuple& t) {
  wire::Bth h;
  h.opcode = enum_item<Opcode>(t, 0);
  h.solicited = item<bool>(t, 1);
  h.migration = item<bool>(t, 2);
  h.pad = item<std::uint8_t>(t, 3);
  h.version = item<std::uint8_t>(t, 4);
  h.p_key = item<std::uint16_t>(t, 5);
  h.dqp = item<std::uint32_t>(t, 6);
  h.ack_request = item<bool>(t, 7);
  h.retransmission = item<bool>(t, 8);
  h.timestamped = item<bool>(t, 9);
  h.psn = item<std::uint32_t>(t, 10);
  return h;
}

nb::tuple to_tuple(const wire::Bth& h) {
  return nb::make_tuple(number(h.opcode), h.solicited, h.migration, h.pad, h.version, h.p_key, h.dqp, h.ack_request,
                        h.retransmission, h.timestamped, h.psn);
}

wire::Timestamp timestamp_from(const nb::tuple& t) {
  return {item<std::uint16_t>(t, 0), item<bool>(t, 1), item<std::uint8_t>(t, 2)};
}

nb::tuple to_tuple(const wire::Timestamp& t) { return nb::make_tuple(t.ticks, t.resolution, t.ftype); }

wire::Write write_from(const nb::tuple& t) {
  wire::Write w;
  w.meth = {item<std::uint16_t>(t, 0), item<std::uint16_t>(t, 1)};
  w.reth = {item<std::uint64_t>(t, 2), item<std::uint32_t>(t, 3), item<std::uint32_t>(t, 4)};
  if (!t[5].is_none()) w.imm = item<std::uint32_t>(t, 5);
  if (!t[6].is_none()) w.tseth = timestamp_from(item<nb::tuple>(t, 6));
  w.payload_size = item<std::uint32_t>(t, 8);
  if (!t[7].is_none() && w.payload_size) w.payload = view(item<nb::bytes>(t, 7)).data();
  return w;
}

nb::tuple to_tuple(const wire::Bth& bth, const wire::Write& w) {
  nb::object imm = wire::has_imm(bth.opcode) ? nb::cast(w.imm) : nb::none();
  nb::object timestamp = bth.timestamped ? nb::object(to_tuple(w.tseth)) : nb::none();
  nb::object payload = w.payload ? nb::object(to_bytes({w.payload, w.payload_size})) : nb::none();
  return nb::make_tuple(w.meth.rqmsn, w.meth.msn, w.reth.va, w.reth.rkey, w.reth.dmalen, imm, timestamp, payload,
                        w.payload_size);
}

wire::Sack sack_from(const nb::tuple& t) {
  wire::Sack s;
  s.mark = enum_item<wire::Mark>(t, 0);
  s.answers_probe = item<bool>(t, 1);
  s.ack_psn_offset = item<std::int16_t>(t, 2);
  s.entropy = item<std::uint32_t>(t, 3);
  s.spdcid = item<std::uint16_t>(t, 4);
  s.dpdcid = item<std::uint16_t>(t, 5);
  s.cack_psn = item<std::uint32_t>(t, 6);
  s.cc_flags = item<std::uint8_t>(t, 7);
  s.mpr = item<std::uint8_t>(t, 8);
  s.sack_offset = item<std::int16_t>(t, 9);
  s.bitmap = item<std::uint64_t>(t, 10);
  const nb::tuple cc = item<nb::tuple>(t, 11);
  s.cc = {item<std::uint16_t>(cc, 0), item<std::uint16_t>(cc, 1), item<bool>(cc, 2), item<std::uint8_t>(cc, 3),
          item<std::uint32_t>(cc, 4)};
  return s;
}

nb::tuple to_tuple(const wire::Bth&, const wire::Sack& s) {
  const nb::tuple cc = nb::make_tuple(s.cc.tx_timestamp, s.cc.ooo_count, s.cc.restore_cwnd, s.cc.rcv_cwnd_pen,
                                      s.cc.rcvd_bytes);
  return nb::make_tuple(number(s.mark), s.answers_probe, s.ack_psn_offset, s.entropy, s.spdcid, s.dpdcid, s.cack_psn,
                        s.cc_flags, s.mpr, s.sack_offset, s.bitmap, cc);
}

wire::Nack nack_from(const nb::tuple& t) {
  return {enum_item<wire::NackReason>(t, 0), item<std::uint8_t>(t, 1),  item<std::uint32_t>(t, 2),
          item<std::uint16_t>(t, 3),         item<std::uint16_t>(t, 4), item<std::uint32_t>(t, 5),
          item<std::uint8_t>(t, 6),          item<std::uint16_t>(t, 7)};
}

nb::tuple to_tuple(const wire::Bth&, const wire::Nack& n) {
  return nb::make_tuple(number(n.reason), n.vendor, n.entropy, n.spdcid, n.dpdcid, n.nack_psn, n.cc_flags,
                        n.tx_timestamp);
}

wire::Probe probe_from(const nb::tuple& t) {
  return {item<std::uint8_t>(t, 0), item<std::uint16_t>(t, 1), item<std::uint16_t>(t, 2), item<std::uint16_t>(t, 3),
          timestamp_from(item<nb::tuple>(t, 4))};
}

nb::tuple to_tuple(const wire::Bth&, const wire::Probe& p) {
  return nb::make_tuple(p.vendor, p.probe_id, p.spdcid, p.dpdcid, to_tuple(p.timestamp));
}

nb::tuple to_tuple(const wire::Bth&, const wire::EndpointRequest& r) {
  return nb::make_tuple(number(r.op), r.vendor, r.port_status_mask, r.key, to_tuple(r.timestamp));
}

nb::tuple to_tuple(const wire::Bth&, const wire::EndpointResponse& r) {
  return nb::make_tuple(number(r.op), r.key, to_tuple(r.timestamp), r.service_ns);
}

nb::tuple to_tuple(const wire::Bth&, const wire::Aeth& a) { return nb::make_tuple(number(a.syndrome), a.msn); }

wire::Mac mac_from(const nb::bytes& b) {
  wire::Mac mac{};
  std::memcpy(mac.data(), b.data(), std::min(b.size(), mac.size()));
  return mac;
}

wire::Outer outer_from(const nb::tuple& t) {
  wire::Outer o;
  o.source = ipv6_from(item<nb::bytes>(t, 0));
  o.path = path_from(item<nb::tuple>(t, 1));
  o.flow_label = item<std::uint32_t>(t, 2);
  o.dscp = item<std::uint8_t>(t, 3);
  o.ecn = enum_item<wire::Ecn>(t, 4);
  o.hop_limit = item<std::uint8_t>(t, 5);
  return o;
}

nb::tuple to_tuple(const wire::Outer& o) {
  return nb::make_tuple(to_bytes(o.source), python::to_tuple(o.path), o.flow_label, o.dscp, number(o.ecn), o.hop_limit);
}

}  // namespace

void raise_invalid(const wire::InvalidArgument& invalid) {
  const std::string& text = invalid.value;
  const bool is_number = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  nb::object value = is_number ? nb::int_(nb::str(text.c_str())) : nb::object(nb::str(text.c_str()));
  nb::object type = nb::module_::import_("softmrc.errors").attr("ConfigError");
  nb::object error = hang_if_finalizing([&] { return type(invalid.field, value, invalid.allowed); });
  PyErr_SetObject(type.ptr(), error.ptr());
  throw nb::python_error();
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

wire::Route route_from(const nb::tuple& t) {
  return {address_from(item<nb::bytes>(t, 0)), address_from(item<nb::bytes>(t, 1)), item<std::uint16_t>(t, 2),
          item<std::uint16_t>(t, 3)};
}

nb::tuple to_tuple(const wire::Route& r) {
  const std::size_t n = r.destination.size();
  return nb::make_tuple(to_bytes({r.source.bytes.data(), n}), to_bytes({r.destination.bytes.data(), n}), r.source_port,
                        r.destination_port);
}

wire::Srh srh_from(const nb::tuple& t) {
  wire::Srh srh;
  srh.next_header = item<std::uint8_t>(t, 0);
  srh.segments_left = item<std::uint8_t>(t, 1);
  srh.flags = item<std::uint8_t>(t, 2);
  srh.tag = item<std::uint16_t>(t, 3);
  const nb::tuple segments = item<nb::tuple>(t, 4);
  srh.count = static_cast<std::uint8_t>(std::min(segments.size(), wire::max_segments));
  for (std::size_t i = 0; i < srh.count; ++i) srh.segments[i] = ipv6_from(item<nb::bytes>(segments, i));
  return srh;
}

nb::tuple to_tuple(const wire::Srh& srh) {
  nb::list segments;
  for (std::size_t i = 0; i < srh.count; ++i) segments.append(to_bytes(srh.segments[i]));
  return nb::make_tuple(srh.next_header, srh.segments_left, srh.flags, srh.tag, nb::tuple(segments));
}

wire::Path path_from(const nb::tuple& t) {
  wire::Path path;
  path.destination = ipv6_from(item<nb::bytes>(t, 0));
  if (!t[1].is_none()) path.srh = srh_from(item<nb::tuple>(t, 1));
  return path;
}

nb::tuple to_tuple(const wire::Path& path) {
  nb::object srh = path.srh ? nb::object(to_tuple(*path.srh)) : nb::none();
  return nb::make_tuple(to_bytes(path.destination), srh);
}

wire::EvBytes ev_bytes_from(const nb::bytes& b) {
  wire::EvBytes ev{};
  if (b.size() == 0 || b.size() > ev.size())
    raise_invalid({"ev", std::to_string(b.size()) + " bytes", "1 to 32 bytes"});
  std::copy_n(view(b).begin(), b.size(), ev.begin());
  return ev;
}

wire::EvLayout layout_from(const nb::tuple& t) {
  wire::EvLayout layout;
  for (const nb::handle width : nb::cast<nb::tuple>(t[0])) layout.widths.push_back(nb::cast<std::uint16_t>(width));
  for (const nb::handle h : nb::cast<nb::tuple>(t[1])) {
    const auto f = nb::cast<nb::tuple>(h);
    layout.fields.push_back({item<std::uint8_t>(f, 0), item<std::uint32_t>(f, 1), item<std::uint32_t>(f, 2),
                             item<std::uint32_t>(f, 3), item<std::uint32_t>(f, 4)});
  }
  return layout;
}

wire::Packet packet_from(const nb::tuple& t) {
  wire::Packet packet;
  packet.bth = bth_from(item<nb::tuple>(t, 0));
  const nb::tuple body = item<nb::tuple>(t, 1);
  switch (packet.bth.opcode) {
    case Opcode::write_first:
    case Opcode::write_middle:
    case Opcode::write_last:
    case Opcode::write_last_imm:
    case Opcode::write_only:
    case Opcode::write_only_imm: packet.body = write_from(body); break;
    case Opcode::acknowledge:
      packet.body = wire::Aeth{enum_item<wire::Syndrome>(body, 0), item<std::uint32_t>(body, 1)};
      break;
    case Opcode::endpoint_request:
      packet.body = wire::EndpointRequest{enum_item<wire::EndpointOp>(body, 0), item<std::uint8_t>(body, 1),
                                          item<std::uint32_t>(body, 2), timestamp_from(item<nb::tuple>(body, 4)),
                                          item<std::uint64_t>(body, 3)};
      break;
    case Opcode::endpoint_response:
      packet.body = wire::EndpointResponse{enum_item<wire::EndpointOp>(body, 0),
                                           timestamp_from(item<nb::tuple>(body, 2)), item<std::uint64_t>(body, 1),
                                           item<std::uint32_t>(body, 3)};
      break;
    case Opcode::sack: packet.body = sack_from(body); break;
    case Opcode::nack: packet.body = nack_from(body); break;
    case Opcode::probe: packet.body = probe_from(body); break;
  }
  return packet;
}

nb::tuple to_tuple(const wire::Packet& packet) {
  nb::tuple body = std::visit([&](const auto& b) { return to_tuple(packet.bth, b); }, packet.body);
  return nb::make_tuple(to_tuple(packet.bth), body);
}

wire::DscpMap dscp_from(const nb::tuple& t) {
  return {item<std::uint8_t>(t, 0), item<std::uint8_t>(t, 1), item<std::uint8_t>(t, 2),
          item<std::uint8_t>(t, 3), item<std::uint8_t>(t, 4), item<std::uint8_t>(t, 5)};
}

wire::Frame frame_from(const nb::tuple& t) {
  wire::Frame f;
  f.packet = packet_from(item<nb::tuple>(t, 0));
  f.route = route_from(item<nb::tuple>(t, 1));
  f.flow_label = item<std::uint32_t>(t, 2);
  f.dscp = item<std::uint8_t>(t, 3);
  f.ecn = enum_item<wire::Ecn>(t, 4);
  f.hop_limit = item<std::uint8_t>(t, 5);
  f.trimmed = item<bool>(t, 6);
  if (!t[7].is_none()) f.outer = outer_from(item<nb::tuple>(t, 7));
  f.source_mac = mac_from(item<nb::bytes>(t, 8));
  f.destination_mac = mac_from(item<nb::bytes>(t, 9));
  f.identification = item<std::uint16_t>(t, 10);
  f.dont_fragment = item<bool>(t, 11);
  f.udp_checksum = enum_item<wire::Sum>(t, 12);
  f.icrc = enum_item<wire::Sum>(t, 13);
  return f;
}

nb::tuple to_tuple(const wire::Frame& f) {
  nb::object outer = f.outer ? nb::object(to_tuple(*f.outer)) : nb::none();
  nb::object sealed = f.sealed ? nb::object(nb::make_tuple(f.sealed->qpn, f.sealed->epoch, f.sealed->number))
                               : nb::none();
  return nb::make_tuple(to_tuple(f.packet), to_tuple(f.route), f.flow_label, f.dscp, number(f.ecn), f.hop_limit,
                        f.trimmed, outer, to_bytes(f.source_mac), to_bytes(f.destination_mac), f.identification,
                        f.dont_fragment, number(f.udp_checksum), number(f.icrc), sealed);
}

}  // namespace softmrc::python
