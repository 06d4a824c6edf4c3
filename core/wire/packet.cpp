#include "wire/packet.h"

#include <cstring>

#include "wire/sealed.h"

namespace softmrc::wire {
namespace {

ParseError parse_write(const std::uint8_t* p, std::size_t size, const ParseOptions& options, Packet& out) {
  const Bth& bth = out.bth;
  std::size_t at = through_reth(bth.timestamped);
  if (size < at) return ParseError::truncated;
  Write& w = out.body.emplace<Write>();
  const std::uint8_t* cursor = p + Bth::size;
  w.meth = Meth::parse(cursor);
  cursor += Meth::size;
  if (bth.timestamped) {
    w.tseth = Timestamp::parse(cursor);
    cursor += Timestamp::size;
  }
  w.reth = Reth::parse(cursor);
  if (options.trimmed) return ParseError::none;
  if (has_imm(bth.opcode)) {
    if (size < at + 4) return ParseError::truncated;
    w.imm = load32(p + at);
    at += 4;
  }
  const std::size_t padded = size - at + options.elided_payload;
  if (padded % 4 != 0) return ParseError::bad_padding;
  const bool has_bytes = w.reth.dmalen != 0;
  if (padded < bth.pad + (has_bytes ? 1u : 0u)) return padded == 0 ? ParseError::truncated : ParseError::bad_padding;
  w.payload_size = static_cast<std::uint32_t>(padded - bth.pad);
  w.payload = options.elided_payload ? nullptr : p + at;
  return ParseError::none;
}

template <typename Body>
ParseError parse_control(const std::uint8_t* p, std::size_t size, const ParseOptions& options, Packet& out) {
  if (size < Bth::size + Body::size) return ParseError::truncated;
  if (size > Bth::size + Body::size) return ParseError::trailing_bytes;
  if (out.bth.pad != 0) return ParseError::bad_padding;
  if (options.trimmed) return ParseError::trimmed_control;
  out.body.emplace<Body>(Body::parse(p + Bth::size));
  return ParseError::none;
}

// These alone may be followed by a key. One of zero would say that there is none.
// spec: port-keys
template <typename Body>
ParseError parse_endpoint_op(const std::uint8_t* p, std::size_t size, const ParseOptions& options, Packet& out) {
  const bool has_key = size == Bth::size + Body::size + key_size;
  if (has_key) size -= key_size;
  if (ParseError r = parse_control<Body>(p, size, options, out); r != ParseError::none) return r;
  Body& body = std::get<Body>(out.body);
  if (has_key) body.key = load64(p + size);
  return body.op > EndpointOp::ev_probe || (has_key && body.key == 0) ? ParseError::bad_field : ParseError::none;
}

// Of what is no write.
std::size_t body_size(const Packet& packet) {
  return std::visit([](const auto& body) -> std::size_t {
    if constexpr (requires { body.key; }) return body.size + (body.key ? key_size : 0);
    else if constexpr (requires { body.size; }) return body.size;
    else return 0;
  }, packet.body);
}

constexpr unsigned padding(std::uint32_t payload_size) { return (4 - payload_size % 4) % 4; }

}  // namespace

ParseError parse(Bytes bytes, const ParseOptions& options, Packet& out) {
  const std::uint8_t* p = bytes.data();
  std::size_t size = bytes.size();
  if (options.has_icrc) {
    if (size < icrc_size) return ParseError::truncated;
    size -= icrc_size;
  }
  if (size < Bth::size) return ParseError::truncated;
  out.bth = Bth::parse(p);
  if (out.bth.version != 0) return ParseError::bad_version;
  switch (out.bth.opcode) {
    case Opcode::write_first:
    case Opcode::write_middle:
    case Opcode::write_last:
    case Opcode::write_last_imm:
    case Opcode::write_only:
    case Opcode::write_only_imm: return parse_write(p, size, options, out);
    case Opcode::acknowledge: return parse_control<Aeth>(p, size, options, out);
    case Opcode::sack:
      if (ParseError r = parse_control<Sack>(p, size, options, out); r != ParseError::none) return r;
      return std::get<Sack>(out.body).mark > Mark::always_skip ? ParseError::bad_field : ParseError::none;
    case Opcode::nack: return parse_control<Nack>(p, size, options, out);
    case Opcode::probe: return parse_control<Probe>(p, size, options, out);
    case Opcode::endpoint_request: return parse_endpoint_op<EndpointRequest>(p, size, options, out);
    case Opcode::endpoint_response: return parse_endpoint_op<EndpointResponse>(p, size, options, out);
  }
  return ParseError::unknown_opcode;
}

std::size_t header_size(const Packet& packet) {
  if (std::holds_alternative<Write>(packet.body))
    return through_reth(packet.bth.timestamped) + (has_imm(packet.bth.opcode) ? 4 : 0);
  return Bth::size + body_size(packet);
}

std::size_t packet_size(const Packet& packet) {
  std::size_t size = header_size(packet);
  if (const auto* w = std::get_if<Write>(&packet.body)) size += w->payload_size + padding(w->payload_size);
  return size;
}

std::size_t emit_headers(const Packet& packet, std::uint8_t* out) {
  const auto* w = std::get_if<Write>(&packet.body);
  if (!w) {
    packet.bth.emit(out);
    std::visit([out](const auto& body) {
      if constexpr (requires { body.emit(out); }) body.emit(out + Bth::size);
      if constexpr (requires { body.key; })
        if (body.key) store64(out + Bth::size + body.size, body.key);
    }, packet.body);
    return header_size(packet);
  }
  Bth bth = packet.bth;
  bth.pad = static_cast<std::uint8_t>(padding(w->payload_size));
  bth.emit(out);
  std::uint8_t* cursor = out + Bth::size;
  w->meth.emit(cursor);
  cursor += Meth::size;
  if (bth.timestamped) {
    w->tseth.emit(cursor);
    cursor += Timestamp::size;
  }
  w->reth.emit(cursor);
  cursor += Reth::size;
  if (has_imm(bth.opcode)) {
    store32(cursor, w->imm);
    cursor += 4;
  }
  return static_cast<std::size_t>(cursor - out);
}

std::size_t emit(const Packet& packet, MutableBytes out) {
  std::size_t at = emit_headers(packet, out.data());
  if (const auto* w = std::get_if<Write>(&packet.body); w && w->payload_size) {
    if (w->payload) std::memcpy(out.data() + at, w->payload, w->payload_size);
    else std::memset(out.data() + at, 0, w->payload_size);
    at += w->payload_size;
    for (unsigned i = padding(w->payload_size); i; --i) out[at++] = 0;
  }
  return at;
}

}  // namespace softmrc::wire
