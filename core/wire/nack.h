// NETH, the negative acknowledgement: this packet did not make it into memory, and why.
//
//    +-------+-----------------------+---------------+---------------+
//  0 | type  |     next, reserved    |    reason     |    vendor     |
//    +-------+-----------------------+---------------+---------------+
//  4 |                            entropy                            |
//    +-------------------------------+-------------------------------+
//  8 |            spdcid             |            dpdcid             |
//    +---------------+---------------+-------------------------------+
// 12 |       0       |                   nack_psn                    |
//    +-------+-------+---------------+-------------------------------+
// 16 |cc_type| flags |       0       |         tx_timestamp          |
//    +-------+-------+---------------+-------------------------------+
#pragma once

#include "wire/bytes.h"

namespace softmrc::wire {

// spec: nack-reasons
enum class NackReason : std::uint8_t {
  trimmed = 0x01,
  trimmed_last_hop = 0x02,
  no_bitmap = 0x06,
  no_packet_buffer = 0x07,
  no_resource = 0x0A,
  psn_out_of_window = 0x0B,
  unexpected_event = 0x19,  // fatal: the queue pair is in error
};

struct Nack {
  static constexpr std::size_t size = 20;
  NackReason reason = NackReason::trimmed;
  std::uint8_t vendor = 0;
  std::uint32_t entropy = 0;
  std::uint16_t spdcid = 0;
  std::uint16_t dpdcid = 0;
  std::uint32_t nack_psn = 0;  // 24 bits
  std::uint8_t cc_flags = 0;   // 4 bits
  std::uint16_t tx_timestamp = 0;

  bool operator==(const Nack&) const = default;
  static Nack parse(const std::uint8_t* p) {
    return {static_cast<NackReason>(p[2]),
            p[3],
            load32(p + 4),
            load16(p + 8),
            load16(p + 10),
            load24(p + 13),
            static_cast<std::uint8_t>(p[16] & 0x0F),
            load16(p + 18)};
  }
  void emit(std::uint8_t* p) const {
    store16(p, 0);
    p[2] = static_cast<std::uint8_t>(reason);
    p[3] = vendor;
    store32(p + 4, entropy);
    store16(p + 8, spdcid);
    store16(p + 10, dpdcid);
    p[12] = 0;
    store24(p + 13, nack_psn);
    p[16] = cc_flags & 0x0F;
    p[17] = 0;
    store16(p + 18, tx_timestamp);
  }
};

}  // namespace softmrc::wire
