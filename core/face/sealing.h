// Whether a node seals its packets, and with which keys: what `softmrc.sealing` is to Python. Each queue pair draws a share of
// X25519 for itself and tells it in the offer, which the handshake proves.
#pragma once

#include <cstdint>
#include <string>

#include "face/settings.h"
#include "udp/session_seal.h"

namespace softmrc::face {

struct Share {
  seal::Secret own{};    // nobody else's
  seal::Secret told{};
};

// As `seal` says, and with "auto" where there is a secret and something leaves the machine. Throws Refusal where it cannot be.
bool seals(const DeviceSettings& settings, const std::string& secret, bool stays_here);

Share draw_share();

// One end of a queue pair, as both ends know it.
struct SealedEnd {
  seal::Cipher cipher{};  // which it is faster with
  std::uint32_t qpn = 0;
};
// Throws Refusal where the other's share leaves no choice. Written to the key log as well, where there is one: DeviceFailure
// if it could not be for now.
udp::SealKeys keys_of(const Share& ours, const SealedEnd& here, const seal::Secret& theirs, const SealedEnd& there, const std::string& secret);

}  // namespace softmrc::face
