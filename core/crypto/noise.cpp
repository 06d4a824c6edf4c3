// The names of the specification: `ck` the chaining key, `h` the hash of the handshake, `e` and `s` ephemeral and
// static keys, and the tokens that a message is made of.
#include "crypto/noise.h"

#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "crypto/packet_keys.h"

namespace softmrc::crypto {
namespace {

constexpr std::uint64_t reserved_nonce = std::numeric_limits<std::uint64_t>::max();

// Four zeros and the number, little-endian.
Nonce noise_nonce(std::uint64_t number) {
  Nonce nonce{};
  for (std::size_t i = 0; i < 8; ++i) nonce[4 + i] = static_cast<std::uint8_t>(number >> (8 * i));
  return nonce;
}

Secret random_secret() {
  Secret out;
  std::size_t filled = 0;
  while (filled < out.size()) {
    const ssize_t got = getrandom(out.data() + filled, out.size() - filled, 0);
    SOFTMRC_CHECK(got > 0 || (got < 0 && errno == EINTR));
    if (got > 0) filled += static_cast<std::size_t>(got);
  }
  return out;
}

struct HkdfOutputs {
  ZeroizedSecret first, second, third;
};

// As the specification writes it: of three outputs the first two are the two of HKDF(ck, material, 2).
HkdfOutputs noise_hkdf(const Secret& ck, Bytes material) {
  const ZeroizedSecret key{hmac_sha256(ck, material)};
  const std::uint8_t one = 1;
  std::array<std::uint8_t, sizeof(Secret) + 1> text;
  const auto next = [&](const Secret& previous, std::uint8_t number) {
    std::memcpy(text.data(), previous.data(), previous.size());
    text.back() = number;
    return hmac_sha256(key.value, text);
  };
  HkdfOutputs out;
  out.first.value = hmac_sha256(key.value, {&one, 1});
  out.second.value = next(out.first.value, 2);
  out.third.value = next(out.second.value, 3);
  secure_zero(text.data(), text.size());
  return out;
}

enum class Token : std::uint8_t { e, s, ee, es, se, psk };
using Tokens = std::span<const Token>;

constexpr Token nn_psk0_1[]{Token::psk, Token::e}, nn_psk0_2[]{Token::e, Token::ee};
constexpr Token xx_1[]{Token::e}, xx_2[]{Token::e, Token::ee, Token::s, Token::es}, xx_3[]{Token::s, Token::se};
constexpr Tokens nn_psk0_messages[]{nn_psk0_1, nn_psk0_2};
constexpr Tokens xx_messages[]{xx_1, xx_2, xx_3};

std::span<const Tokens> messages_of(NoisePattern pattern) {
  if (pattern == NoisePattern::xx) return xx_messages;
  return nn_psk0_messages;
}

std::string_view protocol_name(NoisePattern pattern) {
  return pattern == NoisePattern::xx ? "Noise_XX_25519_ChaChaPoly_SHA256" : "Noise_NNpsk0_25519_ChaChaPoly_SHA256";
}

Bytes bytes_of(std::string_view text) { return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}; }

// The specification's SymmetricState: what both ends have in common after each step.
class SymmetricState {
 public:
  explicit SymmetricState(std::string_view name) {
    if (name.size() <= h_.size()) std::memcpy(h_.data(), name.data(), name.size());
    else h_ = sha256(bytes_of(name));
    ck_.value = h_;
  }

  const Secret& h() const { return h_; }

  void mix_key(const Secret& material) {
    const HkdfOutputs out = noise_hkdf(ck_.value, material);
    ck_.value = out.first.value;
    cipher_ = NoiseCipher(out.second.value);
    has_key_ = true;
  }

  void mix_hash(Bytes data) {
    std::vector<std::uint8_t> text(h_.begin(), h_.end());
    text.insert(text.end(), data.begin(), data.end());
    h_ = sha256(text);
  }

  void mix_key_and_hash(const Secret& psk) {
    const HkdfOutputs out = noise_hkdf(ck_.value, psk);
    ck_.value = out.first.value;
    mix_hash(out.second.value);
    cipher_ = NoiseCipher(out.third.value);
    has_key_ = true;
  }

  // What so many bytes of text become.
  std::size_t sealed_size(std::size_t size) const { return size + (has_key_ ? tag_size : 0); }

  // Appends the text, encrypted once there is a key.
  void encrypt_and_hash(Bytes text, std::vector<std::uint8_t>& out) {
    const std::size_t before = out.size();
    if (has_key_) cipher_.seal(h_, text, out);
    else out.insert(out.end(), text.begin(), text.end());
    mix_hash(Bytes(out).subspan(before));
  }

  bool decrypt_and_hash(Bytes data, std::vector<std::uint8_t>& out) {
    if (!has_key_) out.insert(out.end(), data.begin(), data.end());
    else if (!cipher_.open(h_, data, out)) return false;
    mix_hash(data);
    return true;
  }

