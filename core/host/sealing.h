// Whether a node encrypts its packets, and with which keys; in Python `softmrc.connection.keys`. Each queue pair draws
// an X25519 key pair of its own and sends the public half in the offer, which the handshake authenticates.
#pragma once

#include <cstdint>
#include <string>

#include "host/settings.h"
#include "udp/aead_protector.h"

namespace softmrc::host {

struct KeyShare {
  crypto::Secret own{};  // the private half
  crypto::Secret told{};
};

// As `seal` says, and with "auto" where there is a secret and something leaves the machine. Throws HostError where it
// cannot be.
bool seals(const DeviceSettings& settings, const std::string& secret, bool is_loopback_only);

KeyShare make_key_share();

// One end of a queue pair, as both ends know it.
struct KeyExchangeEnd {
  crypto::Cipher cipher{};  // which it is faster with
  std::uint32_t qpn = 0;
};
// Throws HostError where the peer's share is not a valid key. Written to the key log as well, where there is one:
// DeviceError if it could not be for now.
udp::SealKeys derive_keys(const KeyShare& ours, const KeyExchangeEnd& here, const crypto::Secret& theirs,
                          const KeyExchangeEnd& there, const std::string& secret);

}  // namespace softmrc::host
