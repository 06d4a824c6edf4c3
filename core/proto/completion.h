// What a completion queue holds. The layout is the one Python reads as a NumPy record array.
#pragma once

#include <cstdint>

#include "base/ring.h"

namespace softmrc::proto {

enum class CompletionStatus : std::uint8_t {
  success,
  flushed,           // the queue pair went to error before this one's turn
  retry_exceeded,    // the peer stopped answering
  remote_access,     // the peer refused the key or the address
  remote_invalid,    // the peer could not make sense of the request
  remote_operation,  // the peer had no receive posted
  local_protocol,    // the peer asked us for something that is not allowed
  peer_error,        // the peer's queue pair is in error
};

enum class CompletionKind : std::uint8_t { write, write_imm, receive_imm };

struct Completion {
  std::uint64_t wr_id = 0;
  std::uint32_t qpn = 0;
  std::uint32_t length = 0;
  std::uint32_t imm = 0;
  CompletionStatus status = CompletionStatus::success;
  CompletionKind kind = CompletionKind::write;
  std::uint16_t msn = 0;
};
static_assert(sizeof(Completion) == 24);

using CompletionQueue = Ring<Completion>;

}  // namespace softmrc::proto
