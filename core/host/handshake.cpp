#include "host/handshake.h"

#include <algorithm>

namespace softmrc::host {
namespace {

constexpr std::array<std::uint8_t, 4> magic{'S', 'M', 'R', 'C'};
constexpr std::size_t longest_words = 200;

// Kinds of frames.
constexpr std::uint8_t frame_hello = 'H', frame_confirm = 'C', frame_session = 'S', frame_refusal = 'E';
// What a frame of an established session holds.
constexpr std::uint8_t step_offer = 1, step_ready = 2, step_narrowed = 3, step_goodbye = 4, step_refusal = 5;

constexpr const char* another_protocol = "does not speak this protocol; is it something else that has this port?";

Bytes framed(std::uint8_t kind, std::span<const std::uint8_t> body) {
  ByteWriter out;
  out.number(static_cast<std::uint32_t>(body.size() + 1));
  out.number(kind);
  out.raw(body);
  return out.take();
}

std::span<const std::uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

// Text of a peer, made safe to show: on one line, and short.
std::string shown(std::span<const std::uint8_t> words) {
  std::string text;
  for (const std::uint8_t c : words.first(std::min(words.size(), longest_words)))
    text += c >= ' ' && c < 0x7F ? static_cast<char>(c) : '?';
  return text;
}

Bytes refusal_body(const HandshakeRefused& why) {
  ByteWriter out;
  out.number(static_cast<std::uint8_t>(why.is_busy));
  out.raw(bytes_of(why.message_to_peer).first(std::min(why.message_to_peer.size(), longest_words)));
  return out.take();
}

[[noreturn]] void raise_refusal(std::span<const std::uint8_t> body) {
  ByteReader in(body);
  const bool is_busy = in.number<std::uint8_t>() & 1;
  throw HandshakeRefused("refused: " + shown(in.rest()), "", is_busy);
}

void check_libcrypto() {
  if (!crypto::is_available())
    throw HostError("a secret or a key takes libcrypto, and this was built without it (on Debian: libssl-dev)");
}

const char* name_of(Credentials::Kind kind) {
  switch (kind) {
    case Credentials::Kind::none: return "neither a secret nor a key";
    case Credentials::Kind::secret: return "a secret";
    case Credentials::Kind::key: break;
  }
  return "a key";
}

crypto::NoisePattern pattern_of(Credentials::Kind kind) {
  return kind == Credentials::Kind::secret ? crypto::NoisePattern::nn_psk0 : crypto::NoisePattern::xx;
}

// Associated data of a message of a frame: whether another follows, so that a frame cannot be cut between the two.
std::span<const std::uint8_t> place_of(std::span<const std::uint8_t> part, std::span<const std::uint8_t> left) {
  static constexpr std::uint8_t goes_on[]{1};
  return part.size() < left.size() ? std::span<const std::uint8_t>(goes_on) : std::span<const std::uint8_t>();
}

}  // namespace

Credentials Credentials::of_secret(std::span<const std::uint8_t> secret, std::span<const std::uint8_t> token) {
  check_libcrypto();
  Credentials made{Kind::secret, crypto::hmac_sha256(bytes_of("softmrc secret"), secret)};
  if (!token.empty()) made.value = crypto::hmac_sha256(made.value, token);
  return made;
}

Handshake::Handshake(Role role, const Credentials& own) : role_(role), kind_(own.kind) {
  if (kind_ != Credentials::Kind::none) {
    check_libcrypto();
    ByteWriter prologue;
    prologue.raw(bytes_of("softmrc handshake"));
    prologue.raw(hello());
    noise_.emplace(pattern_of(kind_), role_ == Role::connector, prologue.take(), own.value);
  }
  if (role_ != Role::connector) return;
  ByteWriter out;
  out.raw(hello());
  if (noise_) out.raw(noise_->write({}));
  send_frame(frame_hello, out.take());
}

Handshake::~Handshake() {
  if (exporter_) crypto::secure_zero(exporter_->data(), exporter_->size());
}

// What a hello begins with, the same on both sides.
Bytes Handshake::hello() {
  ByteWriter out;
  out.raw(magic);
  out.number(handshake_version);
  out.number(wire_version);
  out.number(static_cast<std::uint8_t>(kind_));
  return out.take();
}

void Handshake::send_frame(std::uint8_t kind, std::span<const std::uint8_t> body) {
  const Bytes frame = framed(kind, body);
  outgoing_.insert(outgoing_.end(), frame.begin(), frame.end());
}

// A frame of the session, as one Noise message for each 65,519 bytes of it.
Bytes Handshake::sealed(crypto::NoiseCipher* cipher, std::uint8_t step, std::span<const std::uint8_t> content) const {
  Bytes text{step};
  text.insert(text.end(), content.begin(), content.end());
  if (!cipher) return framed(frame_session, text);
  Bytes body;
  for (std::span<const std::uint8_t> left = text; !left.empty();) {
    const auto part = left.first(std::min(left.size(), crypto::max_noise_message - crypto::tag_size));
    cipher->seal(place_of(part, left), part, body);
    left = left.subspan(part.size());
  }
  return framed(frame_session, body);
}

void Handshake::send(std::uint8_t step, std::span<const std::uint8_t> content) {
  const Bytes frame = sealed(session_ ? &session_->send : nullptr, step, content);
  outgoing_.insert(outgoing_.end(), frame.begin(), frame.end());
}

bool Handshake::wants_bytes() const {
  return event_ == Event::none && step_ != Step::identified && step_ != Step::offered && step_ != Step::finishing &&
         step_ != Step::done;
}

void Handshake::on_bytes(std::span<const std::uint8_t> bytes) {
  incoming_.insert(incoming_.end(), bytes.begin(), bytes.end());
  parse();
}

Handshake::Event Handshake::next_event() {
  parse();
  return std::exchange(event_, Event::none);
}

void Handshake::parse() {
  while (wants_bytes() && incoming_.size() >= 4) {
    const std::size_t size = ByteReader(incoming_).number<std::uint32_t>();
    if (size == 0 || size > (is_allowed_ ? max_frame : max_unauthenticated_frame))
      throw HandshakeRefused(has_heard() ? "sent a frame of " + std::to_string(size) + " bytes" : another_protocol);
    if (incoming_.size() - 4 < size) return;
    const Bytes frame(incoming_.begin() + 4, incoming_.begin() + 4 + static_cast<std::ptrdiff_t>(size));
    incoming_.erase(incoming_.begin(), incoming_.begin() + 4 + static_cast<std::ptrdiff_t>(size));
    try {
      handle(frame[0], std::span(frame).subspan(1));
    } catch (const HandshakeRefused&) {
      throw;
    } catch (const HostError& why) {  // of a reader: too short, or too long
      throw HandshakeRefused(has_heard() ? why.what() : another_protocol, why.what());
    }
  }
}

void Handshake::handle(std::uint8_t kind, std::span<const std::uint8_t> body) {
  if (kind == frame_refusal && (!is_confirmed_ || kind_ == Credentials::Kind::none)) raise_refusal(body);
  if (kind == frame_session && session_) return on_session(body);
  if (kind == frame_session && kind_ == Credentials::Kind::none && step_ > Step::identified) {
    ByteReader in(body);
    const auto step = in.number<std::uint8_t>();
    return on_step(step, in.rest());
  }
  if (step_ == Step::hello && kind == frame_hello) return on_hello(body);
  if (step_ == Step::confirm && kind == frame_confirm) return on_confirm(body);
  throw HandshakeRefused(has_heard() ? "sent a frame that was not its turn" : another_protocol);
}

void Handshake::check_hello(ByteReader& in) const {
  if (!std::ranges::equal(in.raw(magic.size()), magic)) throw HandshakeRefused(another_protocol);
  const auto theirs = in.number<std::uint16_t>(), wire = in.number<std::uint16_t>();
  const auto differs = [](const char* what, int its, int ours) {
    const std::string end = std::string(" of the ") + what;
    throw HandshakeRefused("speaks version " + std::to_string(its) + end + ", this side version " +
                               std::to_string(ours) + ": install the same SoftMRC on both",
                           "this side speaks version " + std::to_string(ours) + end + ", yours is " +
                               std::to_string(its) + ": install the same SoftMRC on both");
  };
  if (theirs != handshake_version) differs("handshake", theirs, handshake_version);
  if (wire != wire_version) differs("packets", wire, wire_version);
  const auto kind = in.number<std::uint8_t>();
  if (kind > static_cast<std::uint8_t>(Credentials::Kind::key)) throw HandshakeRefused(another_protocol);
  if (static_cast<Credentials::Kind>(kind) != kind_) {
    const std::string its = name_of(static_cast<Credentials::Kind>(kind)), ours = name_of(kind_);
    constexpr const char* remedy =
        ": set the same secret (SOFTMRC_SECRET) on both sides, or a key (SOFTMRC_IDENTITY) on both";
    throw HandshakeRefused("has set " + its + ", this side has set " + ours + remedy,
                           "your side has set " + its + ", its side has set " + ours + remedy);
  }
}

void Handshake::on_hello(std::span<const std::uint8_t> body) {
  ByteReader in(body);
  check_hello(in);
  Bytes none;
  if (!noise_) in.end();
  else if (!noise_->read(in.rest(), none) || !none.empty()) {
    if (kind_ == Credentials::Kind::secret)
      throw HandshakeRefused("does not know the secret", "the secret is not the same on both sides");
    throw HandshakeRefused("sent no usable key", "you sent no usable key");
  }
  if (role_ == Role::listener) {
    ByteWriter out;
    out.raw(hello());
    if (noise_) out.raw(noise_->write({}));
    send_frame(frame_hello, out.take());
    step_ = Step::confirm;
    if (noise_ && noise_->is_done()) session_ = noise_->take_session();
    return;
  }
  if (noise_ && noise_->is_done()) session_ = noise_->take_session();
  identify();
}

void Handshake::on_confirm(std::span<const std::uint8_t> body) {
  Bytes none;
  if (kind_ == Credentials::Kind::secret) {
    if (!session_->receive.open({}, body, none) || !none.empty())
      throw HandshakeRefused("does not know the secret", "the secret is not the same on both sides");
  } else if (noise_) {
    if (!noise_->read(body, none) || !none.empty())
      throw HandshakeRefused("does not have the key that it shows", "you do not have the key that you show");
    session_ = noise_->take_session();
  } else if (!body.empty()) {
    throw HandshakeRefused(another_protocol);
  }
  identify();
}

void Handshake::identify() {
  // With keys a listener has no session before it has been sent the last message of Noise.
  is_confirmed_ = role_ == Role::listener || kind_ != Credentials::Kind::key;
  if (kind_ == Credentials::Kind::key) peer_key_ = noise_->remote_static();
  step_ = Step::identified;
  event_ = Event::identified;
}

void Handshake::allow() {
  is_allowed_ = true;
  step_ = Step::offer;
  if (role_ == Role::connector) {
    Bytes body;
    if (kind_ == Credentials::Kind::secret) session_->send.seal({}, {}, body);
    else if (noise_) {
      body = noise_->write({});
      session_ = noise_->take_session();
    }
    send_frame(frame_confirm, body);
  }
  noise_.reset();
  if (session_) exporter_ = session_->exporter;
}

void Handshake::offer(std::span<const std::uint8_t> own) {
  send(step_offer, own);
  if (role_ == Role::listener) step_ = Step::ready;
}

void Handshake::ready(std::uint32_t mtu, bool waits) {
  ByteWriter out;
  out.number(mtu);
  send(step_ready, out.take());
  step_ = waits ? Step::narrowed : Step::done;
  if (!waits) event_ = Event::done;
}

void Handshake::finish(bool is_narrowed) {
  if (is_narrowed) send(step_narrowed, {});
  step_ = Step::done;
  event_ = Event::done;
}

void Handshake::refuse(const HandshakeRefused& why) {
  if (why.message_to_peer.empty()) return;
  if (session_) send(step_refusal, refusal_body(why));
  else send_frame(frame_refusal, refusal_body(why));
}

void Handshake::on_session(std::span<const std::uint8_t> body) {
  Bytes text;
  for (std::span<const std::uint8_t> left = body; !left.empty();) {
    const auto part = left.first(std::min(left.size(), crypto::max_noise_message));
    if (!session_->receive.open(place_of(part, left), part, text))
      throw HandshakeRefused("sent what is not authentic", "what you sent is not authentic");
    left = left.subspan(part.size());
  }
  is_confirmed_ = true;
  ByteReader in(text);
  const auto step = in.number<std::uint8_t>();
  on_step(step, in.rest());
}

void Handshake::on_step(std::uint8_t step, std::span<const std::uint8_t> content) {
  if (step == step_refusal) raise_refusal(content);
  ByteReader in(content);
  if (step_ == Step::offer && step == step_offer) {
    content_.assign(content.begin(), content.end());
    step_ = Step::offered;
    event_ = Event::offered;
  } else if (step_ == Step::ready && step == step_ready) {
    mtu_ = in.number<std::uint32_t>();
    in.end();
    step_ = Step::finishing;
    event_ = Event::ready;
  } else if (step_ == Step::narrowed && step == step_narrowed) {
    in.end();
    step_ = Step::done;
    event_ = Event::done;
  } else if (step == step_goodbye) {
    throw HandshakeRefused("closed the connection during the handshake");
  } else {
    throw HandshakeRefused("sent a frame that was not its turn", "you sent a frame that was not your turn");
  }
}

Bytes Handshake::goodbye() { return session_ ? sealed(&session_->send, step_goodbye, {}) : Bytes{}; }
Bytes Handshake::goodbye_of_peer() { return session_ ? sealed(&session_->receive, step_goodbye, {}) : Bytes{}; }

}  // namespace softmrc::host
