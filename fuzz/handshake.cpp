// The handshake with an on-path attacker, who may cut, change, repeat, insert and hold back what two ends say, with
// a secret, with keys and without either; and two ends that may refuse each other at every step, and offer any bytes.
// What must hold where there are credentials: what an end has taken in when it gets on is what the other said, byte for
// byte; only ends with the same secret get on, and with keys each learns the other's; both derive the same keys, and
// know each other's last frame; an end that has heard the other in their session can be refused only by it. In any
// case: nothing but HandshakeRefused ends a handshake, and an offer that was read is written as the same bytes.
#include <array>
#include <cstdlib>
#include <optional>
#include <string>

#include "host/handshake.h"
#include "host/offer.h"
#include "input.h"

namespace softmrc::fuzz {
namespace {

using namespace host;

void expect(bool promise) {
  if (!promise) std::abort();
}

// What is read is written as the same bytes.
void read_offer(std::span<const std::uint8_t> bytes) {
  try {
    const Bytes once = encode(decode_offer(bytes));
    expect(std::ranges::equal(once, bytes));
  } catch (const HandshakeRefused&) {}
}

Offer an_offer(Input& in) {
  Offer offer{4096, in.byte() % 2 == 0, in.byte() % 2 == 0, {}, 64, 64, {}, {}, {}};
  const unsigned planes = 1 + in.byte() % 4u;
  for (unsigned qp = 0; qp < 1 + in.byte() % 3u; ++qp) {
    OfferedQp& one = offer.qps.emplace_back(OfferedQp{3u + in.byte(), in.byte(), in.longword(), {}});
    for (std::uint8_t p = 0; p < planes; ++p) {
      udp::PeerPlane& plane = one.planes.emplace_back();
      plane.address = wire::Ipv4{10, 0, p, in.byte()};
      plane.port = 4791;
      plane.source_ports = {4791, 4792};
    }
  }
  for (unsigned i = 0; i < in.byte() % 8u; ++i) offer.regions.push_back({in.word(), 1u + in.byte(), in.word()});
  return offer;
}

Credentials credentials(Input& in, std::uint8_t kind, std::uint8_t mark) {
  constexpr std::array<std::uint8_t, 3> secret{'a', 'b', 'c'};
  switch (kind) {
    case 0: return {};
    case 1: return Credentials::of_secret(std::span(secret).first(in.byte() % 8 ? 2 : 3));
    case 2: return Credentials::of_secret(std::span(secret).first(2), std::array{in.byte()});
    default: return Credentials::of_key(crypto::Secret{mark});
  }
}

struct End {
  End(Handshake::Role role, const Credentials& own, Input& in) : credentials(own), handshake(role, own) {
    if (in.byte() % 8 == 0) {
      const wire::Bytes any = in.bytes(in.byte());
      offer.assign(any.begin(), any.end());
    } else {
      offer = encode(an_offer(in));
    }
  }

  const Credentials credentials;
  Handshake handshake;
  Bytes offer;
  Bytes said, heard;
  bool is_over = false;
  bool has_offer = false;  // the other's
  std::string refusal;     // sent to the other
};

class Middle {
 public:
  explicit Middle(Input& in) : in_(in), kind_(in.byte() % 4), mtu_(in.word()), is_narrowed_(in.byte() % 4 == 0) {
    for (std::uint8_t i = 0; i < 2; ++i) {
      const std::uint8_t kind = in.byte() % 16 ? kind_ : in.byte() % 4;
      const Credentials own = softmrc::fuzz::credentials(in, kind, static_cast<std::uint8_t>(i + 1));
      ends_[i].emplace(i ? Handshake::Role::listener : Handshake::Role::connector, own, in);
    }
    is_alike_ = is_alike();
  }

  void run() {
    for (int turn = 0; turn < 16; ++turn) pass(turn % 2);
    if (is_open() || !(ends_[0]->handshake.is_done() && ends_[1]->handshake.is_done())) return;
    for (std::size_t i = 0; i < 2; ++i)
      expect(ends_[i]->handshake.goodbye() == ends_[1 - i]->handshake.goodbye_of_peer());
    expect(ends_[1]->handshake.mtu() == mtu_);
  }

 private:
  bool is_alike() const {
    const Credentials &a = ends_[0]->credentials, &b = ends_[1]->credentials;
    return a.kind == b.kind && (a.kind != Credentials::Kind::secret || a.value == b.value);
  }
  bool is_open() const {
    return ends_[0]->credentials.kind == Credentials::Kind::none ||
           ends_[1]->credentials.kind == Credentials::Kind::none;
  }

