// How two nodes tell each other what a connection needs, before the first packet: the steps and proofs of Python's
// `softmrc.connection.handshake`, in bytes instead of JSON. No I/O: bytes go in, bytes come out.
//
//   connector -> hello: version, a fresh nonce, whether a secret is in use
//   listener  -> hello likewise, and its proof: HMAC-SHA256 with the secret over both nonces
//   connector -> its offer      sealed: an HMAC over step, nonces and offer
//   listener  -> its offer      sealed likewise
//   connector -> ready          sealed likewise
//
// The key of the HMAC is made of the shared secret and of the token that the connector was given beforehand (NCCL's
// handle). A peer that does not know it learns a nonce and nothing else, at either end.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>

#include "host/bytes.h"
#include "host/sha256.h"

namespace softmrc::host {

using Token = std::array<std::uint8_t, 16>;
using Nonce = std::array<std::uint8_t, 32>;

// The application's part of a handshake: the offer that this side makes, and what it does with the other's.
class HandshakeDelegate {
 public:
  virtual ~HandshakeDelegate() = default;
  // A connector is asked once the listener has proved itself, a listener once it has accepted.
  virtual Bytes offer() = 0;
  // Throws HostError.
  virtual void accept(std::span<const std::uint8_t> theirs) = 0;
};

class Handshake {
 public:
  enum class Role : std::uint8_t { connector, listener };

  Handshake(Role role, const std::string& secret, const Token& token, HandshakeDelegate& delegate);

  // Takes received bytes, in any pieces. Throws HostError: why the handshake ends; the peer may be sent that text.
  void on_bytes(std::span<const std::uint8_t> bytes);
  // The bytes to send now.
  Bytes take_outgoing() { return std::move(outgoing_); }
  bool is_done() const { return is_done_; }
  // The peer has proved that it knows the secret, its offer was accepted, and it may consider itself connected.
  bool is_authenticated() const { return step_ == Step::ready; }
  // The error frame that is sent when this side ends the handshake.
  static Bytes error_frame(const std::string& words);

 private:
  enum class Step : std::uint8_t { hello, offer, ready };

  void handle(std::span<const std::uint8_t> frame);
  void on_hello(ByteReader& in);
  void on_offer(ByteReader& in);
  void send_frame(std::uint8_t kind, std::span<const std::uint8_t> content);
  void send_authenticated(std::uint8_t kind, const char* step, std::span<const std::uint8_t> content);
  Digest authenticate(const char* step, std::span<const std::uint8_t> content) const;
  void check(const char* step, std::span<const std::uint8_t> content, std::span<const std::uint8_t> seal) const;

  Role role_;
  bool has_secret_;
  Bytes key_;
  HandshakeDelegate& delegate_;
  Nonce own_nonce_;
  Nonce nonces_[2];  // the connector's, the listener's
  Step step_ = Step::hello;
  Bytes incoming_;
  Bytes outgoing_;
  bool is_done_ = false;
};

}  // namespace softmrc::host
