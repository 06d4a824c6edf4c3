// BTH, the base transport header: in front of every MRC packet.
//
//    0                   1                   2                   3
//    0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//   +---------------+-+-+---+-------+-------------------------------+
// 0 |    opcode     |s|m|pad| tver  |             p_key             |
//   +---------------+-+-+---+-------+-------------------------------+
// 4 |   reserved    |                      dqp                      |
//   +-+-+-+-+-------+-----------------------------------------------+
// 8 |a|0|r|t|   0   |                      psn                      |
//   +-+-+-+-+-------+-----------------------------------------------+
//   a = acknowledge request, r = retransmission, t = a TSETH follows
//
// What psn means: data, its PSN; SACK, the cumulative acknowledgement; NACK, the PSN that triggered it;
// endpoint operations, the request id in the low 16 bits.
#pragma once

#include "wire/bytes.h"

namespace softmrc::wire {

// spec: opcodes
enum class Opcode : std::uint8_t {
  write_first = 0xC6,
  write_middle = 0xC7,
  write_last = 0xC8,
  write_last_imm = 0xC9,
  write_only = 0xCA,
  write_only_imm = 0xCB,
  acknowledge = 0xD1,
  endpoint_request = 0xD8,
  endpoint_response = 0xD9,
  sack = 0xDC,
  nack = 0xDD,
  probe = 0xDE,
};

constexpr bool is_write(Opcode op) { return op >= Opcode::write_first && op <= Opcode::write_only_imm; }
constexpr bool has_imm(Opcode op) { return op == Opcode::write_last_imm || op == Opcode::write_only_imm; }
// The packet that ends its message.
constexpr bool is_last(Opcode op) { return op >= Opcode::write_last && op <= Opcode::write_only_imm; }
constexpr bool is_first(Opcode op) {
  return op == Opcode::write_first || op == Opcode::write_only || op == Opcode::write_only_imm;
}

// The queue pair number that every node answers itself.
constexpr std::uint32_t endpoint_qpn = 2;

// spec: bth-flags psn-meaning
struct Bth {
  static constexpr std::size_t size = 12;

  Opcode opcode = Opcode::write_only;
  bool solicited = false;
  bool migration = false;
  std::uint8_t pad = 0;      // bytes of padding after the payload, 0..3
  std::uint8_t version = 0;  // tver
  std::uint16_t p_key = 0xFFFF;
  std::uint32_t dqp = 0;  // 24 bits
  bool ack_request = false;
  bool retransmission = false;
  bool timestamped = false;
  std::uint32_t psn = 0;  // 24 bits

  bool operator==(const Bth&) const = default;

  static Bth parse(const std::uint8_t* p) {
    Bth h;
    h.opcode = static_cast<Opcode>(p[0]);
    h.solicited = p[1] & 0x80;
    h.migration = p[1] & 0x40;
    h.pad = (p[1] >> 4) & 3;
    h.version = p[1] & 0x0F;
    h.p_key = load16(p + 2);
    h.dqp = load24(p + 5);
    h.ack_request = p[8] & 0x80;
    h.retransmission = p[8] & 0x20;
    h.timestamped = p[8] & 0x10;
    h.psn = load24(p + 9);
    return h;
  }

  void emit(std::uint8_t* p) const {
    p[0] = static_cast<std::uint8_t>(opcode);
    p[1] = static_cast<std::uint8_t>(solicited << 7 | migration << 6 | (pad & 3) << 4 | (version & 15));
    store16(p + 2, p_key);
    p[4] = 0;
    store24(p + 5, dqp);
    p[8] = static_cast<std::uint8_t>(ack_request << 7 | retransmission << 5 | timestamped << 4);
    store24(p + 9, psn);
  }
};

}  // namespace softmrc::wire
