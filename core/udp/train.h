// Trains: packets of one path that the kernel is handed as one send, and cuts itself.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "proto/transmit.h"
#include "wire/packet.h"

namespace softmrc::udp {

// What the kernel takes in one send, to cut into packets itself.
constexpr std::size_t most_train_bytes = 65'480;
constexpr std::uint32_t most_train_packets = 64;

// Around the payload of most packets.
constexpr std::uint32_t packet_overhead = proto::data_headers + static_cast<std::uint32_t>(wire::icrc_size);

// Full packets that leave together.
constexpr std::uint32_t packets_a_train(std::uint32_t mtu) {
  return std::clamp<std::uint32_t>(static_cast<std::uint32_t>(most_train_bytes) / (mtu + packet_overhead), 1, most_train_packets);
}

// How many packets share a path where nobody says: two trains, so that one is gathered while the other is on its way.
constexpr std::uint32_t usual_quantum(std::uint32_t mtu) { return std::min(2 * packets_a_train(mtu), most_train_packets); }

}  // namespace softmrc::udp
