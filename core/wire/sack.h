// SETH and CC_STATE: the selective acknowledgement and the congestion state that rides with it.
//
//    +-------+---------+---+-----+-+-+-------------------------------+
//  0 | type  |  next   | m |  0  |p|0|        ack_psn_offset         |   p = pr, answers a probe; the offset is
//    +-------+---------+---+-----+-+-+-------------------------------+   then the probe's id
//  4 |                            entropy                            |
//    +-------------------------------+-------------------------------+
//  8 |            spdcid             |            dpdcid             |
//    +---------------+---------------+-------------------------------+
// 12 |       0       |                   cack_psn                    |
//    +-------+-------+---------------+-------------------------------+
// 16 |cc_type| flags |      mpr      |          sack_offset          |
//    +-------+-------+---------------+-------------------------------+
// 20 |                                                               |
//    +                            bitmap                             +   bit i (LSB first): cack + offset + i received;
// 24 |                                                               |   a clear bit says nothing
//    +-------------------------------+-+-----------------------------+
// 28 |         tx_timestamp          |0|          ooo_count          |
//    +-+-------------+---------------+-+-----------------------------+
// 32 |r|rcv_cwnd_pen |                   rcvd_bytes                  |   r = restore_cwnd
//    +-+-------------+-----------------------------------------------+
#pragma once

#include "wire/bytes.h"

namespace softmrc::wire {

enum class Mark : std::uint8_t { none = 0, skip_once = 1, always_skip = 2 };

struct CcState {
  static constexpr std::size_t size = 8;
  std::uint16_t tx_timestamp = 0;  // of the packet that triggered the SACK
  std::uint16_t ooo_count = 0;     // 15 bits
  bool restore_cwnd = false;
  std::uint8_t rcv_cwnd_pen = 0;  // 7 bits
  std::uint32_t rcvd_bytes = 0;   // 24 bits, units of 256 B, rounded up

  bool operator==(const CcState&) const = default;
  static CcState parse(const std::uint8_t* p) {
    return {load16(p), static_cast<std::uint16_t>(load16(p + 2) & 0x7FFF), (p[4] & 0x80) != 0,
            static_cast<std::uint8_t>(p[4] & 0x7F), load24(p + 5)};
  }
  void emit(std::uint8_t* p) const {
    store16(p, tx_timestamp);
    store16(p + 2, ooo_count & 0x7FFF);
    p[4] = static_cast<std::uint8_t>(restore_cwnd << 7 | (rcv_cwnd_pen & 0x7F));
    store24(p + 5, rcvd_bytes);
  }
};

// spec: sack-layout
struct Sack {
  static constexpr std::size_t size = 28 + CcState::size;
  Mark mark = Mark::none;
  bool answers_probe = false;
  std::int16_t ack_psn_offset = 0;  // the probe's id when answers_probe
  std::uint32_t entropy = 0;
  std::uint16_t spdcid = 0;
  std::uint16_t dpdcid = 0;
  std::uint32_t cack_psn = 0;  // 24 bits
  std::uint8_t cc_flags = 0;   // 4 bits
  std::uint8_t mpr = 0;        // units of 128 PSNs; 0: dynamic MPR is off
  std::int16_t sack_offset = 0;
  std::uint64_t bitmap = 0;
  CcState cc;

  bool operator==(const Sack&) const = default;
  std::uint16_t probe_id() const { return static_cast<std::uint16_t>(ack_psn_offset); }

  static Sack parse(const std::uint8_t* p) {
    Sack h;
    h.mark = static_cast<Mark>((p[1] >> 5) & 3);
    h.answers_probe = p[1] & 0x02;
    h.ack_psn_offset = static_cast<std::int16_t>(load16(p + 2));
    h.entropy = load32(p + 4);
    h.spdcid = load16(p + 8);
    h.dpdcid = load16(p + 10);
    h.cack_psn = load24(p + 13);
    h.cc_flags = p[16] & 0x0F;
    h.mpr = p[17];
    h.sack_offset = static_cast<std::int16_t>(load16(p + 18));
    h.bitmap = load64(p + 20);
    h.cc = CcState::parse(p + 28);
    return h;
  }
  void emit(std::uint8_t* p) const {
    p[0] = 0;
    p[1] = static_cast<std::uint8_t>((static_cast<unsigned>(mark) & 3) << 5 | answers_probe << 1);
    store16(p + 2, static_cast<std::uint16_t>(ack_psn_offset));
    store32(p + 4, entropy);
    store16(p + 8, spdcid);
    store16(p + 10, dpdcid);
    p[12] = 0;
    store24(p + 13, cack_psn);
    p[16] = cc_flags & 0x0F;
    p[17] = mpr;
    store16(p + 18, static_cast<std::uint16_t>(sack_offset));
    store64(p + 20, bitmap);
    cc.emit(p + 28);
  }
};

}  // namespace softmrc::wire
