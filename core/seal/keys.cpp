#include "seal/keys.h"

#include <cstring>
#include <vector>

namespace softmrc::seal {

Secret expand(const Secret& secret, std::string_view label) {
  std::vector<std::uint8_t> text(label.begin(), label.end());
  text.push_back(1);
  return hmac_sha256(secret, text);
}

Secret next_of(const Secret& secret) { return expand(secret, "softmrc seal next"); }

Keys::Keys(Cipher cipher, const Secret& secret, Aead::Use use)
    : secret_(secret), aead_(cipher, expand(secret, "softmrc seal key"), use) {
  const Secret iv = expand(secret, "softmrc seal iv");
  std::memcpy(iv_.data(), iv.data(), iv_.size());
  const Secret header = expand(secret, "softmrc seal header");
  std::memcpy(header_key_.data(), header.data(), sizeof header_key_);
}

Nonce Keys::nonce(std::uint64_t number) const {
  Nonce nonce = iv_;
  for (std::size_t i = 0; i < 8; ++i) nonce[4 + i] = static_cast<std::uint8_t>(nonce[4 + i] ^ number >> (56 - 8 * i));
  return nonce;
}

}  // namespace softmrc::seal
