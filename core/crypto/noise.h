// The Noise Protocol Framework, revision 34, with the suite 25519_ChaChaPoly_SHA256 and two patterns: NNpsk0, where
// both ends have one secret, and XX, where each has a static key and learns the other's. Bytes in, bytes out: who sends
// them, and whether a static key is one to trust, is for others.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "crypto/crypto.h"

namespace softmrc::crypto {

enum class NoisePattern : std::uint8_t { nn_psk0, xx };

// The longest message, with its tag; of the handshake as of a session.
constexpr std::size_t max_noise_message = 65'535;

// One direction of an established session: messages with a nonce that counts.
class NoiseCipher {
 public:
  NoiseCipher() = default;  // empty: it neither encrypts nor decrypts
  explicit NoiseCipher(const Secret& key);
  ~NoiseCipher();
  NoiseCipher(NoiseCipher&& other) noexcept;
  NoiseCipher& operator=(NoiseCipher&& other) noexcept;

  // Appends the ciphertext and its tag to `out`. Only in the process that made this: a forked child would use the
  // parent's nonces again.
  void seal(Bytes associated, Bytes text, std::vector<std::uint8_t>& out);
  // Appends the text to `out`. False, and the nonce stays: not authentic.
  bool open(Bytes associated, Bytes message, std::vector<std::uint8_t>& out);

  // Of the next message.
  std::uint64_t nonce() const { return nonce_; }

 private:
  Secret key_{};
  bool has_key_ = false;
  std::uint64_t nonce_ = 0;
  pid_t pid_ = 0;
};

// What a handshake leaves. Both ends have the same `exporter` and `hash`.
struct NoiseSession {
  NoiseCipher send, receive;
  Secret
      exporter{};  // the third output of HKDF(ck, "", 3), whose first two are the ciphers' keys: others derive from it
  Secret hash{};   // of all that was said and of both ends' keys; not a secret, and different for each handshake

  NoiseSession() = default;
  ~NoiseSession() { secure_zero(exporter.data(), exporter.size()); }
  NoiseSession(NoiseSession&&) noexcept = default;
  NoiseSession& operator=(NoiseSession&&) noexcept = default;
};

// One end of one handshake. The ends take turns, the initiator first: two messages of nn_psk0, three of xx. The first
// payload of xx is in the clear, and the second can be read by the sender of the first message; the others only by the
// peer.
class NoiseHandshake {
 public:
  // `key`: the pre-shared key of nn_psk0, or this end's static private key of xx. Both ends must have the same
  // prologue.
  NoiseHandshake(NoisePattern pattern, bool is_initiator, Bytes prologue, const Secret& key);
  ~NoiseHandshake();
  NoiseHandshake(NoiseHandshake&&) noexcept;
  NoiseHandshake& operator=(NoiseHandshake&&) noexcept;

  // Whether write() is next. Where neither this nor is_done() holds, it is read().
  bool is_our_turn() const;
  bool is_done() const;

  // The next message, with a payload that may be empty.
  std::vector<std::uint8_t> write(Bytes payload);
  // False: not authentic, too short or with a public key of small order. The handshake cannot go on then: it has no
  // more turns and is never done. Otherwise the payload is appended. Out of turn it is false, too, and changes nothing.
  bool read(Bytes message, std::vector<std::uint8_t>& payload);

  // xx: the other end's static public key, once a message was read that proves it.
  const Secret& remote_static() const;

  // Once, when it is done.
  NoiseSession take_session();

 protected:
  // For published test vectors only, which name the ephemeral private key: a derived class can set
  // it. A key that is used twice encrypts twice with the same nonces.
  NoiseHandshake(NoisePattern pattern, bool is_initiator, Bytes prologue, const Secret& key, const Secret& ephemeral);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace softmrc::crypto