  HkdfOutputs split() const { return noise_hkdf(ck_.value, {}); }

  // All but the hash.
  void forget() {
    secure_zero(ck_.value.data(), ck_.value.size());
    cipher_ = NoiseCipher();
  }

 private:
  ZeroizedSecret ck_;
  Secret h_{};
  NoiseCipher cipher_;
  bool has_key_ = false;
};

}  // namespace

NoiseCipher::NoiseCipher(const Secret& key) : key_(key), has_key_(true), pid_(getpid()) {}

NoiseCipher::~NoiseCipher() { secure_zero(key_.data(), key_.size()); }

NoiseCipher::NoiseCipher(NoiseCipher&& other) noexcept { *this = std::move(other); }

// What was moved from is empty: two ciphers with one key would use its nonces twice.
NoiseCipher& NoiseCipher::operator=(NoiseCipher&& other) noexcept {
  if (this == &other) return *this;
  key_ = other.key_;
  has_key_ = std::exchange(other.has_key_, false);
  nonce_ = std::exchange(other.nonce_, 0);
  pid_ = other.pid_;
  secure_zero(other.key_.data(), other.key_.size());
  return *this;
}

void NoiseCipher::seal(Bytes associated, Bytes text, std::vector<std::uint8_t>& out) {
  SOFTMRC_CHECK(has_key_ && pid_ == getpid());
  SOFTMRC_CHECK(nonce_ != reserved_nonce && text.size() <= max_noise_message - tag_size);
  const std::size_t before = out.size();
  out.resize(before + text.size() + tag_size);
  Aead(Cipher::chacha20_poly1305, key_, Aead::Use::seal)
      .seal(noise_nonce(nonce_++), associated, {text}, out.data() + before);
}

bool NoiseCipher::open(Bytes associated, Bytes message, std::vector<std::uint8_t>& out) {
  SOFTMRC_CHECK(has_key_);
  if (message.size() < tag_size || message.size() > max_noise_message || nonce_ == reserved_nonce) return false;
  const Bytes hidden = message.first(message.size() - tag_size);
  const std::size_t before = out.size();
  out.insert(out.end(), hidden.begin(), hidden.end());
  const bool is_authentic = Aead(Cipher::chacha20_poly1305, key_, Aead::Use::open)
                                .open(noise_nonce(nonce_), associated, MutableBytes(out).subspan(before),
                                      message.data() + hidden.size());
  if (!is_authentic) {
    secure_zero(out.data() + before, hidden.size());
    out.resize(before);
    return false;
  }
  ++nonce_;
  return true;
}

struct NoiseHandshake::State {
  State(NoisePattern pattern, bool is_first, Bytes prologue, const Secret& key, const Secret& ephemeral)
      : messages(messages_of(pattern)), is_initiator(is_first), symmetric(protocol_name(pattern)) {
    symmetric.mix_hash(prologue);
    e.value = ephemeral;
    e_public = x25519_public(e.value);
    if (pattern == NoisePattern::nn_psk0) {
      psk.value = key;
    } else {
      s.value = key;
      s_public = x25519_public(s.value);
    }
  }

  bool has_turns() const { return !is_broken && step < messages.size(); }
  bool is_our_turn() const { return has_turns() && (step % 2 == 0) == is_initiator; }
  bool is_done() const { return !is_broken && step == messages.size(); }

  // In a pattern with a pre-shared key the ephemeral public keys go into the key, too: without that, a psk before the
  // first `e` would encrypt the first payload of every handshake with the same key and nonce.
  void mix_e(const Secret& key) {
    symmetric.mix_hash(key);
    if (messages.data() == nn_psk0_messages) symmetric.mix_key(key);
  }

  // False: the result says nothing of our key.
  bool mix_dh(const Secret& own, const Secret& others) {
    ZeroizedSecret shared;
    if (!x25519(own, others, shared.value)) return false;
    symmetric.mix_key(shared.value);
    return true;
  }

  bool mix_dh(Token token) {
    switch (token) {
      case Token::ee: return mix_dh(e.value, re);
      case Token::es: return is_initiator ? mix_dh(e.value, rs) : mix_dh(s.value, re);
      case Token::se: return is_initiator ? mix_dh(s.value, re) : mix_dh(e.value, rs);
      case Token::psk: symmetric.mix_key_and_hash(psk.value); return true;
      default: return false;
    }
  }

  void write_token(Token token, std::vector<std::uint8_t>& out) {
    if (token == Token::e) {
      out.insert(out.end(), e_public.begin(), e_public.end());
      mix_e(e_public);
    } else if (token == Token::s) {
      symmetric.encrypt_and_hash(s_public, out);
    } else {
      SOFTMRC_CHECK(mix_dh(token));  // read() has refused public keys with which this fails
    }
  }