  // What one end has to say, to the other.
  void pass(std::size_t from) {
    Bytes words = ends_[from]->handshake.take_outgoing();
    Bytes& all = ends_[from]->said;
    all.insert(all.end(), words.begin(), words.end());
    switch (in_.byte() % 16) {
      case 0:
        if (!words.empty()) words[in_.word() % words.size()] ^= static_cast<std::uint8_t>(1 << in_.byte() % 8);
        break;
      case 1: words.resize(words.size() - std::min<std::size_t>(words.size(), in_.byte())); break;
      case 2: {
        const wire::Bytes more = in_.bytes(in_.byte());
        const std::size_t at = words.empty() ? 0 : in_.word() % words.size();
        words.insert(words.begin() + static_cast<std::ptrdiff_t>(at), more.begin(), more.end());
        break;
      }
      case 3: words = ends_[in_.byte() % 2]->said; break;  // once more, or reflected
      default: break;
    }
    const std::size_t cut = words.empty() ? 0 : in_.word() % words.size();
    tell(1 - from, std::span(words).first(cut));
    tell(1 - from, std::span(words).subspan(cut));
  }

  void tell(std::size_t to, std::span<const std::uint8_t> bytes) {
    End& end = *ends_[to];
    if (end.is_over) return;
    try {
      end.heard.insert(end.heard.end(), bytes.begin(), bytes.end());
      end.handshake.on_bytes(bytes);
      for (Handshake::Event event; (event = end.handshake.next_event()) != Handshake::Event::none;) on(to, event);
    } catch (const HandshakeRefused& why) {
      const std::string words = why.what();
      // A listener with a key has no session before it has the connector's, and until then refuses in the clear.
      const bool is_in_session = end.handshake.is_authenticated() &&
                                 (to == 1 || end.has_offer || end.credentials.kind != Credentials::Kind::key);
      if (words.starts_with("refused: ") && is_in_session && !is_open())
        expect(words == "refused: " + ends_[1 - to]->refusal);
      end.refusal = why.message_to_peer.substr(0, 200);
      end.handshake.refuse(why);
      end.is_over = true;
    }
  }

  void on(std::size_t to, Handshake::Event event) {
    End &end = *ends_[to], &other = *ends_[1 - to];
    Handshake& handshake = end.handshake;
    if (end.credentials.kind != Credentials::Kind::none) {
      expect(is_alike_);
      expect(end.heard.size() - handshake.rest().size() <= other.said.size());
      expect(std::equal(end.heard.begin(), end.heard.end() - static_cast<std::ptrdiff_t>(handshake.rest().size()),
                        other.said.begin()));
    }
    if (event != Handshake::Event::done && in_.byte() % 32 == 0)
      throw HandshakeRefused("is not wanted", "you are not wanted", in_.byte() % 2);
    end.has_offer = end.has_offer || event == Handshake::Event::offered;
    switch (event) {
      case Handshake::Event::identified:
        if (end.credentials.kind == Credentials::Kind::key)
          expect(handshake.peer_key() == crypto::x25519_public(other.credentials.value));
        handshake.allow();
        expect(handshake.exporter().has_value() == !is_open());
        if (other.handshake.exporter()) expect(handshake.exporter() == other.handshake.exporter());
        if (to == 0) handshake.offer(end.offer);
        return;
      case Handshake::Event::offered:
        if (!is_open()) expect(handshake.content() == other.offer);
        expect(encode(decode_offer(handshake.content())) == handshake.content());
        return to == 0 ? handshake.ready(mtu_, is_narrowed_) : handshake.offer(end.offer);
      case Handshake::Event::ready: return handshake.finish(is_narrowed_);
      case Handshake::Event::done:
      case Handshake::Event::none: return;
    }
  }

  Input& in_;
  const std::uint8_t kind_;
  const std::uint32_t mtu_;
  const bool is_narrowed_;
  std::array<std::optional<End>, 2> ends_;  // the connector, the listener
  bool is_alike_ = false;
};

}  // namespace
}  // namespace softmrc::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  if (data[0] & 1) {
    softmrc::fuzz::read_offer({data + 1, size - 1});
    return 0;
  }
  softmrc::fuzz::Input in(data + 1, size - 1);
  softmrc::fuzz::Middle(in).run();
  return 0;
}
