// What plain UDP does on this machine, to measure the driver against: messages of one size by sendmmsg and recvmmsg on
// connected sockets, no protocol. Whether a message is one packet or a GSO batch is an option of the caller's sockets.
#pragma once

#include <cstdint>
#include <vector>

namespace softmrc::benchmarks {

// Sends for so long; returns the bytes that the kernel took.
std::uint64_t send(int fd, std::uint32_t message_bytes, double seconds);
// Receives until nothing has come for 100 ms, or for so long; returns bytes per second between the first and the last.
double receive(int fd, std::uint32_t message_bytes, double seconds);
// Sends these payloads in turn, at a steady rate over all descriptors, for so long.
void flood(const std::vector<int>& fds, const std::vector<std::vector<std::uint8_t>>& payloads, double per_s,
           double seconds);

}  // namespace softmrc::benchmarks
