// What encryption takes from a library of cryptography: two ciphers that authenticate (AEAD), SHA-256, HMAC-SHA256 and
// X25519. The one place that knows which library that is: openssl.cpp, or no_openssl.cpp where there is none.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>

namespace softmrc::crypto {

using Bytes = std::span<const std::uint8_t>;
using MutableBytes = std::span<std::uint8_t>;
using Secret = std::array<std::uint8_t, 32>;
using Nonce = std::array<std::uint8_t, 12>;

constexpr std::size_t tag_size = 16;

enum class Cipher : std::uint8_t { aes_256_gcm, chacha20_poly1305 };

// False: built without a library. Nothing below may then be called.
bool is_available();
// What it calls itself.
const char* library();
// Has it stay until the process is gone: its own handler of exit() would take away what lanes use that still answer
// peers.
void keep_until_the_end();

class Aead {
 public:
  enum class Use : std::uint8_t { seal, open };

  Aead(Cipher cipher, const Secret& key, Use use);
  ~Aead();
  Aead(Aead&&) noexcept;
  Aead& operator=(Aead&&) noexcept;

  // Writes what the pieces make up, hidden, to `out`, and the tag behind it.
  void seal(const Nonce& nonce, Bytes associated, std::initializer_list<Bytes> pieces, std::uint8_t* out);
  // In place. False: not what was encrypted, and the bytes are worthless.
  bool open(const Nonce& nonce, Bytes associated, MutableBytes hidden, const std::uint8_t* tag);

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

Secret sha256(Bytes text);
Secret hmac_sha256(Bytes key, Bytes text);

// The public half of a private key, which may be any 32 random bytes.
Secret x25519_public(const Secret& own);
// What both sides have in common. False: the other's key is one that leaves no choice.
bool x25519(const Secret& own, const Secret& others, Secret& shared);

void secure_zero(void* memory, std::size_t size);

}  // namespace softmrc::crypto
