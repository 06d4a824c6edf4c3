#include "crypto/packet_keys.h"

#include <cstring>
#include <vector>

namespace softmrc::crypto {

Secret hkdf_expand(const Secret& secret, std::string_view label) {
  std::vector<std::uint8_t> text(label.begin(), label.end());
  text.push_back(1);
  return hmac_sha256(secret, text);
}

Secret next_secret(const Secret& secret) { return hkdf_expand(secret, "softmrc seal next"); }

PacketKeys::PacketKeys(Cipher cipher, const Secret& secret, Aead::Use use)
    : secret_(secret), aead_(cipher, ZeroizedSecret{hkdf_expand(secret, "softmrc seal key")}.value, use) {
  const ZeroizedSecret iv{hkdf_expand(secret, "softmrc seal iv")};
  std::memcpy(iv_.data(), iv.value.data(), iv_.size());
  const ZeroizedSecret header{hkdf_expand(secret, "softmrc seal header")};
  std::memcpy(header_key_.data(), header.value.data(), sizeof header_key_);
}

PacketKeys::~PacketKeys() {
  secure_zero(secret_.data(), secret_.size());
  secure_zero(iv_.data(), iv_.size());
  secure_zero(header_key_.data(), sizeof header_key_);
}

Nonce PacketKeys::nonce(std::uint64_t number) const {
  Nonce nonce = iv_;
  for (std::size_t i = 0; i < 8; ++i) nonce[4 + i] = static_cast<std::uint8_t>(nonce[4 + i] ^ number >> (56 - 8 * i));
  return nonce;
}

}  // namespace softmrc::crypto
