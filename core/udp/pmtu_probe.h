// Packets that only ask whether packets of their size get through: one of a size, and an answer as long, so that both
// ways are tried. No connection knows of them; the driver answers those it would take packets from. They look like
// requests from node to node (BTH, queue pair 2) with separate opcodes.
//
//    BTH, 12 bytes | a number that the answer repeats, 8 bytes | zeros
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "udp/peer_book.h"
#include "wire/bth.h"
#include "wire/bytes.h"

namespace softmrc::udp {

struct PmtuProbe {
  static constexpr std::uint8_t request = 0xDA;
  static constexpr std::uint8_t answer = 0xDB;
  static constexpr std::size_t least = wire::Bth::size + 8;

  bool is_answer = false;
  std::uint64_t number = 0;

  static bool is_one(wire::Bytes packet) { return !packet.empty() && (packet[0] | 1) == answer; }
  static std::optional<PmtuProbe> parse(wire::Bytes packet) {
    if (packet.size() < least) return std::nullopt;
    return PmtuProbe{packet[0] == answer, wire::load64(packet.data() + wire::Bth::size)};
  }
  void emit(wire::MutableBytes packet) const {
    wire::Bth bth;
    bth.dqp = wire::endpoint_qpn;
    bth.emit(packet.data());
    packet[0] = is_answer ? answer : request;
    wire::store64(packet.data() + wire::Bth::size, number);
  }
};

// The probes to one peer, and the largest answer so far.
struct PmtuDiscovery {
  std::uint32_t id = 0;
  std::uint64_t number = 0;  // which cannot be guessed without receiving the probe
  std::vector<PeerPlane> planes;
  std::vector<std::uint32_t> answered;  // by plane: bytes of UDP payload; 0: nothing
  std::uint32_t rounds = 0;
};

}  // namespace softmrc::udp