  // Takes what the token is made of from the front of `rest`.
  bool read_token(Token token, Bytes& rest) {
    if (token != Token::e && token != Token::s) return mix_dh(token);
    const std::size_t size = token == Token::e ? re.size() : symmetric.sealed_size(rs.size());
    if (rest.size() < size) return false;
    const Bytes data = rest.first(size);
    rest = rest.subspan(size);
    if (token == Token::e) {
      std::memcpy(re.data(), data.data(), re.size());
      mix_e(re);
      return true;
    }
    std::vector<std::uint8_t> key;
    if (!symmetric.decrypt_and_hash(data, key)) return false;
    std::memcpy(rs.data(), key.data(), rs.size());
    return true;
  }

  bool read_message(Bytes rest, std::vector<std::uint8_t>& payload) {
    if (rest.size() > max_noise_message) return false;
    for (const Token token : messages[step])
      if (!read_token(token, rest)) return false;
    const std::size_t before = payload.size();
    if (!symmetric.decrypt_and_hash(rest, payload)) return false;
    // The first message has no Diffie-Hellman with its key; the answer to it has, and an answer cannot be refused.
    if (ZeroizedSecret unused; step == 0 && !x25519(e.value, re, unused.value)) {
      payload.resize(before);
      return false;
    }
    return true;
  }

  // With these keys a recorded session can be read.
  void forget() {
    for (ZeroizedSecret* own : {&psk, &e, &s}) secure_zero(own->value.data(), own->value.size());
    symmetric.forget();
  }

  std::span<const Tokens> messages;
  bool is_initiator;
  std::size_t step = 0;
  bool is_broken = false;
  bool is_taken = false;
  pid_t pid = getpid();
  SymmetricState symmetric;
  ZeroizedSecret psk{}, e{}, s{};
  Secret e_public{}, s_public{};
  Secret re{}, rs{};  // the other end's public keys
};

NoiseHandshake::NoiseHandshake(NoisePattern pattern, bool is_initiator, Bytes prologue, const Secret& key)
    : NoiseHandshake(pattern, is_initiator, prologue, key, ZeroizedSecret{random_secret()}.value) {}

NoiseHandshake::NoiseHandshake(NoisePattern pattern, bool is_initiator, Bytes prologue, const Secret& key,
                               const Secret& ephemeral)
    : state_(std::make_unique<State>(pattern, is_initiator, prologue, key, ephemeral)) {}

NoiseHandshake::~NoiseHandshake() = default;
NoiseHandshake::NoiseHandshake(NoiseHandshake&&) noexcept = default;
NoiseHandshake& NoiseHandshake::operator=(NoiseHandshake&&) noexcept = default;

bool NoiseHandshake::is_our_turn() const { return state_->is_our_turn(); }
bool NoiseHandshake::is_done() const { return state_->is_done(); }

std::vector<std::uint8_t> NoiseHandshake::write(Bytes payload) {
  // A forked child has the same ephemeral key: what it encrypted would have the nonces of what its parent encrypts.
  SOFTMRC_CHECK(is_our_turn() && state_->pid == getpid());
  std::vector<std::uint8_t> out;
  state_->is_broken = true;  // where a check or an allocation fails halfway, nothing else is said with these keys
  for (const Token token : state_->messages[state_->step]) state_->write_token(token, out);
  SOFTMRC_CHECK(out.size() + state_->symmetric.sealed_size(payload.size()) <= max_noise_message);
  state_->symmetric.encrypt_and_hash(payload, out);
  state_->is_broken = false;
  ++state_->step;
  return out;
}

bool NoiseHandshake::read(Bytes message, std::vector<std::uint8_t>& payload) {
  if (!state_->has_turns() || is_our_turn()) return false;
  state_->is_broken = true;
  if (!state_->read_message(message, payload)) {
    state_->forget();
    return false;
  }
  state_->is_broken = false;
  ++state_->step;
  return true;
}

const Secret& NoiseHandshake::remote_static() const {
  // The message that has it is the second for the initiator, the third for the other.
  SOFTMRC_CHECK(state_->messages.data() == xx_messages && !state_->is_broken &&
                state_->step >= (state_->is_initiator ? 2 : 3));
  return state_->rs;
}

NoiseSession NoiseHandshake::take_session() {
  SOFTMRC_CHECK(is_done() && !state_->is_taken);
  state_->is_taken = true;
  const HkdfOutputs keys = state_->symmetric.split();
  NoiseSession session;
  session.send = NoiseCipher(state_->is_initiator ? keys.first.value : keys.second.value);
  session.receive = NoiseCipher(state_->is_initiator ? keys.second.value : keys.first.value);
  session.exporter = keys.third.value;
  session.hash = state_->symmetric.h();
  state_->forget();
  return session;
}

}  // namespace softmrc::crypto
