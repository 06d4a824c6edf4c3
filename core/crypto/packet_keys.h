// What keys are made of. One secret for each direction of a queue pair, from the handshake; of it come a key for the
// cipher, one for the header's tag, the part of the nonce that is not the packet's number, and the secret that replaces
// it.
//
//   HKDF-Expand (RFC 5869, HMAC-SHA256), with the labels below; nonce = iv XOR number, in the last 8 bytes
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/siphash.h"
#include "crypto/crypto.h"

namespace softmrc::crypto {

// One that does not outlive its name.
struct ZeroizedSecret {
  Secret value;
  ~ZeroizedSecret() { secure_zero(value.data(), value.size()); }
};

// HKDF-Expand, for as much as one block gives.
Secret hkdf_expand(const Secret& secret, std::string_view label);
// The secret that takes this one's place. There is no way back.
Secret next_secret(const Secret& secret);

// spec: seal-keys
class PacketKeys {
 public:
  PacketKeys(Cipher cipher, const Secret& secret, Aead::Use use);
  ~PacketKeys();
  PacketKeys(PacketKeys&&) noexcept = default;
  PacketKeys& operator=(PacketKeys&&) noexcept = default;

  Aead& aead() { return aead_; }
  const Secret& secret() const { return secret_; }
  Nonce nonce(std::uint64_t number) const;
  // Of the headers and of what names the key, which are side by side.
  std::uint64_t header_tag(Bytes front) const { return sip_hash(header_key_, front); }

 private:
  Secret secret_;
  Aead aead_;
  Nonce iv_;
  SecretKey header_key_;
};

}  // namespace softmrc::crypto
