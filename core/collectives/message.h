// What ranks send each other besides bulk data: a fixed header, and a few bytes behind it. All ranks share one byte
// order.
#pragma once

#include <cstdint>
#include <type_traits>

#include "collectives/types.h"

namespace softmrc::collectives {

// What every rank of a collective must say alike.
struct CollectiveFingerprint {
  Kind kind = Kind::barrier;
  DType dtype = DType::uint8;
  ReduceOp op = ReduceOp::sum;
  Algorithm algorithm = Algorithm::direct;
  std::int32_t root = -1;
  std::uint64_t count = 0;  // elements, all parts together
  std::uint64_t shape = 0;  // a hash of how they are cut, and of the factor

  bool operator==(const CollectiveFingerprint&) const = default;
};

enum class MessageType : std::uint8_t {
  eager,    // small data of a collective, behind the header
  grant,    // you may write your part of this collective to me, from `rkey` on
  inquiry,  // I wait for you in this collective; do you mean the same one?
  offer,    // a send: its data follows if it is small, else it waits for an acceptance
  accept,   // write what you offered to `rkey`
  credit,   // nothing but what every header carries
  error,    // the group has failed; why is behind the header
  bye,      // I leave, and have finished everything; or, where its number is not 0, have failed
  shm,      // here is memory to put into what you would write to me; where is behind the header
};

struct MessageHeader {
  MessageType type{};
  std::uint8_t has_payload = 0;
  std::uint16_t payload = 0;  // bytes behind the header
  std::uint32_t number = 0;   // of the collective, or of the sender's offer
  CollectiveFingerprint descriptor;
  std::uint64_t bytes = 0;  // that travel: eager and offer from here, grant and accept to here
  std::uint32_t rkey = 0;
  std::uint32_t tag = 0;
  std::uint64_t consumed = 0;  // bytes of the peer's messages that have been taken from the ring here
  std::uint32_t taken = 0;     // small offers of the peer that have found their receiver
  std::uint32_t step = 0;      // of an eager one: among those of this collective from here to the peer
};
static_assert(sizeof(MessageHeader) == 64 && std::is_trivially_copyable_v<MessageHeader>);

constexpr std::uint32_t max_payload = 16 * 1024;

// Whether the fields say something that this build knows. Anything may stand in a header: it came from another process.
constexpr bool is_valid_header(const MessageHeader& header) {
  const CollectiveFingerprint& d = header.descriptor;
  if (header.type > MessageType::shm) return false;
  if (static_cast<std::size_t>(d.kind) >= kind_names.size() ||
      static_cast<std::size_t>(d.dtype) >= dtype_names.size() || static_cast<std::size_t>(d.op) >= op_names.size() ||
      static_cast<std::size_t>(d.algorithm) >= algorithm_names.size())
    return false;
  return header.type != MessageType::offer || header.payload == (header.has_payload ? header.bytes : 0);
}

}  // namespace softmrc::collectives
