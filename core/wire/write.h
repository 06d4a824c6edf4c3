// The extension headers of data packets: METH, TSETH, RETH and the immediate.
//
// METH   +-------------------------------+-------------------------------+
//        |             rqmsn             |              msn              |
//        +-------------------------------+-+---------------------+-------+
// TSETH  |         tx_timestamp          |r|          0          | ftype |   r = tsr, 0: units of 128 ns
//        +-------------------------------+-+---------------------+-------+
// RETH   |                              va                               |
//        +                                                               +
//        |                                                               |
//        +---------------------------------------------------------------+
//        |                             rkey                              |
//        +---------------------------------------------------------------+
//        |                            dmalen                             |
//        +---------------------------------------------------------------+
// ImmDt  |                              imm                              |
//        +---------------------------------------------------------------+
//
// Every data packet carries a RETH: va is where *this* packet's payload goes, dmalen the length of the whole message.
// That is what lets a receiver place packets in any order.
#pragma once

#include "wire/bytes.h"

namespace softmrc::wire {

// spec: meth-counts
struct Meth {
  static constexpr std::size_t size = 4;
  std::uint16_t rqmsn = 0;  // how many write-with-immediates came before this message
  std::uint16_t msn = 0;

  bool operator==(const Meth&) const = default;
  static Meth parse(const std::uint8_t* p) { return {load16(p), load16(p + 2)}; }
  void emit(std::uint8_t* p) const {
    store16(p, rqmsn);
    store16(p + 2, msn);
  }
};

// The 32 bits of a timestamp, shared by TSETH, PETH, ERTH and EETH.
struct Timestamp {
  static constexpr std::size_t size = 4;
  static constexpr std::int64_t unit_ps = 128'000;  // 128 ns while tsr is 0

  std::uint16_t ticks = 0;
  bool resolution = false;  // tsr
  std::uint8_t ftype = 1;

  bool operator==(const Timestamp&) const = default;
  static Timestamp parse(const std::uint8_t* p) {
    return {load16(p), (p[2] & 0x80) != 0, static_cast<std::uint8_t>(p[3] & 0x0F)};
  }
  void emit(std::uint8_t* p) const {
    store16(p, ticks);
    p[2] = static_cast<std::uint8_t>(resolution << 7);
    p[3] = ftype & 0x0F;
  }
};

// spec: reth-everywhere
struct Reth {
  static constexpr std::size_t size = 16;
  std::uint64_t va = 0;
  std::uint32_t rkey = 0;
  std::uint32_t dmalen = 0;

  bool operator==(const Reth&) const = default;
  static Reth parse(const std::uint8_t* p) { return {load64(p), load32(p + 8), load32(p + 12)}; }
  void emit(std::uint8_t* p) const {
    store64(p, va);
    store32(p + 8, rkey);
    store32(p + 12, dmalen);
  }
};

}  // namespace softmrc::wire
