#include "wire/describe.h"

#include <algorithm>
#include <cstdio>

namespace softmrc::wire {
namespace {

// A line that grows by printf; the longest piece is far below the buffer.
class Line {
 public:
  template <typename... Args>
  Line& add(const char* format, Args... args) {
    char piece[96];
    const int n = std::snprintf(piece, sizeof piece, format, args...);
    if (n > 0) text_.append(piece, std::min(static_cast<std::size_t>(n), sizeof piece - 1));
    return *this;
  }
  Line& add_plain(std::string_view text) {
    text_.append(text);
    return *this;
  }
  // The name of a value, or the value itself where it has none.
  Line& add_name(std::string_view name, unsigned value) {
    return name.empty() ? add("0x%02x", value) : add_plain(name);
  }
  std::string take() {
    while (!text_.empty() && text_.back() == ' ') text_.pop_back();
    return std::move(text_);
  }

 private:
  std::string text_;
};

using ull = unsigned long long;

void add_timestamp(Line& line, const Timestamp& t) {
  line.add(" ts %u", unsigned{t.ticks});
  if (t.resolution) line.add_plain("(fine)");
  if (t.ftype != 1) line.add(" ftype %u", unsigned{t.ftype});
}

void add_peers(Line& line, std::uint16_t spdcid, std::uint16_t dpdcid) {
  line.add(" pdc %04x>%04x", unsigned{spdcid}, unsigned{dpdcid});
}

// "+1..+5,+8": which offsets from the cumulative acknowledgement the bitmap reports.
void add_bitmap(Line& line, std::int32_t base, std::uint64_t bitmap) {
  if (bitmap == 0) {
    line.add_plain(" sack -");
    return;
  }
  line.add_plain(" sack");
  const char* before = " ";
  for (int i = 0; i < 64; ++i) {
    if (!((bitmap >> i) & 1)) continue;
    int last = i;
    while (last < 63 && ((bitmap >> (last + 1)) & 1)) ++last;
    line.add("%s%+d", before, base + i);
    if (last > i) line.add("..%+d", base + last);
    before = ",";
    i = last;
  }
}

void add_body(Line& line, const Packet& packet, const Write& w, bool trimmed) {
  line.add(" psn %8u msn %5u", packet.bth.psn, unsigned{w.meth.msn});
  if (w.meth.rqmsn) line.add(" rqmsn %u", unsigned{w.meth.rqmsn});
  line.add(" va %llx rkey %x", static_cast<ull>(w.reth.va), w.reth.rkey);
  if (trimmed) line.add(" len -/%u", w.reth.dmalen);
  else line.add(" len %u/%u", w.payload_size, w.reth.dmalen);
  if (has_imm(packet.bth.opcode) && !trimmed) line.add(" imm %x", w.imm);
  if (packet.bth.timestamped) add_timestamp(line, w.tseth);
}

void add_body(Line& line, const Packet& packet, const Aeth& a, bool) {
  line.add(" psn %8u msn %5u ", packet.bth.psn, a.msn);
  line.add_name(name_of(a.syndrome), static_cast<unsigned>(a.syndrome));
}

void add_body(Line& line, const Packet&, const Sack& s, bool) {
  line.add(" cack%8u", s.cack_psn);
  if (s.answers_probe) line.add(" answers probe %u", unsigned{s.probe_id()});
  else line.add(" ack %+d", int{s.ack_psn_offset});
  line.add(" ev %08x", s.entropy);
  if (s.mark != Mark::none) line.add_plain(" ").add_plain(name_of(s.mark));
  add_bitmap(line, s.sack_offset, s.bitmap);
  add_peers(line, s.spdcid, s.dpdcid);
  if (s.mpr) line.add(" mpr %u", s.mpr * 128u);
  line.add(" ts %u rcvd %llu", unsigned{s.cc.tx_timestamp}, static_cast<ull>(s.cc.rcvd_bytes) * 256);
  if (s.cc.ooo_count) line.add(" ooo %u", unsigned{s.cc.ooo_count});
  if (s.cc.rcv_cwnd_pen) line.add(" pen %u", unsigned{s.cc.rcv_cwnd_pen});
  if (s.cc.restore_cwnd) line.add_plain(" restore");
}

void add_body(Line& line, const Packet&, const Nack& n, bool) {
  line.add(" psn %8u ", n.nack_psn);
  line.add_name(name_of(n.reason), static_cast<unsigned>(n.reason));
  line.add(" ev %08x", n.entropy);
  add_peers(line, n.spdcid, n.dpdcid);
  line.add(" ts %u", unsigned{n.tx_timestamp});
  if (n.vendor) line.add(" vendor %02x", unsigned{n.vendor});
}

void add_body(Line& line, const Packet&, const Probe& p, bool) {
  line.add(" id  %8u", unsigned{p.probe_id});
  add_peers(line, p.spdcid, p.dpdcid);
  add_timestamp(line, p.timestamp);
}

void add_key(Line& line, EndpointOp op, std::uint64_t key) {
  if (!key) return;
  if (op == EndpointOp::ev_probe) line.add(" nonce %016llx", static_cast<ull>(key));
  else line.add(" keyed");  // the key itself stays out of logs
}

void add_body(Line& line, const Packet& packet, const EndpointRequest& r, bool) {
  line.add(" id  %8u ", packet.bth.psn & 0xFFFF);
  line.add_name(name_of(r.op), static_cast<unsigned>(r.op));
  if (r.op == EndpointOp::port_status_update) line.add(" ports %08x", r.port_status_mask);
  add_timestamp(line, r.timestamp);
  add_key(line, r.op, r.key);
}

void add_body(Line& line, const Packet& packet, const EndpointResponse& r, bool) {
  line.add(" id  %8u ", packet.bth.psn & 0xFFFF);
  line.add_name(name_of(r.op), static_cast<unsigned>(r.op));
  add_timestamp(line, r.timestamp);
  if (r.service_ns) line.add(" in %u ns", r.service_ns);
  add_key(line, r.op, r.key);
}

}  // namespace

std::string_view name_of(Opcode opcode) {
  switch (opcode) {
    case Opcode::write_first: return "WRITE_FIRST";
    case Opcode::write_middle: return "WRITE_MIDDLE";
    case Opcode::write_last: return "WRITE_LAST";
    case Opcode::write_last_imm: return "WRITE_LAST_IMM";
    case Opcode::write_only: return "WRITE_ONLY";
    case Opcode::write_only_imm: return "WRITE_ONLY_IMM";
    case Opcode::acknowledge: return "ACKNOWLEDGE";
    case Opcode::endpoint_request: return "ENDPOINT_REQUEST";
    case Opcode::endpoint_response: return "ENDPOINT_RESPONSE";
    case Opcode::sack: return "SACK";
    case Opcode::nack: return "NACK";
    case Opcode::probe: return "PROBE";
  }
  return "";
}

std::string_view name_of(NackReason reason) {
  switch (reason) {
    case NackReason::trimmed: return "TRIMMED";
    case NackReason::trimmed_last_hop: return "TRIMMED_LASTHOP";
    case NackReason::no_bitmap: return "NO_BITMAP";
    case NackReason::no_packet_buffer: return "NO_PKT_BUFFER";
    case NackReason::no_resource: return "NO_RESOURCE";
    case NackReason::psn_out_of_window: return "PSN_OOR_WINDOW";
    case NackReason::unexpected_event: return "UNEXP_EVENT";
  }
  return "";
}

std::string_view name_of(Mark mark) {
  switch (mark) {
    case Mark::none: return "NONE";
    case Mark::skip_once: return "SKIP_ONCE";
    case Mark::always_skip: return "ALWAYS_SKIP";
  }
  return "";
}

std::string_view name_of(Syndrome syndrome) {
  switch (syndrome) {
    case Syndrome::ack: return "ACK";
    case Syndrome::invalid_request: return "INVALID_REQUEST";
    case Syndrome::remote_access: return "REMOTE_ACCESS";
    case Syndrome::remote_operation: return "REMOTE_OPERATION";
  }
  return "";
}

std::string_view name_of(EndpointOp op) {
  switch (op) {
    case EndpointOp::port_status_update: return "PORT_STATUS_UPDATE";
    case EndpointOp::ev_probe: return "EV_PROBE";
  }
  return "";
}

std::string_view reason_of(ParseError refusal) {
  switch (refusal) {
    case ParseError::none: return "nothing";
    case ParseError::truncated: return "shorter than its headers";
    case ParseError::unknown_opcode: return "an opcode that MRC does not have";
    case ParseError::bad_version: return "a transport version other than 0";
    case ParseError::bad_padding: return "padding bits that disagree with the length";
    case ParseError::trailing_bytes: return "bytes after the end of a control packet";
    case ParseError::trimmed_control: return "a control packet marked as trimmed";
    case ParseError::bad_field: return "a field whose value has no meaning";
  }
  return "";
}

std::string reason_of(const FrameResult& verdict) {
  switch (verdict.frame) {
    case FrameError::none: return "nothing";
    case FrameError::truncated_link: return "shorter than an Ethernet header";
    case FrameError::not_ip: return "neither IPv4 nor IPv6";
    case FrameError::truncated_ip: return "fewer bytes than the IP header calls for";
    case FrameError::bad_ip_header: return "an IPv4 header with options or a reserved bit";
    case FrameError::bad_ip_checksum: return "an IPv4 header checksum that is wrong";
    case FrameError::bad_ip_length: return "an IP length without room for UDP";
    case FrameError::fragment: return "an IP fragment";
    case FrameError::bad_srh: return "a routing header that is not a well-formed SRH";
    case FrameError::srh_without_inner: return "an SRH without an IP header behind it";
    case FrameError::not_udp: return "not UDP";
    case FrameError::wrong_port: return "another UDP port";
    case FrameError::bad_udp_length: return "a UDP length that differs from what IP carries";
    case FrameError::bad_packet: return std::string(reason_of(verdict.packet));
  }
  return "";
}

std::string describe(const Packet& packet, bool trimmed) {
  Line line;
  line.add("%-17s qp %06x", std::string(name_of(packet.bth.opcode)).c_str(), packet.bth.dqp);
  std::visit([&](const auto& body) { add_body(line, packet, body, trimmed); }, packet.body);
  if (trimmed) line.add_plain(" trimmed");
  if (packet.bth.retransmission) line.add_plain(" rtx");
  if (packet.bth.ack_request) line.add_plain(" ackreq");
  if (packet.bth.solicited) line.add_plain(" se");
  return line.take();
}

}  // namespace softmrc::wire
