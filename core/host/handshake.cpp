#include "host/handshake.h"

#include <algorithm>

#include "host/node.h"

namespace softmrc::host {
namespace {

constexpr std::uint16_t version = 2;        // also raised when offers change
constexpr std::size_t largest_hello = 256;  // the first frame is anybody's
constexpr std::size_t largest_frame = 1 << 18;
constexpr std::size_t longest_words = 200;

// Kinds of frames.
constexpr std::uint8_t frame_hello = 'H', frame_offer = 'O', frame_ready = 'R', frame_error = 'E';

constexpr const char* listener_knows = "the listener knows the secret";
constexpr const char* connector_offers = "the connector offers";
constexpr const char* listener_offers = "the listener offers";
constexpr const char* connector_is_ready = "the connector is ready";

Bytes framed(std::uint8_t kind, std::span<const std::uint8_t> content) {
  ByteWriter out;
  out.number(static_cast<std::uint32_t>(content.size() + 1));
  out.number(kind);
  out.raw(content);
  return out.take();
}

// Text of a peer that is not authenticated, made safe to show: on one line, and short.
std::string shown(std::span<const std::uint8_t> words) {
  std::string text;
  for (const std::uint8_t c : words.first(std::min(words.size(), longest_words)))
    text += c >= ' ' && c < 0x7F ? static_cast<char>(c) : '?';
  return text;
}

}  // namespace

Handshake::Handshake(Role role, const std::string& secret, const Token& token, HandshakeDelegate& delegate)
    : role_(role), has_secret_(!secret.empty()), delegate_(delegate) {
  const Digest digest = sha256(bytes_of(secret));  // so that where one ends and the other begins is never in doubt
  key_.assign(digest.begin(), digest.end());
  key_.insert(key_.end(), token.begin(), token.end());
  for (std::size_t i = 0; i < own_nonce_.size(); i += 8) {
    const std::uint64_t bits = random_bits();
    std::memcpy(own_nonce_.data() + i, &bits, 8);
  }
  nonces_[static_cast<std::size_t>(role)] = own_nonce_;
  if (role_ != Role::connector) return;
  ByteWriter hello;
  hello.number(version);
  hello.number(static_cast<std::uint8_t>(has_secret_));
  hello.raw(own_nonce_);
  send_frame(frame_hello, hello.take());
}

Bytes Handshake::error_frame(const std::string& words) {
  return framed(frame_error, bytes_of(words).first(std::min(words.size(), longest_words)));
}

void Handshake::send_frame(std::uint8_t kind, std::span<const std::uint8_t> content) {
  const Bytes frame = framed(kind, content);
  outgoing_.insert(outgoing_.end(), frame.begin(), frame.end());
}

void Handshake::send_authenticated(std::uint8_t kind, const char* step, std::span<const std::uint8_t> content) {
  ByteWriter out;
  out.raw(authenticate(step, content));
  out.raw(content);
  send_frame(kind, out.take());
}

Digest Handshake::authenticate(const char* step, std::span<const std::uint8_t> content) const {
  ByteWriter text;
  text.raw(bytes_of("softmrc face"));
  text.number(version);
  text.raw(bytes_of(step));
  text.number(std::uint8_t{0});
  for (const Nonce& nonce : nonces_) text.raw(nonce);
  text.raw(content);
  return hmac_sha256(key_, text.take());
}

void Handshake::check(const char* step, std::span<const std::uint8_t> content,
                      std::span<const std::uint8_t> given) const {
  Digest theirs;
  std::ranges::copy(given, theirs.begin());
  if (!is_same(theirs, authenticate(step, content)))
    throw HostError("does not know the secret: SOFTMRC_SECRET is not the same on both sides");
}

void Handshake::on_bytes(std::span<const std::uint8_t> bytes) {
  incoming_.insert(incoming_.end(), bytes.begin(), bytes.end());
  while (incoming_.size() >= 4) {
    const std::size_t size = ByteReader(incoming_).number<std::uint32_t>();
    if (size == 0 || size > (step_ == Step::hello ? largest_hello : largest_frame))
      throw HostError("does not speak this protocol; is it something else that has this port?");
    if (incoming_.size() - 4 < size) return;
    const Bytes frame(incoming_.begin() + 4, incoming_.begin() + 4 + static_cast<std::ptrdiff_t>(size));
    incoming_.erase(incoming_.begin(), incoming_.begin() + 4 + static_cast<std::ptrdiff_t>(size));
    handle(frame);
  }
}

void Handshake::handle(std::span<const std::uint8_t> frame) {
  ByteReader in(frame);
  const std::uint8_t kind = in.number<std::uint8_t>();
  if (kind == frame_error) throw HostError("refused: " + shown(in.rest()));
  constexpr std::uint8_t expected[] = {frame_hello, frame_offer, frame_ready};
  if (is_done_ || kind != expected[static_cast<std::size_t>(step_)])
    throw HostError("said something else than it should have");
  if (step_ == Step::hello) return on_hello(in);
  if (step_ == Step::offer) return on_offer(in);
  const auto given = in.raw(sizeof(Digest));
  in.end();
  check(connector_is_ready, {}, given);
  is_done_ = true;
}

void Handshake::on_hello(ByteReader& in) {
  if (const auto theirs = in.number<std::uint16_t>(); theirs != version)
    throw HostError("speaks version " + std::to_string(theirs) + " of the handshake, this side version " +
                    std::to_string(version));
  const bool theirs_has_secret = in.number<std::uint8_t>();
  if (theirs_has_secret != has_secret_)
    throw HostError(
        std::string(has_secret_ ? "uses no secret and this side does" : "uses a secret and this side does not") +
        "; set SOFTMRC_SECRET alike");
  const bool is_connector = role_ == Role::connector;
  std::ranges::copy(in.raw(sizeof(Nonce)), nonces_[is_connector].begin());
  step_ = Step::offer;
  if (is_connector) {
    const auto proof = in.raw(sizeof(Digest));
    in.end();
    check(listener_knows, {}, proof);
    return send_authenticated(frame_offer, connector_offers, delegate_.offer());
  }
  in.end();
  ByteWriter hello;
  hello.number(version);
  hello.number(static_cast<std::uint8_t>(has_secret_));
  hello.raw(own_nonce_);
  hello.raw(authenticate(listener_knows, {}));
  send_frame(frame_hello, hello.take());
}

void Handshake::on_offer(ByteReader& in) {
  const bool is_connector = role_ == Role::connector;
  const auto given = in.raw(sizeof(Digest));
  const auto content = in.rest();
  check(is_connector ? listener_offers : connector_offers, content, given);
  delegate_.accept(content);
  if (is_connector) {
    send_authenticated(frame_ready, connector_is_ready, {});
    is_done_ = true;
    return;
  }
  step_ = Step::ready;
  send_authenticated(frame_offer, listener_offers, delegate_.offer());
}

}  // namespace softmrc::host
