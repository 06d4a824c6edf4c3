// The handshake of C faces with somebody in the middle, who may cut, change, repeat, insert and hold back what two ends
// say, and hand offers of any bytes to who reads them. What must hold: an end is never handed an offer that the other
// did not make; none is done where bytes of a proof were changed; and nothing but a HostError ends it.
#include <array>
#include <cstdlib>
#include <vector>

#include "host/handshake.h"
#include "host/node.h"
#include "input.h"

namespace softmrc::fuzz {
namespace {

using namespace host;

void expect(bool promise) {
  if (!promise) std::abort();
}

class Speaker final : public HandshakeDelegate {
 public:
  Speaker(std::uint8_t mark, std::size_t size) : own_(size, mark) {}
  Bytes offer() override { return own_; }
  void accept(std::span<const std::uint8_t> theirs) override { heard_.assign(1, Bytes(theirs.begin(), theirs.end())); }
  const Bytes& own() const { return own_; }
  bool has_heard() const { return !heard_.empty(); }
  const Bytes& heard() const { return heard_.front(); }

 private:
  Bytes own_;
  std::vector<Bytes> heard_;
};

class Middle {
 public:
  explicit Middle(Input& in)
      : in_(in),
        speakers_{Speaker(1, in.byte()), Speaker(2, in.byte())},
        ends_{Handshake(Handshake::Role::connector, "secret", {}, speakers_[0]),
              Handshake(Handshake::Role::listener, in.byte() % 8 ? "secret" : "another", {}, speakers_[1])} {}

  void run() {
    for (int turn = 0; turn < 8 && !is_over_; ++turn) pass(turn % 2);
    for (std::size_t i = 0; i < 2; ++i)
      expect(!speakers_[i].has_heard() || speakers_[i].heard() == speakers_[1 - i].own());
    expect(!is_spoilt_ || !(ends_[0].is_done() && ends_[1].is_done()));
  }

 private:
  // What one end has to say, to the other.
  void pass(std::size_t from) {
    Bytes said = ends_[from].take_outgoing();
    all_.insert(all_.end(), said.begin(), said.end());
    switch (in_.byte() % 8) {
      case 0: change(said); break;
      case 1: said.resize(said.size() - std::min<std::size_t>(said.size(), in_.byte())); break;
      case 2: {
        const wire::Bytes more = in_.bytes(in_.byte());
        const std::size_t at = said.empty() ? 0 : in_.word() % said.size();
        said.insert(said.begin() + static_cast<std::ptrdiff_t>(at), more.begin(), more.end());
        break;
      }
      case 3: said = all_; break;
      default: break;
    }
    const std::size_t cut = said.empty() ? 0 : in_.word() % said.size();
    tell(1 - from, std::span(said).first(cut));
    tell(1 - from, std::span(said).subspan(cut));
  }

  // The last byte of a frame is one of a proof, or of what is proved.
  void change(Bytes& said) {
    if (said.empty()) return;
    const std::uint8_t flipped = static_cast<std::uint8_t>(1 << in_.byte() % 8);
    const std::size_t back = in_.byte() % std::min<std::size_t>(said.size(), 32);
    said[said.size() - 1 - back] ^= flipped;
    is_spoilt_ = true;
  }

  void tell(std::size_t to, std::span<const std::uint8_t> bytes) {
    if (is_over_ || bytes.empty()) return;
    try {
      ends_[to].on_bytes(bytes);
    } catch (const HostError& refusal) {
      expect(!Handshake::error_frame(refusal.what()).empty());
      is_over_ = true;
    }
  }

  Input& in_;
  std::array<Speaker, 2> speakers_;
  std::array<Handshake, 2> ends_;
  Bytes all_;
  bool is_over_ = false;
  bool is_spoilt_ = false;
};

// What is read is written as the same bytes, and read again as the same.
void read_offer(std::span<const std::uint8_t> bytes) {
  try {
    const Bytes once = encode(decode_offer(bytes));
    expect(encode(decode_offer(once)) == once);
  } catch (const HostError&) {}
}

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
