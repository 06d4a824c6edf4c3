// Where a datagram comes from and goes to: addresses and ports, as bytes. Text forms are left to the layers above.
#pragma once

#include <array>

#include "wire/bytes.h"

namespace softmrc::wire {

using Mac = std::array<std::uint8_t, 6>;
using Ipv6 = std::array<std::uint8_t, 16>;
using Ipv4 = std::array<std::uint8_t, 4>;

// An IPv4 address keeps to the first four bytes; the rest stay zero, so that equality is equality of bytes.
struct Address {
  Ipv6 bytes{};
  bool is_v4 = false;

  constexpr Address() = default;
  constexpr Address(const Ipv6& v6) : bytes(v6) {}
  constexpr Address(const Ipv4& v4) : is_v4(true) {
    for (std::size_t i = 0; i < v4.size(); ++i) bytes[i] = v4[i];
  }

  constexpr bool operator==(const Address&) const = default;
  constexpr std::size_t size() const { return is_v4 ? 4 : 16; }
};

// Both addresses are of one family. RoCE's own port is the default; an operator may move it.
struct Route {
  Address source;
  Address destination;
  std::uint16_t source_port = 0;
  std::uint16_t destination_port = 4791;

  constexpr bool operator==(const Route&) const = default;
  constexpr bool is_v4() const { return destination.is_v4; }
};

}  // namespace softmrc::wire
