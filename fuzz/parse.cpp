// Bytes from the network, and from files, through every reader of core/wire. The first byte of an input chooses the
// reader and its options. A reader may refuse; what it accepts it must be able to write again, and reading that must
// give the same once more. Everything else (a crash, an overrun, an endless loop) is the sanitizers' to find.
#include <cstdlib>
#include <vector>

#include "wire/describe.h"
#include "wire/frame.h"
#include "wire/icrc.h"
#include "wire/packet.h"
#include "wire/pcapng.h"

namespace {

using namespace softmrc::wire;

void expect(bool promise) {
  if (!promise) std::abort();
}

std::vector<std::uint8_t> written(const Packet& packet, bool trimmed) {
  std::vector<std::uint8_t> out(packet_size(packet) + max_header_size);
  out.resize(trimmed ? emit_trimmed(packet, out.data()) : emit(packet, out));
  return out;
}

void packet_round_trip(Bytes bytes, bool has_icrc, bool trimmed) {
  Packet first;
  if (parse(bytes, {has_icrc, trimmed, 0}, first) != ParseError::none) return;
  expect(!describe(first, trimmed).empty());
  const auto once = written(first, trimmed);
  Packet second;
  expect(parse(once, {false, trimmed, 0}, second) == ParseError::none);
  expect(first.bth == second.bth && first.body.index() == second.body.index());
  expect(written(second, trimmed) == once);
  if (!trimmed) expect(once.size() == bytes.size() - (has_icrc ? icrc_size : 0));
}

void elided_payload(Bytes bytes) {
  if (bytes.size() < 2) return;
  Packet packet;
  const std::uint32_t elided = load16(bytes.data());
  if (parse(bytes.subspan(2), {false, false, elided}, packet) == ParseError::none) expect(!describe(packet).empty());
}

bool same_headers(const Frame& a, const Frame& b) {
  return a.source_mac == b.source_mac && a.destination_mac == b.destination_mac && a.outer == b.outer &&
         a.route == b.route && a.flow_label == b.flow_label && a.identification == b.identification &&
         a.dont_fragment == b.dont_fragment && a.dscp == b.dscp && a.ecn == b.ecn && a.hop_limit == b.hop_limit &&
         a.trimmed == b.trimmed && a.packet.bth == b.packet.bth;
}

void frame_round_trip(Bytes bytes, const FrameOptions& options) {
  Frame first;
  const FrameResult verdict = parse_frame(bytes, options, first);
  if (!verdict.ok()) {
    expect(!reason_of(verdict).empty());
    return;
  }
  std::vector<std::uint8_t> out(frame_size(first));
  expect(emit_frame(first, out) == out.size());
  Frame second;
  const FrameOptions with_link{true, options.udp_port, options.dscp};
  expect(parse_frame(out, with_link, second).ok());
  expect(same_headers(first, second));
  expect(written(first.packet, first.trimmed) == written(second.packet, second.trimmed));
  expect(second.icrc == (first.trimmed ? Checksum::absent : Checksum::good) && second.udp_checksum != Checksum::bad);
}

void trim_once(Bytes bytes, const FrameOptions& options, bool last_hop) {
  std::vector<std::uint8_t> frame(bytes.begin(), bytes.end());
  const std::size_t size = trim(frame, last_hop, options);
  if (size == 0) {
    expect(std::equal(bytes.begin(), bytes.end(), frame.begin(), frame.end()));
    return;
  }
  expect(size <= frame.size());
  Frame left;
  expect(parse_frame({frame.data(), size}, options, left).ok() && left.trimmed);
}

void capture(Bytes bytes) {
  PcapngReader reader(bytes);
  std::size_t seen = 0;
  for (CaptureRecord record; reader.next(record); ++seen) {
    expect(record.interface < reader.interfaces().size());
    expect(record.frame.empty() || (record.frame.data() >= bytes.data() &&
                                    record.frame.data() + record.frame.size() <= bytes.data() + bytes.size()));
  }
  expect(seen <= bytes.size());  // every record costs bytes, so no file makes the reader go round for ever
  CaptureRecord more;
  expect(!reader.next(more));
}

void routing_header(Bytes bytes) {
  Srh first;
  std::size_t size = 0;
  if (parse_srh(bytes, first, size) != SrhError::none) return;
  expect(size <= bytes.size() && first.size() <= size);
  std::vector<std::uint8_t> out(first.size());
  emit_srh(first, out.data());
  Srh second;
  expect(parse_srh(out, second, size) == SrhError::none && first == second);
  Path path{first.segments[0], first};
  for (std::size_t steps = 0; advance_path(path); ++steps) expect(steps < max_usids * (max_segments + 2));
}

void icrc_pieces(Bytes bytes) {
  if (bytes.empty()) return;
  const std::size_t cut = bytes[0] % bytes.size();
  Route route;
  const std::uint32_t whole = icrc(route, {bytes});
  expect(icrc(route, {bytes.first(cut), bytes.subspan(cut)}) == whole);
  expect(Icrc(route, bytes.size() + icrc_size, CrcMethod::table).add(bytes).value() == whole);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const Bytes bytes{data + 1, size - 1};
  const bool option_a = data[0] & 0x10;
  const bool option_b = data[0] & 0x20;
  switch (data[0] & 0x0F) {
    case 0: packet_round_trip(bytes, option_a, option_b); break;
    case 1: frame_round_trip(bytes, {.has_link_header = !option_a}); break;
    case 2: trim_once(bytes, {.has_link_header = !option_a}, option_b); break;
    case 3: capture(bytes); break;
    case 4: routing_header(bytes); break;
    case 5: elided_payload(bytes); break;
    case 6: icrc_pieces(bytes); break;
    default: break;
  }
  return 0;
}
