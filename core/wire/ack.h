// AETH, the transport acknowledgement: confirms operations, where a SACK confirms packets.
//
//   +---------------+-----------------------------------------------+
//   |   syndrome    |                      msn                      |
//   +---------------+-----------------------------------------------+
#pragma once

#include "wire/bytes.h"

namespace softmrc::wire {

enum class Syndrome : std::uint8_t {
  ack = 0x1F,  // the low five bits are the credit count, always "no limit" here
  invalid_request = 0x61,
  remote_access = 0x62,
  remote_operation = 0x63,
};

struct Aeth {
  static constexpr std::size_t size = 4;
  Syndrome syndrome = Syndrome::ack;
  std::uint32_t msn = 0;  // 24 bits; a 16-bit MSN, zero-extended

  bool operator==(const Aeth&) const = default;
  static Aeth parse(const std::uint8_t* p) { return {static_cast<Syndrome>(p[0]), load24(p + 1)}; }
  void emit(std::uint8_t* p) const {
    p[0] = static_cast<std::uint8_t>(syndrome);
    store24(p + 1, msn);
  }
};

}  // namespace softmrc::wire
