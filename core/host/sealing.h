// Whether packets are encrypted, and with which keys: the one key schedule.
//
//   connections   HKDF-Expand(exporter of the handshake, "softmrc packets" | direction | both queue pairs)
//   groups        the same with HKDF-Extract(salt, X25519 of both ranks' shares | both shares | the secret) in place of
//                 the exporter: ranks have no handshakes one by one, their shares are in records that the secret
//                 authenticates
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "host/settings.h"
#include "udp/aead_protector.h"

namespace softmrc::host {

// As `seal` says, and with "auto" where there is a secret and something leaves the machine. Throws HostError where it
// cannot be.
bool seals(const DeviceSettings& settings, bool has_secret, bool is_loopback_only);

// One end of a queue pair, as both ends know it.
struct KeyEnd {
  crypto::Cipher cipher{};  // which it is faster with
  std::uint32_t qpn = 0;
};
// One of the two ends is the first: of a connection, the connector. Written to the key log as well, where there is one:
// DeviceError if it could not be for now.
udp::SealKeys packet_keys(const crypto::Secret& root, bool is_first, const KeyEnd& here, const KeyEnd& there);

// An X25519 key pair of one rank, for one group.
struct KeyShare {
  crypto::Secret own{};  // the private half
  crypto::Secret public_key{};

  KeyShare();
  ~KeyShare();
  KeyShare(const KeyShare&) = delete;
  KeyShare& operator=(const KeyShare&) = delete;
  // Makes it useless, so that keys made of it cannot be made again.
  void forget();
  bool is_forgotten = false;
};
// What two ranks have in common. Throws HostError where the other's share is no key.
crypto::Secret shared_root(const KeyShare& ours, const crypto::Secret& theirs, std::span<const std::uint8_t> secret,
                           std::span<const std::uint8_t> salt);

}  // namespace softmrc::host
