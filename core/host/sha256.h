// SHA-256 (FIPS 180-4) and HMAC (RFC 2104) with it: what proofs of a shared secret are made of.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace softmrc::host {

using Digest = std::array<std::uint8_t, 32>;

Digest sha256(std::span<const std::uint8_t> bytes);
Digest hmac_sha256(std::span<const std::uint8_t> key, std::span<const std::uint8_t> text);

inline std::span<const std::uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

// Takes as long whether they differ early or late.
inline bool is_same(const Digest& a, const Digest& b) {
  std::uint8_t difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference = static_cast<std::uint8_t>(difference | (a[i] ^ b[i]));
  return difference == 0;
}

}  // namespace softmrc::host
