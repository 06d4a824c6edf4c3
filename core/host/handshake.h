// How two processes authenticate each other and exchange what a connection needs, before the first packet. No I/O:
// bytes go in, bytes come out. The one implementation, for Python's connect and listen and for NCCL's plugin.
//
//   connector -> hello     versions, what it authenticates itself by, the first Noise message
//   listener  -> hello     likewise, the second
//   connector -> confirm   the third Noise message, or an empty one: it is no replay
//   connector -> offer     where it is, its queue pairs, its memory (`host/offer.h`)
//   listener  -> offer     likewise
//   connector -> ready     the payload that reaches the listener, where it was measured
//   listener  -> narrowed  if that is less than both had offered
//   either    -> goodbye   when it closes the connection
//   either    -> refusal   why it ends the handshake, and whether to try again
//
// With a shared secret the messages are those of Noise_NNpsk0_25519_ChaChaPoly_SHA256, with keys of their own of
// Noise_XX_25519_ChaChaPoly_SHA256; all that follows `confirm` is encrypted and authenticated. Without either, nothing
// is, and both ends must be on loopback. A peer that is not authenticated can send 512 bytes a frame, of which nothing
// is parsed but four numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "crypto/noise.h"
#include "host/bytes.h"
#include "host/host_error.h"

namespace softmrc::host {

constexpr std::uint16_t handshake_version = 4;
// Of what SoftMRC adds to MRC's packets. Ends that differ in it would connect and then not understand each other.
constexpr std::uint16_t wire_version = 1;
constexpr std::size_t max_unauthenticated_frame = 512;
constexpr std::size_t max_frame = 1 << 18;

// What an end authenticates itself by.
struct Credentials {
  enum class Kind : std::uint8_t { none, secret, key };

  Kind kind = Kind::none;
  crypto::Secret value{};  // made of the secret; or the private key

  ~Credentials() { crypto::secure_zero(value.data(), value.size()); }
  // `token` is known to the two ends of one connection only (NCCL's handle), and may be empty. Throws HostError in a
  // build without libcrypto.
  static Credentials of_secret(std::span<const std::uint8_t> secret, std::span<const std::uint8_t> token = {});
  static Credentials of_key(const crypto::Secret& key) { return {Kind::key, key}; }
};

// Why a handshake ends: what this side reports of the peer, and what is sent to it. After `is_busy` another try may
// succeed.
struct HandshakeRefused : HostError {
  explicit HandshakeRefused(const std::string& why, std::string to_peer = {}, bool busy = false)
      : HostError(why), message_to_peer(std::move(to_peer)), is_busy(busy) {}
  std::string message_to_peer;  // empty: nothing is sent
  bool is_busy;
};

class Handshake {
 public:
  enum class Role : std::uint8_t { connector, listener };
  enum class Event : std::uint8_t {
    none,
    identified,  // the peer has proved what it authenticates itself by: `allow`, if its key is known
    offered,     // `content` is its offer: a listener answers with `offer`, a connector with `ready`
    ready,       // to a listener: `mtu` gets through to it, 0 if untested; it answers with `finish`
    done
  };

  Handshake(Role role, const Credentials& own);
  ~Handshake();
  Handshake(const Handshake&) = delete;
  Handshake& operator=(const Handshake&) = delete;

  // Takes received bytes, in any pieces. Throws HandshakeRefused.
  void on_bytes(std::span<const std::uint8_t> bytes);
  // What has happened since the last call. Nothing that comes after it is looked at before it is answered. Throws
  // HandshakeRefused.
  Event next_event();
  void allow();
  void offer(std::span<const std::uint8_t> own);
  // `waits`: it is less than both had offered, so the listener has to answer before anything is sent.
  void ready(std::uint32_t mtu, bool waits);
  void finish(bool is_narrowed);
  // The frame that tells the peer why, if there is something to tell.
  void refuse(const HandshakeRefused& why);

  // The bytes to send now.
  Bytes take_outgoing() { return std::move(outgoing_); }
  bool is_done() const { return step_ == Step::done; }
  // The peer has been allowed.
  bool is_authenticated() const { return is_allowed_; }
  // Whether received bytes are of use now.
  bool wants_bytes() const;
  // What the peer sends is known to be its own, and no replay: also why it refuses.
  bool is_confirmed() const { return is_confirmed_; }
  // Whether the peer has sent anything that makes sense.
  bool has_heard() const { return step_ != Step::hello; }
  Role role() const { return role_; }
  const Bytes& content() const { return content_; }
  std::uint32_t mtu() const { return mtu_; }
  // Where keys authenticate: the peer's.
  const crypto::Secret& peer_key() const { return peer_key_; }
  // A secret that only the two ends know, once the peer is identified: packet keys are derived from it. Empty without
  // credentials.
  const std::optional<crypto::Secret>& exporter() const { return exporter_; }

  // Once it is done. The last frame of this side, and that of the other side: empty without credentials.
  Bytes goodbye();
  Bytes goodbye_of_peer();
  // What has come after the last frame.
  const Bytes& rest() const { return incoming_; }

 private:
  enum class Step : std::uint8_t { hello, confirm, identified, offer, offered, ready, finishing, narrowed, done };

  void parse();
  void handle(std::uint8_t kind, std::span<const std::uint8_t> body);
  void on_hello(std::span<const std::uint8_t> body);
  void on_confirm(std::span<const std::uint8_t> body);
  void on_session(std::span<const std::uint8_t> body);
  void on_step(std::uint8_t step, std::span<const std::uint8_t> content);
  Bytes hello();
  void identify();
  void check_hello(ByteReader& in) const;
  Bytes sealed(crypto::NoiseCipher* cipher, std::uint8_t step, std::span<const std::uint8_t> content) const;
  void send(std::uint8_t step, std::span<const std::uint8_t> content);
  void send_frame(std::uint8_t kind, std::span<const std::uint8_t> body);

  const Role role_;
  const Credentials::Kind kind_;
  std::optional<crypto::NoiseHandshake> noise_;
  std::optional<crypto::NoiseSession> session_;
  std::optional<crypto::Secret> exporter_;
  crypto::Secret peer_key_{};
  Step step_ = Step::hello;
  bool is_confirmed_ = false;  // the peer's messages are of this handshake, and no replay; it refuses in its session
  bool is_allowed_ = false;
  Event event_ = Event::none;
  Bytes content_;
  std::uint32_t mtu_ = 0;
  Bytes incoming_;
  Bytes outgoing_;
};

}  // namespace softmrc::host
