// Used where OpenSSL was not found when this was built: every function refuses.
#include "base/check.h"
#include "crypto/crypto.h"

namespace softmrc::crypto {
namespace {

[[noreturn]] void fail() { throw CheckFailure("built without libcrypto"); }

}  // namespace

bool is_available() { return false; }
const char* library() { fail(); }
void keep_until_the_end() {}

struct Aead::Context {};

Aead::Aead(Cipher, const Secret&, Use) { fail(); }
Aead::~Aead() = default;
Aead::Aead(Aead&&) noexcept = default;
Aead& Aead::operator=(Aead&&) noexcept = default;

void Aead::seal(const Nonce&, Bytes, std::initializer_list<Bytes>, std::uint8_t*) { fail(); }
bool Aead::open(const Nonce&, Bytes, MutableBytes, const std::uint8_t*) { fail(); }
Secret sha256(Bytes) { fail(); }
Secret hmac_sha256(Bytes, Bytes) { fail(); }
Secret x25519_public(const Secret&) { fail(); }
bool x25519(const Secret&, const Secret&, Secret&) { fail(); }
void secure_zero(void*, std::size_t) {}

}  // namespace softmrc::crypto
