// Opens packets that may have been changed, cut, put together, or sent before. What must hold: whatever opens is what
// was encrypted, as it was or its headers alone where it was trimmed; no packet opens twice, and none that was trimmed
// after it was there as a whole.
#include <array>
#include <cstdlib>
#include <vector>

#include "crypto/packet_sealer.h"
#include "input.h"
#include "wire/packet.h"

namespace softmrc::fuzz {
namespace {

using namespace crypto;

void expect(bool promise) {
  if (!promise) std::abort();
}

struct Sent {
  std::vector<std::uint8_t> plain;
  std::vector<std::uint8_t> sealed;
  bool was_opened = false;
  bool was_trimmed = false;
};

constexpr std::array opcodes{wire::Opcode::write_first,
                             wire::Opcode::write_middle,
                             wire::Opcode::write_last,
                             wire::Opcode::write_last_imm,
                             wire::Opcode::write_only,
                             wire::Opcode::write_only_imm,
                             wire::Opcode::acknowledge,
                             wire::Opcode::sack,
                             wire::Opcode::nack,
                             wire::Opcode::probe,
                             wire::Opcode::endpoint_request,
                             wire::Opcode::endpoint_response};

class Attack {
 public:
  Attack(Input& in, Cipher cipher)
      : in_(in),
        out_(cipher, Secret{1}, 0xABCDEF, {1 + in.byte() % 8u, seconds(1 + in.byte())}, std::make_shared<ForkGuard>()),
        inbound_(cipher, Secret{1}) {}

  void step() {
    now_ = now_ + milliseconds(in_.byte());
    switch (in_.byte() % 4) {
      case 0: return send();
      case 1: return change();
      case 2: return splice();
      default: {
        const wire::Bytes raw = in_.bytes(in_.byte());
        return open({raw.begin(), raw.end()});
      }
    }
  }

 private:
  void send() {
    const auto opcode = opcodes[in_.byte() % opcodes.size()];
    Sent sent;
    sent.plain.assign(wire::Bth::size, 0);
    sent.plain[0] = static_cast<std::uint8_t>(opcode);
    sent.plain[8] = in_.byte();
    const bool is_write = wire::is_write(opcode);
    const std::size_t clear = is_write ? wire::through_reth(sent.plain[8] & 0x10) : wire::Bth::size + in_.byte() % 44;
    sent.plain.resize(clear, in_.byte());
    const std::vector<std::uint8_t> payload(is_write ? in_.byte() : 0, in_.byte());
    sent.sealed = sent.plain;
    sent.sealed.resize(clear + payload.size() + wire::sealed_data_overhead);
    sent.sealed.resize(out_.seal(now_, sent.sealed.data(), clear, {}, payload, {}));
    sent.plain.insert(sent.plain.end(), payload.begin(), payload.end());
    sent_.push_back(std::move(sent));
  }

  void change() {
    if (sent_.empty()) return;
    std::vector<std::uint8_t> packet = sent_[in_.byte() % sent_.size()].sealed;
    for (int changes = in_.byte() % 4; changes; --changes) packet[in_.word() % packet.size()] ^= in_.byte();
    if (in_.byte() % 4 == 0) packet.resize(in_.word() % (packet.size() + 8));
    open(std::move(packet));
  }

  void splice() {
    if (sent_.empty()) return;
    std::vector<std::uint8_t> packet = sent_[in_.byte() % sent_.size()].sealed;
    const std::vector<std::uint8_t>& other = sent_[in_.byte() % sent_.size()].sealed;
    const std::size_t at = in_.word() % (packet.size() + 1);
    packet.resize(at);
    if (at < other.size()) packet.insert(packet.end(), other.begin() + static_cast<std::ptrdiff_t>(at), other.end());
    open(std::move(packet));
  }

  void open(std::vector<std::uint8_t> packet) {
    const bool is_trimmed = in_.byte() % 4 == 0;
    const std::size_t clear = wire::clear_size(packet, is_trimmed);
    const std::uint64_t number = clear ? wire::SealHeader::parse(packet.data() + clear).number : 0;
    MutableBytes found = packet;
    if (inbound_.open(now_, found, is_trimmed) != OpenStatus::fresh) return;
    expect(number < sent_.size() && !sent_[number].was_opened);
    bool& is_again = is_trimmed ? sent_[number].was_trimmed : sent_[number].was_opened;
    expect(!is_again);
    is_again = true;
    const wire::Bytes plain = wire::Bytes(sent_[number].plain).first(is_trimmed ? clear : sent_[number].plain.size());
    expect(std::equal(found.begin(), found.end(), plain.begin(), plain.end()));
  }

  Input& in_;
  Time now_{0};
  PacketSealer out_;
  PacketOpener inbound_;
  std::vector<Sent> sent_;
};

}  // namespace
}  // namespace softmrc::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace softmrc;
  if (!crypto::is_available()) return 0;
  fuzz::Input in(data, size);
  fuzz::Attack attack(in, in.byte() % 2 ? crypto::Cipher::aes_256_gcm : crypto::Cipher::chacha20_poly1305);
  return fuzz::run_steps(attack, in);
}
