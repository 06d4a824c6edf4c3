// A queue pair of this side and one that a peer offers, from INIT to RTS: for Python's connections and NCCL's.
#pragma once

#include "host/offer.h"
#include "host/settings.h"
#include "udp/device.h"

namespace softmrc::host {

// One end of a queue pair of this side.
struct LocalQp {
  std::uint32_t lane = 0;
  std::uint32_t qpn = 0;
  std::uint32_t first_psn = 0;
  proto::Domain domain = 0;    // of memory, which the peer may write to
  std::uint64_t port_key = 0;  // which the peer's port status updates must carry
  std::uint32_t peer = ~0u;    // once the peer was added
};

struct QpTerms {
  std::uint32_t mtu = 0;       // payload bytes that this side can take
  std::uint32_t receives = 0;  // to post before the peer may write
  bool is_connector = false;
  const crypto::Secret* root = nullptr;  // which keys are derived from; null: packets are not encrypted
};

// The payload of a full packet between this side and the peer.
std::uint32_t payload_with(std::uint32_t own_mtu, const Offer& theirs);

// The `number`-th queue pair of the offer; `end.peer` was added, and `end` is in INIT. Both sides may write from here
// on. Throws HostError and DeviceError.
proto::MaybeError connect_qp(udp::Device& device, const DeviceSettings& settings, const LocalQp& end,
                             const Offer& theirs, std::size_t number, const QpTerms& terms);

}  // namespace softmrc::host
