// ERTH and EETH: requests from node to node (queue pair 2), and their answers. The request id is BTH.psn[15:0].
//
// ERTH +---------------+-----------+---+---------------+---------------+
//    0 |       0       |     0     |op |       0       |    vendor     |
//      +---------------+-----------+---+---------------+---------------+
//    4 |                       port_status_mask                        |  bit N: port N is usable; plane p is port p+1
//      +---------------------------------------------------------------+
//    8 |                               0                               |
//      +-------------------------------+-+---------------------+-------+
//   12 |         tx_timestamp          |r|          0          | ftype |
//      +-------------------------------+-+---------------------+-------+
//
// EETH is 36 bytes: byte 1 holds the op in bits 3:2 (readers disagree; bits 5:4 are accepted too), byte 28 on holds the
// request's timestamp, byte 32 on how long the answer was in the making, everything else is reserved.
//
// Where both ends agreed on keys, eight bytes follow either header. Of a port status update they are the key that its
// receiver gave to its sender; of an EV probe that asks for proof of an address, a nonce that its answer repeats.
// Neither is zero, so that a zero says that there is none.
#pragma once

#include <cstring>

#include "wire/write.h"

namespace softmrc::wire {

enum class EndpointOp : std::uint8_t { port_status_update = 0, ev_probe = 1 };

constexpr std::size_t key_size = 8;

struct EndpointRequest {
  static constexpr std::size_t size = 16;
  EndpointOp op = EndpointOp::ev_probe;
  std::uint8_t vendor = 0;
  std::uint32_t port_status_mask = 0;
  Timestamp timestamp;
  std::uint64_t key = 0;  // or nonce

  bool operator==(const EndpointRequest&) const = default;
  static EndpointRequest parse(const std::uint8_t* p) {
    return {static_cast<EndpointOp>(p[1] & 3), p[3], load32(p + 4), Timestamp::parse(p + 12), 0};
  }
  void emit(std::uint8_t* p) const {
    std::memset(p, 0, size);
    p[1] = static_cast<std::uint8_t>(op) & 3;
    p[3] = vendor;
    store32(p + 4, port_status_mask);
    timestamp.emit(p + 12);
  }
};

// spec: endpoint-op-position
struct EndpointResponse {
  static constexpr std::size_t size = 36;
  EndpointOp op = EndpointOp::ev_probe;
  Timestamp timestamp;
  std::uint64_t key = 0;
  std::uint32_t service_ns = 0;  // 0: not told

  bool operator==(const EndpointResponse&) const = default;
  static EndpointResponse parse(const std::uint8_t* p) {
    const unsigned op = ((p[1] >> 2) & 3) | ((p[1] >> 4) & 3);
    return {static_cast<EndpointOp>(op), Timestamp::parse(p + 28), 0, load32(p + 32)};
  }
  void emit(std::uint8_t* p) const {
    std::memset(p, 0, size);
    p[1] = static_cast<std::uint8_t>((static_cast<unsigned>(op) & 3) << 2);
    timestamp.emit(p + 28);
    store32(p + 32, service_ns);
  }
};

}  // namespace softmrc::wire
