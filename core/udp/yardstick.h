// What plain UDP does on this machine, to measure the driver against: packets of one size by sendmmsg and recvmmsg on
// connected sockets, no offloads, no protocol.
#pragma once

#include <cstdint>
#include <vector>

namespace softmrc::udp {

// Sends for so long; returns the bytes that the kernel took.
std::uint64_t yardstick_send(int fd, std::uint32_t packet_bytes, double seconds);
// Receives until nothing has come for 100 ms, or for so long; returns bytes per second between the first and the last.
double yardstick_receive(int fd, double seconds);
// Sends these payloads in turn, at a steady rate over all descriptors, for so long.
void yardstick_flood(const std::vector<int>& fds, const std::vector<std::vector<std::uint8_t>>& payloads, double per_s,
                     double seconds);

}  // namespace softmrc::udp
