// Whether a node seals its packets, and with which keys: what `softmrc.connection.keys` is to Python. Each queue pair
// draws a share of X25519 for itself and tells it in the offer, which the handshake proves.
#pragma once

#include <cstdint>
#include <string>

#include "host/settings.h"
#include "udp/aead_protector.h"

namespace softmrc::host {

struct KeyShare {
  crypto::Secret own{};  // nobody else's
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
// Throws HostError where the other's share leaves no choice. Written to the key log as well, where there is one:
// DeviceError if it could not be for now.
udp::SealKeys derive_keys(const KeyShare& ours, const KeyExchangeEnd& here, const crypto::Secret& theirs,
                          const KeyExchangeEnd& there, const std::string& secret);

}  // namespace softmrc::host
