// A Noise handshake of two ends with an on-path attacker, who may pass on, change, cut, join, repeat and invent
// messages, in any order; and the session after it. What must hold: an end reads what the other wrote, in turn and as
// it was, or it refuses and is never done; of XX only the first message can be another's, and then nothing follows. Who
// is done has the same session as the other. Nothing but that comes of any bytes: no check of our own is broken.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "crypto/noise.h"
#include "input.h"

namespace softmrc::fuzz {
namespace {

using namespace crypto;
using Message = std::vector<std::uint8_t>;

void expect(bool promise) {
  if (!promise) std::abort();
}

// The same bytes must give the same messages, so that what was found once is found again.
struct End : NoiseHandshake {
  End(NoisePattern pattern, bool is_initiator, Bytes prologue, std::uint8_t key)
      : NoiseHandshake(pattern, is_initiator, prologue, Secret{key}, Secret{1, is_initiator}) {}
};

class Exchange {
 public:
  explicit Exchange(Input& in)
      : in_(in),
        pattern_(in.byte() % 2 ? NoisePattern::xx : NoisePattern::nn_psk0),
        are_alike_(in.byte() % 8 != 0),
        ends_{End(pattern_, true, {}, 7),
              End(pattern_, false, {}, !are_alike_ && pattern_ == NoisePattern::nn_psk0 ? 8 : 7)} {
    if (!are_alike_ && pattern_ == NoisePattern::xx) {
      const std::uint8_t prologue = 1;
      ends_[1] = End(pattern_, false, {&prologue, 1}, 7);
    }
  }

  void step() {
    const std::size_t to = in_.byte() % 2;
    const std::size_t from = 1 - to;
    if (sessions_[to] && sessions_[from]) return talk(from);
    if (ends_[from].is_our_turn() && in_.byte() % 8) write(from);
    read(to, message(from));
  }

 private:
  void write(std::size_t from) {
    written_[from].push_back(ends_[from].write(in_.bytes(in_.byte())));
    all_.push_back(written_[from].back());
  }

  // Something to hear, of what was said or of no more than the input.
  Message message(std::size_t from) {
    if (in_.byte() % 4 == 0 || all_.empty()) {
      const wire::Bytes raw = in_.bytes(in_.byte());
      return {raw.begin(), raw.end()};
    }
    Message said = in_.byte() % 2 && !written_[from].empty() ? written_[from].back() : all_[in_.byte() % all_.size()];
    switch (in_.byte() % 8) {
      case 0:
        if (!said.empty()) said[in_.word() % said.size()] ^= in_.byte();
        break;
      case 1: said.resize(in_.word() % (said.size() + 8)); break;
      case 2: {
        const Message& other = all_[in_.byte() % all_.size()];
        said.resize(std::min<std::size_t>(said.size(), in_.byte()));
        if (said.size() < other.size())
          said.insert(said.end(), other.begin() + static_cast<std::ptrdiff_t>(said.size()), other.end());
        break;
      }
      case 3: {
        const wire::Bytes key = in_.bytes(32);  // where public keys are
        std::copy_n(key.begin(), std::min(key.size(), said.size()), said.begin());
        break;
      }
      default: break;
    }
    return said;
  }

  void read(std::size_t to, const Message& heard) {
    const bool was_done = ends_[to].is_done(), had_turn = ends_[to].is_our_turn();
    const bool is_waiting = !was_done && !had_turn && !is_over_[to];
    const std::size_t number = heard_[to];
    const std::vector<Message>& said = written_[1 - to];
    // What is authentic was said by the other end, who had read all before it as it was said, with the same keys.
    const bool is_as_said = number < said.size() && said[number] == heard;
    const bool is_authentic = is_as_said && are_alike_ && !is_led_astray_;
    const bool is_first_of_xx = pattern_ == NoisePattern::xx && to == 1 && number == 0;
    Message payload{1, 2, 3};
    if (!ends_[to].read(heard, payload)) {
      expect(payload == Message({1, 2, 3}) && !(is_waiting && is_authentic));
      if (was_done || had_turn) {
        expect(ends_[to].is_done() == was_done && ends_[to].is_our_turn() == had_turn);
      } else {
        expect(!ends_[to].is_done() && !ends_[to].is_our_turn());
        is_over_[to] = true;
      }
      return;
    }
    expect(is_waiting && payload.size() >= 3 && (is_authentic || is_first_of_xx));
    ++heard_[to];
    if (is_first_of_xx) is_led_astray_ = !is_as_said;
    take(to);
    take(1 - to);
  }

  void take(std::size_t end) {
    if (!ends_[end].is_done() || sessions_[end]) return;
    sessions_[end].emplace(ends_[end].take_session());
    if (pattern_ == NoisePattern::xx) expect(ends_[end].remote_static() == x25519_public(Secret{7}));
    if (!sessions_[1 - end]) return;
    expect(are_alike_ && !is_led_astray_);
    expect(sessions_[0]->hash == sessions_[1]->hash && sessions_[0]->exporter == sessions_[1]->exporter);
  }

  // One message of the session, after something else in its place.
  void talk(std::size_t from) {
    const Bytes text = in_.bytes(in_.byte());
    const Bytes associated = in_.bytes(in_.byte() % 32);
    NoiseCipher& out = sessions_[from]->send;
    NoiseCipher& into = sessions_[1 - from]->receive;
    const std::uint64_t nonce = out.nonce();
    expect(into.nonce() == nonce);
    Message sealed, opened;
    out.seal(associated, text, sealed);
    all_.push_back(sealed);
    const Message other = message(from);
    if (other != sealed) expect(!into.open(associated, other, opened) && opened.empty() && into.nonce() == nonce);
    expect(into.open(associated, sealed, opened) && std::equal(opened.begin(), opened.end(), text.begin(), text.end()));
    expect(!into.open(associated, sealed, opened) && into.nonce() == nonce + 1);
  }

  Input& in_;
  NoisePattern pattern_;
  bool are_alike_;  // psk, or prologue
  std::array<NoiseHandshake, 2> ends_;
  std::array<std::vector<Message>, 2> written_;
  std::vector<Message> all_;
  std::array<std::size_t, 2> heard_{};
  std::array<bool, 2> is_over_{};
  bool is_led_astray_ = false;  // XX: the responder has taken another first message
  std::array<std::optional<NoiseSession>, 2> sessions_;
};

}  // namespace
}  // namespace softmrc::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace softmrc;
  if (!crypto::is_available()) return 0;
  fuzz::Input in(data, size);
  fuzz::Exchange exchange(in);
  return fuzz::run_steps(exchange, in);
}
