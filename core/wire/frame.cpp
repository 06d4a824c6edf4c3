#include "wire/frame.h"

#include "wire/icrc.h"

namespace softmrc::wire {
namespace {

constexpr std::size_t ethernet_size = 14;
constexpr std::size_t ipv4_size = 20;
constexpr std::size_t ipv6_size = 40;
constexpr std::size_t udp_size = 8;
constexpr std::uint16_t ethertype_ipv4 = 0x0800;
constexpr std::uint16_t ethertype_ipv6 = 0x86DD;
constexpr std::uint8_t protocol_ipv4 = 4;
constexpr std::uint8_t protocol_udp = 17;
constexpr std::uint8_t protocol_ipv6 = 41;
constexpr std::size_t max_length = 0xFFFF;

// The ones' complement sum of RFC 1071, not yet folded.
std::uint64_t sum16(Bytes bytes, std::uint64_t sum = 0) {
  std::size_t i = 0;
  for (; i + 1 < bytes.size(); i += 2) sum += load16(bytes.data() + i);
  if (i < bytes.size()) sum += static_cast<std::uint32_t>(bytes[i]) << 8;
  return sum;
}

std::uint16_t folded(std::uint64_t sum) {
  while (sum >> 16) sum = (sum & 0xFFFF) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}

// Over the pseudo header and the whole datagram, its checksum field included: 0 when that field is right.
std::uint16_t udp_sum(const Route& route, Bytes datagram) {
  const std::size_t n = route.destination.size();
  std::uint64_t sum = protocol_udp + datagram.size();
  sum = sum16({route.source.bytes.data(), n}, sum);
  sum = sum16({route.destination.bytes.data(), n}, sum);
  return folded(sum16(datagram, sum));
}

std::uint8_t traffic_class(std::uint8_t dscp, Ecn ecn) {
  return static_cast<std::uint8_t>((dscp & 0x3F) << 2 | (static_cast<unsigned>(ecn) & 3));
}

void emit_ipv6(std::uint8_t* p, std::uint8_t tclass, std::uint32_t label, std::size_t payload, std::uint8_t next,
               std::uint8_t hops, const Ipv6& source, const Ipv6& destination) {
  store32(p, 0x60000000u | static_cast<std::uint32_t>(tclass) << 20 | (label & 0xFFFFF));
  store16(p + 4, static_cast<std::uint32_t>(payload));
  p[6] = next;
  p[7] = hops;
  std::memcpy(p + 8, source.data(), 16);
  std::memcpy(p + 24, destination.data(), 16);
}

void emit_ipv4_checksum(std::uint8_t* p) {
  store16(p + 10, 0);
  store16(p + 10, folded(sum16({p, ipv4_size})));
}

void emit_ipv4(std::uint8_t* p, const Frame& f, std::size_t payload) {
  p[0] = 0x45;
  p[1] = traffic_class(f.dscp, f.ecn);
  store16(p + 2, static_cast<std::uint32_t>(payload + ipv4_size));
  store32(p + 4, f.ipv4_identity());
  p[8] = f.hop_limit;
  p[9] = protocol_udp;
  std::memcpy(p + 12, f.route.source.bytes.data(), 4);
  std::memcpy(p + 16, f.route.destination.bytes.data(), 4);
  emit_ipv4_checksum(p);
}

std::size_t udp_payload_size(const Frame& f) {
  return f.trimmed ? through_reth(f.packet.bth.timestamped) : packet_size(f.packet) + icrc_size;
}

std::size_t outer_size(const Frame& f) {
  if (!f.outer) return 0;
  return ipv6_size + (f.outer->path.srh ? f.outer->path.srh->size() : 0);
}

std::size_t inner_ip_size(const Frame& f) { return f.route.is_v4() ? ipv4_size : ipv6_size; }

// Where the layers of a frame lie, found while reading it and used again by trim.
struct Layout {
  std::size_t outer = 0;  // meaningful when has_outer
  bool has_outer = false;
  std::size_t inner = 0;
  std::size_t udp = 0;
  std::size_t end = 0;  // of the inner IP packet
};

struct FrameParser {
  Bytes bytes;
  const FrameOptions& options;
  Frame& out;
  Layout at{};

