// PETH, the reliability probe: asks the peer queue pair for a SACK over a chosen path, without spending a PSN.
//
//    +-------+-----------------------+---------------+---------------+
//  0 | type  |     next, reserved    |       0       |    vendor     |
//    +-------+-----------------------+---------------+---------------+
//  4 |           probe_id            |               0               |
//    +-------------------------------+-------------------------------+
//  8 |            spdcid             |            dpdcid             |
//    +-------------------------------+-+---------------------+-------+
// 12 |         tx_timestamp          |r|          0          | ftype |
//    +-------------------------------+-+---------------------+-------+
#pragma once

#include "wire/write.h"

namespace softmrc::wire {

struct Probe {
  static constexpr std::size_t size = 16;
  std::uint8_t vendor = 0;
  std::uint16_t probe_id = 0;
  std::uint16_t spdcid = 0;
  std::uint16_t dpdcid = 0;
  Timestamp timestamp;

  bool operator==(const Probe&) const = default;
  static Probe parse(const std::uint8_t* p) {
    return {p[3], load16(p + 4), load16(p + 8), load16(p + 10), Timestamp::parse(p + 12)};
  }
  void emit(std::uint8_t* p) const {
    store16(p, 0);
    p[2] = 0;
    p[3] = vendor;
    store16(p + 4, probe_id);
    store16(p + 6, 0);
    store16(p + 8, spdcid);
    store16(p + 10, dpdcid);
    timestamp.emit(p + 12);
  }
};

}  // namespace softmrc::wire
