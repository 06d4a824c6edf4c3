// One end of a connection of NCCL, as the code that makes connections sees it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "host/acceptor.h"
#include "host/handshake.h"

namespace softmrc::nccl {

class Party {
 public:
  Party() = default;
  virtual ~Party() = default;
  Party(const Party&) = delete;
  Party& operator=(const Party&) = delete;

  // What this end offers the other, and what it does with the other's offer once that is authenticated. A connector
  // offers first. Both throw HostError, and DeviceError where the system is short of something.
  virtual host::Bytes offer() = 0;
  virtual void accept(std::span<const std::uint8_t> theirs, const host::Handshake& handshake) = 0;

  // Counts as an accepted connection until it is destroyed.
  void hold(std::unique_ptr<host::AcceptedSlot> slot) { slot_ = std::move(slot); }

 private:
  std::unique_ptr<host::AcceptedSlot> slot_;
};

}  // namespace softmrc::nccl