  FrameResult read();
  FrameError read_layers();
  Bytes payload() const { return bytes.subspan(at.udp + udp_size, at.end - at.udp - udp_size); }
  FrameError read_link(std::uint16_t& ethertype, std::size_t& next);
  FrameError read_ipv6(std::size_t start, std::size_t end);
  FrameError read_outer(std::size_t start, std::size_t end);
  FrameError read_ipv4(std::size_t start, std::size_t end);
  FrameError read_udp();
};

FrameError FrameParser::read_link(std::uint16_t& ethertype, std::size_t& next) {
  next = 0;
  if (!options.has_link_header) {
    if (bytes.empty()) return FrameError::truncated_ip;
    ethertype = (bytes[0] >> 4) == 4 ? ethertype_ipv4 : ethertype_ipv6;
    return FrameError::none;
  }
  if (bytes.size() < ethernet_size) return FrameError::truncated_link;
  std::memcpy(out.destination_mac.data(), bytes.data(), 6);
  std::memcpy(out.source_mac.data(), bytes.data() + 6, 6);
  ethertype = load16(bytes.data() + 12);
  next = ethernet_size;
  return FrameError::none;
}

FrameError FrameParser::read_ipv4(std::size_t start, std::size_t end) {
  const std::uint8_t* p = bytes.data() + start;
  if (end - start < ipv4_size) return FrameError::truncated_ip;
  if (p[0] >> 4 != 4) return FrameError::not_ip;
  if (p[0] != 0x45) return FrameError::bad_ip_header;
  const std::size_t total = load16(p + 2);
  if (total < ipv4_size) return FrameError::bad_ip_length;
  if (total > end - start) return FrameError::truncated_ip;
  if (folded(sum16({p, ipv4_size})) != 0) return FrameError::bad_ip_checksum;
  if (load16(p + 6) & 0x3FFF) return FrameError::fragment;
  if (p[6] & 0x80) return FrameError::bad_ip_header;
  if (p[9] != protocol_udp) return FrameError::not_udp;
  out.dscp = p[1] >> 2;
  out.ecn = static_cast<Ecn>(p[1] & 3);
  out.hop_limit = p[8];
  out.identification = load16(p + 4);
  out.dont_fragment = p[6] & 0x40;
  Ipv4 address;
  std::memcpy(address.data(), p + 12, 4);
  out.route.source = Address(address);
  std::memcpy(address.data(), p + 16, 4);
  out.route.destination = Address(address);
  at.inner = start;
  at.udp = start + ipv4_size;
  at.end = start + total;
  return FrameError::none;
}

// The first IPv6 header is the outer one when another IP header follows it, with or without an SRH between them.
FrameError FrameParser::read_ipv6(std::size_t start, std::size_t end) {
  const std::uint8_t* p = bytes.data() + start;
  if (end - start < ipv6_size) return FrameError::truncated_ip;
  if (p[0] >> 4 != 6) return FrameError::not_ip;
  const std::size_t payload = load16(p + 4);
  if (payload > end - start - ipv6_size) return FrameError::truncated_ip;
  end = start + ipv6_size + payload;
  const std::uint8_t next = p[6];
  if (next != protocol_udp) {
    const bool may_be_outer = !at.has_outer && (next == srh_protocol || next == protocol_ipv6 || next == protocol_ipv4);
    return may_be_outer ? read_outer(start, end) : FrameError::not_udp;
  }
  const std::uint32_t word = load32(p);
  out.dscp = static_cast<std::uint8_t>((word >> 22) & 0x3F);
  out.ecn = static_cast<Ecn>((word >> 20) & 3);
  out.flow_label = word & 0xFFFFF;
  out.hop_limit = p[7];
  Ipv6 address;
  std::memcpy(address.data(), p + 8, 16);
  out.route.source = Address(address);
  std::memcpy(address.data(), p + 24, 16);
  out.route.destination = Address(address);
  at.inner = start;
  at.udp = start + ipv6_size;
  at.end = end;
  return FrameError::none;
}

FrameError FrameParser::read_outer(std::size_t start, std::size_t end) {
  const std::uint8_t* p = bytes.data() + start;
  Outer& outer = out.outer.emplace();
  const std::uint32_t word = load32(p);
  outer.dscp = static_cast<std::uint8_t>((word >> 22) & 0x3F);
  outer.ecn = static_cast<Ecn>((word >> 20) & 3);
  outer.flow_label = word & 0xFFFFF;
  outer.hop_limit = p[7];
  std::memcpy(outer.source.data(), p + 8, 16);
  std::memcpy(outer.path.destination.data(), p + 24, 16);
  at.outer = start;
  at.has_outer = true;
  std::uint8_t next = p[6];
  std::size_t inner = start + ipv6_size;
  if (next == srh_protocol) {
    std::size_t size = 0;
    Srh& srh = outer.path.srh.emplace();
    if (parse_srh(bytes.subspan(inner, end - inner), srh, size) != SrhError::none) return FrameError::bad_srh;
    next = srh.next_header;
    inner += size;
  }
  if (next == protocol_ipv6) return read_ipv6(inner, end);
  if (next == protocol_ipv4) return read_ipv4(inner, end);
  return FrameError::srh_without_inner;
}

FrameError FrameParser::read_udp() {
  if (at.end - at.udp < udp_size) return FrameError::bad_ip_length;
  const std::uint8_t* p = bytes.data() + at.udp;
  out.route.source_port = load16(p);
  out.route.destination_port = load16(p + 2);
  if (options.udp_port && out.route.destination_port != options.udp_port) return FrameError::wrong_port;
  if (load16(p + 4) != at.end - at.udp) return FrameError::bad_udp_length;
  const Bytes datagram = bytes.subspan(at.udp, at.end - at.udp);
  out.udp_checksum = load16(p + 6) == 0                  ? Checksum::absent
                     : udp_sum(out.route, datagram) == 0 ? Checksum::good
                                                         : Checksum::bad;
  return FrameError::none;
}

// A sender on an IPv4 socket did not know its identification, see icrc.h.
bool has_good_icrc(const Frame& f, Bytes udp_payload) {
  if (verify(f.route, udp_payload, f.ipv4_identity())) return true;
  return f.route.is_v4() && f.ipv4_identity() != default_ipv4_identity && verify(f.route, udp_payload);
}

// As much as is in the clear.
ParseError read_sealed(Bytes bytes, Frame& out) {
  const std::size_t clear = clear_size(bytes, out.trimmed);
  std::array<std::uint8_t, max_header_size + 4> headers{};  // and an immediate, which is hidden
  if (clear == 0 || clear > max_header_size) return ParseError::truncated;
  std::memcpy(headers.data(), bytes.data(), clear);
  headers[1] &= 0xF0;
  out.sealed = SealHeader::parse(bytes.data() + clear);
  const bool is_data = is_write(static_cast<Opcode>(bytes[0]));
  if (out.trimmed || !is_data)
    return parse({headers.data(), clear}, {.has_icrc = false, .trimmed = out.trimmed}, out.packet);
  const std::size_t imm = has_imm(static_cast<Opcode>(bytes[0])) ? 4 : 0;
  const std::size_t hidden = bytes.size() - clear - seal_front - seal_tag_size;
  if (hidden < imm) return ParseError::truncated;
  const ParseOptions options{.has_icrc = false, .elided_payload = static_cast<std::uint32_t>(hidden - imm)};
  const ParseError refusal = parse({headers.data(), clear + imm}, options, out.packet);
  if (refusal == ParseError::none && hidden > imm)
    std::get<Write>(out.packet.body).payload = bytes.data() + clear + seal_front + imm;
  return refusal;
}

FrameError FrameParser::read_layers() {
  out = {};
  std::uint16_t ethertype = 0;
  std::size_t start = 0;
  FrameError refusal = read_link(ethertype, start);
  if (refusal != FrameError::none) return refusal;
  if (ethertype == ethertype_ipv4) refusal = read_ipv4(start, bytes.size());
  else if (ethertype == ethertype_ipv6) refusal = read_ipv6(start, bytes.size());
  else refusal = FrameError::not_ip;
  return refusal == FrameError::none ? read_udp() : refusal;
}

FrameResult FrameParser::read() {
  if (const FrameError refusal = read_layers(); refusal != FrameError::none) return {refusal};
  out.trimmed = options.dscp.was_trimmed(out.dscp) || (out.outer && options.dscp.was_trimmed(out.outer->dscp));
  const bool is_closed_by_key = is_sealed(payload());
  const ParseError packet = is_closed_by_key
                                ? read_sealed(payload(), out)
                                : parse(payload(), {.has_icrc = !out.trimmed, .trimmed = out.trimmed}, out.packet);
  if (packet != ParseError::none) return {FrameError::bad_packet, packet};
  if (!out.trimmed && !is_closed_by_key) out.icrc = has_good_icrc(out, payload()) ? Checksum::good : Checksum::bad;
  return {};
}

void emit_outer(const Frame& f, std::size_t inner_total, std::uint8_t* p) {
  const Outer& outer = *f.outer;
  const std::uint8_t inner_protocol = f.route.is_v4() ? protocol_ipv4 : protocol_ipv6;
  const std::size_t srh_size = outer.path.srh ? outer.path.srh->size() : 0;
  emit_ipv6(p, traffic_class(outer.dscp, outer.ecn), outer.flow_label, srh_size + inner_total,
            srh_size ? srh_protocol : inner_protocol, outer.hop_limit, outer.source, outer.path.destination);
  if (!srh_size) return;
  Srh srh = *outer.path.srh;
  srh.next_header = inner_protocol;
  emit_srh(srh, p + ipv6_size);
}

// The packet and its ICRC, or what a switch would have left of it.
void emit_udp_payload(const Frame& f, MutableBytes out) {
  if (f.trimmed) {
    std::uint8_t headers[max_header_size];
    const std::size_t size = emit_trimmed(f.packet, headers);
    std::memcpy(out.data(), headers, size);
    return;
  }
  emit(f.packet, out);
  append_icrc(f.route, out, f.ipv4_identity());
}

}  // namespace

std::uint8_t dscp_of(const Packet& packet, const DscpMap& map) {
  switch (packet.bth.opcode) {
    case Opcode::write_first:
    case Opcode::write_middle:
    case Opcode::write_last:
    case Opcode::write_last_imm:
    case Opcode::write_only:
    case Opcode::write_only_imm: return packet.bth.retransmission ? map.trimmable_retx : map.trimmable;
    case Opcode::probe:
    case Opcode::endpoint_request: return map.no_trim;
    case Opcode::acknowledge:
    case Opcode::endpoint_response:
    case Opcode::sack:
    case Opcode::nack: return map.control;
  }
  return map.no_trim;
}

std::size_t emit_trimmed(const Packet& packet, std::uint8_t* out) {
  const auto* write = std::get_if<Write>(&packet.body);
  emit_headers(packet, out);
  if (!write) return header_size(packet);
  if (write->payload_size == 0) out[1] = static_cast<std::uint8_t>((out[1] & 0xCF) | (packet.bth.pad & 3) << 4);
  return through_reth(packet.bth.timestamped);
}

FrameResult parse_frame(Bytes bytes, const FrameOptions& options, Frame& out) {
  return FrameParser{bytes, options, out}.read();
}

Bytes udp_payload(Bytes frame, const FrameOptions& options) {
  Frame found;
  FrameParser reader{frame, options, found};
  return reader.read_layers() == FrameError::none ? reader.payload() : Bytes{};
}

std::size_t frame_size(const Frame& frame) {
  return ethernet_size + outer_size(frame) + inner_ip_size(frame) + udp_size + udp_payload_size(frame);
}

std::size_t emit_frame(const Frame& frame, MutableBytes out) {
  const std::size_t size = frame_size(frame);
  const bool v4_first = frame.route.is_v4() && !frame.outer;  // IPv4 counts its own header, IPv6 does not
  if (out.size() < size || size - ethernet_size - (v4_first ? 0 : ipv6_size) > max_length) return 0;
  if (frame.outer && frame.outer->path.srh && frame.outer->path.srh->count == 0) return 0;
  const std::size_t udp_total = udp_size + udp_payload_size(frame);
  std::uint8_t* p = out.data();
  std::memcpy(p, frame.destination_mac.data(), 6);
  std::memcpy(p + 6, frame.source_mac.data(), 6);
  store16(p + 12, v4_first ? ethertype_ipv4 : ethertype_ipv6);
  p += ethernet_size;
  if (frame.outer) {
    emit_outer(frame, inner_ip_size(frame) + udp_total, p);
    p += outer_size(frame);
  }
  if (frame.route.is_v4()) {
    emit_ipv4(p, frame, udp_total);
  } else {
    emit_ipv6(p, traffic_class(frame.dscp, frame.ecn), frame.flow_label, udp_total, protocol_udp, frame.hop_limit,
              frame.route.source.bytes, frame.route.destination.bytes);
  }
  p += inner_ip_size(frame);
  store16(p, frame.route.source_port);
  store16(p + 2, frame.route.destination_port);
  store16(p + 4, static_cast<std::uint32_t>(udp_total));
  store16(p + 6, 0);
  emit_udp_payload(frame, {p + udp_size, udp_total - udp_size});
  if (!frame.trimmed && frame.udp_checksum != Checksum::absent) {
    const std::uint16_t sum = udp_sum(frame.route, {p, udp_total});
    store16(p + 6, sum ? sum : 0xFFFF);
  }
  return size;
}

std::size_t trim(MutableBytes frame, bool last_hop, const FrameOptions& options) {
  Frame found;
  FrameParser reader{frame, options, found};
  if (!reader.read().ok()) return 0;
  const auto* write = std::get_if<Write>(&found.packet.body);
  const std::uint8_t seen = found.outer ? found.outer->dscp : found.dscp;  // a switch reads the first header it meets
  if (!write || found.trimmed || !options.dscp.may_trim(seen)) return 0;

  const std::uint8_t dscp = last_hop ? options.dscp.trimmed_last_hop : options.dscp.trimmed;
  const Layout& at = reader.at;
  const std::size_t end = at.udp + udp_size + through_reth(found.packet.bth.timestamped) +
                          (found.sealed ? seal_front : 0);
  std::uint8_t* p = frame.data();
  store16(p + at.udp + 4, static_cast<std::uint32_t>(end - at.udp));
  store16(p + at.udp + 6, 0);
  if (found.route.is_v4()) {
    p[at.inner + 1] = traffic_class(dscp, found.ecn);
    store16(p + at.inner + 2, static_cast<std::uint32_t>(end - at.inner));
    emit_ipv4_checksum(p + at.inner);
  } else {
    store32(p + at.inner, 0x60000000u | std::uint32_t{traffic_class(dscp, found.ecn)} << 20 | found.flow_label);
    store16(p + at.inner + 4, static_cast<std::uint32_t>(end - at.udp));
  }
  if (at.has_outer) {
    const Outer& outer = *found.outer;
    store32(p + at.outer, 0x60000000u | std::uint32_t{traffic_class(dscp, outer.ecn)} << 20 | outer.flow_label);
    store16(p + at.outer + 4, static_cast<std::uint32_t>(end - at.outer - ipv6_size));
  }
  return end;
}

}  // namespace softmrc::wire
