// What an encrypted packet looks like: where its key is named, what travels in the clear, and where its tags are.
//
//   write    BTH METH [TSETH] RETH | KEY 12 | header tag 8 | hidden: [ImmDt] payload padding | tag 16
//   control  BTH body              | KEY 12 |                                                  tag 16
//
// KEY      +-----------------------------------------------+---------------+
//          |            queue pair of the receiver         |     epoch     |
//          +-----------------------------------------------+---------------+
//          |                             number                            |
//          +                                                               +
//          |                                                               |
//          +---------------------------------------------------------------+
//
// The version in BTH is 1 instead of 0, so an implementation without encryption refuses it. A switch that trims cuts
// behind the header tag, which vouches for all that is in front of it. Decides offsets and sizes; keys are in
// crypto/.
// spec: sealed-layout
#pragma once

#include <cstddef>
#include <cstdint>

#include "wire/bth.h"
#include "wire/bytes.h"
#include "wire/packet.h"
#include "wire/write.h"

namespace softmrc::wire {

constexpr std::uint8_t sealed_version = 1;
constexpr std::size_t header_tag_size = 8;
constexpr std::size_t seal_tag_size = 16;

struct SealHeader {
  static constexpr std::size_t size = 12;
  std::uint32_t qpn = 0;     // 24 bits: whose key it is, at the receiver; BTH may name the node instead
  std::uint8_t epoch = 0;    // how often that key has been replaced, modulo 256
  std::uint64_t number = 0;  // of this packet, under all keys of this queue pair: never used twice

  static SealHeader parse(const std::uint8_t* p) { return {load24(p), p[3], load64(p + 4)}; }
  void emit(std::uint8_t* p) const {
    store24(p, qpn);
    p[3] = epoch;
    store64(p + 4, number);
  }
};

// In front of what is hidden, and behind it.
constexpr std::size_t seal_front = SealHeader::size + header_tag_size;
constexpr std::size_t sealed_data_overhead = seal_front + seal_tag_size;

inline bool is_sealed(Bytes packet) { return packet.size() >= Bth::size && (packet[1] & 0x0F) == sealed_version; }

// BTH through RETH, which is all that trimming leaves of a write.
constexpr std::size_t through_reth(bool timestamped) {
  return Bth::size + Meth::size + (timestamped ? Timestamp::size : 0) + Reth::size;
}

// The headers in the clear of an encrypted packet, in front of KEY; 0 when the bytes are too few for what must follow
// them, or more than any headers are: such a packet is malformed.
inline std::size_t clear_size(Bytes packet, bool is_trimmed) {
  if (!is_sealed(packet)) return 0;
  if (is_write(static_cast<Opcode>(packet[0]))) {
    const std::size_t clear = through_reth(packet[8] & 0x10);
    return packet.size() < clear + seal_front + (is_trimmed ? 0 : seal_tag_size) ? 0 : clear;
  }
  constexpr std::size_t behind = SealHeader::size + seal_tag_size;
  return is_trimmed || packet.size() < Bth::size + behind || packet.size() > max_header_size + behind
             ? 0
             : packet.size() - behind;
}

}  // namespace softmrc::wire
