#include "host/sealing.h"

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "host/host_error.h"
#include "host/node.h"
#include "udp/device_error.h"
#include "udp/private_file.h"
#include "wire/bytes.h"

namespace softmrc::host {
namespace {

using Text = std::vector<std::uint8_t>;

void add(Text& text, std::span<const std::uint8_t> more) { text.insert(text.end(), more.begin(), more.end()); }
void add(Text& text, std::string_view more) { text.insert(text.end(), more.begin(), more.end()); }

Text end_of(const crypto::Secret& share, std::uint32_t qpn) {
  Text text(share.begin(), share.end());
  text.resize(share.size() + 4);
  wire::store32(text.data() + share.size(), qpn);
  return text;
}

void note(crypto::Cipher cipher, std::uint32_t qpn, const crypto::Secret& secret) {
  const std::string file = of_process("SOFTMRC_KEYLOG");
  if (file.empty()) return;
  char head[64];
  std::snprintf(head, sizeof head, "%s %06x ",
                cipher == crypto::Cipher::aes_256_gcm ? "AES_256_GCM" : "CHACHA20_POLY1305", qpn);
  std::string line = head;
  for (const std::uint8_t byte : secret) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    line += digits;
  }
  line += '\n';
  std::string why;
  const int fd = udp::open_private_file(file, udp::OpenMode::append, why);
  if (const int error = errno; fd < 0) {
    const std::string words = "SOFTMRC_KEYLOG names " + file + ", which cannot be written: " + why;
    if (udp::is_transient(error)) throw udp::DeviceError(error, words);  // of descriptors, for a moment
    throw HostError(words);
  }
  [[maybe_unused]] const ssize_t written = write(fd, line.data(), line.size());
  close(fd);
}

}  // namespace

bool seals(const DeviceSettings& settings, const std::string& secret, bool is_loopback_only) {
  if (settings.seal == "off") return false;
  if (settings.seal != "auto" && settings.seal != "on")
    throw HostError("seal is " + settings.seal + "; allowed: auto, on or off");
  if (settings.seal == "on" && secret.empty())
    throw HostError("seal is on, which takes a secret that all ranks share: SOFTMRC_SECRET");
  const bool is_wanted = settings.seal == "on" || (!secret.empty() && !is_loopback_only);
  if (is_wanted && !crypto::is_available())
    throw HostError("seal is " + settings.seal + ", and this was built without sealing: set seal = \"off\"");
  return is_wanted;
}

KeyShare make_key_share() {
  KeyShare share;
  for (std::size_t i = 0; i < share.own.size(); i += 8) {
    const std::uint64_t bits = random_bits();
    std::memcpy(share.own.data() + i, &bits, 8);
  }
  share.told = crypto::x25519_public(share.own);
  return share;
}

udp::SealKeys derive_keys(const KeyShare& ours, const KeyExchangeEnd& here, const crypto::Secret& theirs,
                          const KeyExchangeEnd& there, const std::string& secret) {
  crypto::ZeroizedSecret shared{};
  if (!crypto::x25519(ours.own, theirs, shared.value)) throw HostError("sent a share of keys that leaves no choice");
  Text text;
  text.reserve(shared.value.size() + secret.size());  // in one place, which can be wiped
  add(text, shared.value);
  add(text, secret);
  constexpr std::string_view salt = "softmrc face seal";
  const crypto::ZeroizedSecret prk{
      crypto::hmac_sha256({reinterpret_cast<const std::uint8_t*>(salt.data()), salt.size()}, text)};
  crypto::secure_zero(text.data(), text.size());
  const bool is_first = ours.told < theirs;
  const Text one = end_of(ours.told, here.qpn), other = end_of(theirs, there.qpn);
  const auto direction = [&](std::uint8_t which) {
    Text about;
    add(about, "softmrc seal");
    about.push_back(which);
    add(about, is_first ? one : other);
    add(about, is_first ? other : one);
    about.push_back(1);
    return crypto::hmac_sha256(prk.value, about);
  };
  udp::SealKeys keys;
  keys.cipher = here.cipher == there.cipher ? here.cipher : crypto::Cipher::chacha20_poly1305;
  keys.send = direction(is_first ? 1 : 2);
  keys.receive = direction(is_first ? 2 : 1);
  note(keys.cipher, there.qpn, keys.send);
  note(keys.cipher, here.qpn, keys.receive);
  return keys;
}

}  // namespace softmrc::host
