// GSO batches: packets of one path that the kernel gets as one send, and cuts itself.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "proto/transmit.h"
#include "wire/packet.h"

namespace softmrc::udp {

// What the kernel takes in one send, to cut into packets itself.
constexpr std::size_t max_gso_bytes = 65'480;
constexpr std::uint32_t max_gso_segments = 64;

// Around the payload of most packets.
constexpr std::uint32_t packet_overhead = proto::data_headers + static_cast<std::uint32_t>(wire::icrc_size);

// Full packets that leave together.
constexpr std::uint32_t gso_segments(std::uint32_t mtu) {
  return std::clamp<std::uint32_t>(static_cast<std::uint32_t>(max_gso_bytes) / (mtu + packet_overhead), 1,
                                   max_gso_segments);
}

// How many packets share a path by default: two GSO batches, so that one is gathered while the other is on its
// way.
constexpr std::uint32_t default_quantum(std::uint32_t mtu) { return std::min(2 * gso_segments(mtu), max_gso_segments); }

}  // namespace softmrc::udp
