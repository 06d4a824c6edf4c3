#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>

#include "base/check.h"
#include "crypto/crypto.h"

namespace softmrc::crypto {
namespace {

const EVP_CIPHER* cipher_of(Cipher cipher) {
  switch (cipher) {
    case Cipher::aes_256_gcm: return EVP_aes_256_gcm();
    case Cipher::chacha20_poly1305: return EVP_chacha20_poly1305();
  }
  return nullptr;
}

struct FreeKey {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(EVP_PKEY_CTX* context) const { EVP_PKEY_CTX_free(context); }
};
template <typename T>
using Owned = std::unique_ptr<T, FreeKey>;

Owned<EVP_PKEY> private_key(int type, const Secret& own) {
  return Owned<EVP_PKEY>(EVP_PKEY_new_raw_private_key(type, nullptr, own.data(), own.size()));
}

Secret public_of(int type, const Secret& own) {
  const Owned<EVP_PKEY> key = private_key(type, own);
  Secret out;
  std::size_t size = out.size();
  SOFTMRC_CHECK(key && EVP_PKEY_get_raw_public_key(key.get(), out.data(), &size) == 1 && size == out.size());
  return out;
}

// OpenSSL 1.1.1 takes a null pointer for the end of the text, though its size be zero.
bool authenticate(EVP_CIPHER_CTX* evp, decltype(&EVP_EncryptUpdate) update, Bytes associated) {
  int written = 0;
  return associated.empty() ||
         update(evp, nullptr, &written, associated.data(), static_cast<int>(associated.size())) == 1;
}

}  // namespace

bool is_available() { return true; }
const char* library() { return OpenSSL_version(OPENSSL_VERSION); }
void keep_until_the_end() { OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr); }

struct Aead::Context {
  EVP_CIPHER_CTX* evp = EVP_CIPHER_CTX_new();
  ~Context() { EVP_CIPHER_CTX_free(evp); }
};

Aead::Aead(Cipher cipher, const Secret& key, Use use) : context_(std::make_unique<Context>()) {
  SOFTMRC_CHECK(context_->evp);
  SOFTMRC_CHECK(EVP_CipherInit_ex(context_->evp, cipher_of(cipher), nullptr, key.data(), nullptr, use == Use::seal) ==
                1);
}

Aead::~Aead() = default;
Aead::Aead(Aead&&) noexcept = default;
Aead& Aead::operator=(Aead&&) noexcept = default;

void Aead::seal(const Nonce& nonce, Bytes associated, std::initializer_list<Bytes> pieces, std::uint8_t* out) {
  EVP_CIPHER_CTX* evp = context_->evp;
  int written = 0;
  bool is_done = EVP_EncryptInit_ex(evp, nullptr, nullptr, nullptr, nonce.data()) == 1 &&
                 authenticate(evp, &EVP_EncryptUpdate, associated);
  for (const Bytes piece : pieces) {
    if (piece.empty()) continue;
    is_done = is_done && EVP_EncryptUpdate(evp, out, &written, piece.data(), static_cast<int>(piece.size())) == 1;
    out += piece.size();
  }
  is_done = is_done && EVP_EncryptFinal_ex(evp, out, &written) == 1 &&
            EVP_CIPHER_CTX_ctrl(evp, EVP_CTRL_AEAD_GET_TAG, tag_size, out) == 1;
  SOFTMRC_CHECK(is_done);
}

bool Aead::open(const Nonce& nonce, Bytes associated, MutableBytes hidden, const std::uint8_t* tag) {
  EVP_CIPHER_CTX* evp = context_->evp;
  int written = 0;
  std::uint8_t none[16];
  bool is_done = EVP_DecryptInit_ex(evp, nullptr, nullptr, nullptr, nonce.data()) == 1 &&
                 authenticate(evp, &EVP_DecryptUpdate, associated);
  if (!hidden.empty())
    is_done = is_done &&
              EVP_DecryptUpdate(evp, hidden.data(), &written, hidden.data(), static_cast<int>(hidden.size())) == 1;
  is_done = is_done && EVP_CIPHER_CTX_ctrl(evp, EVP_CTRL_AEAD_SET_TAG, tag_size, const_cast<std::uint8_t*>(tag)) == 1;
  SOFTMRC_CHECK(is_done);
  return EVP_DecryptFinal_ex(evp, none, &written) == 1;
}

Secret sha256(Bytes text) {
  Secret out;
  unsigned size = 0;
  SOFTMRC_CHECK(EVP_Digest(text.data(), text.size(), out.data(), &size, EVP_sha256(), nullptr) == 1 &&
                size == out.size());
  return out;
}

Secret hmac_sha256(Bytes key, Bytes text) {
  Secret out;
  unsigned size = 0;
  const std::uint8_t nothing = 0;  // an empty key has an address, too
  const auto* p = HMAC(EVP_sha256(), key.empty() ? &nothing : key.data(), static_cast<int>(key.size()), text.data(),
                       text.size(), out.data(), &size);
  SOFTMRC_CHECK(p && size == out.size());
  return out;
}

Secret x25519_public(const Secret& own) { return public_of(EVP_PKEY_X25519, own); }

bool x25519(const Secret& own, const Secret& others, Secret& shared) {
  const Owned<EVP_PKEY> key = private_key(EVP_PKEY_X25519, own);
  const Owned<EVP_PKEY> other(EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, nullptr, others.data(), others.size()));
  const Owned<EVP_PKEY_CTX> context(EVP_PKEY_CTX_new(key.get(), nullptr));
  SOFTMRC_CHECK(key && other && context && EVP_PKEY_derive_init(context.get()) == 1);
  std::size_t size = shared.size();
  return EVP_PKEY_derive_set_peer(context.get(), other.get()) == 1 &&
         EVP_PKEY_derive(context.get(), shared.data(), &size) == 1 && size == shared.size();
}

void secure_zero(void* memory, std::size_t size) { OPENSSL_cleanse(memory, size); }

}  // namespace softmrc::crypto
