#include "host/sealing.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "host/device_plan.h"
#include "host/handshake.h"
#include "udp/device_error.h"
#include "udp/private_file.h"
#include "wire/bytes.h"

namespace softmrc::host {
namespace {

using Text = std::vector<std::uint8_t>;

void add(Text& text, std::span<const std::uint8_t> more) { text.insert(text.end(), more.begin(), more.end()); }
void add(Text& text, std::string_view more) { text.insert(text.end(), more.begin(), more.end()); }

void add(Text& text, std::uint32_t number) {
  text.resize(text.size() + 4);
  wire::store32(text.data() + text.size() - 4, number);
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

bool seals(const DeviceSettings& settings, bool has_secret, bool is_loopback_only) {
  if (settings.seal == "off") return false;
  if (settings.seal != "auto" && settings.seal != "on")
    throw HostError("seal is " + settings.seal + "; allowed: auto, on or off");
  if (settings.seal == "on" && !has_secret)
    throw HostError("seal is on, which takes a secret that all ranks share: SOFTMRC_SECRET");
  const bool is_wanted = settings.seal == "on" || (has_secret && !is_loopback_only);
  if (is_wanted && !crypto::is_available())
    throw HostError("seal is " + settings.seal + ", and this was built without libcrypto: set seal = \"off\"");
  return is_wanted;
}

udp::SealKeys packet_keys(const crypto::Secret& root, bool is_first, const KeyEnd& here, const KeyEnd& there) {
  const auto direction = [&](std::uint8_t which) {
    Text about;
    add(about, "softmrc packets");
    about.push_back(which);
    add(about, is_first ? here.qpn : there.qpn);
    add(about, is_first ? there.qpn : here.qpn);
    about.push_back(1);
    return crypto::hmac_sha256(root, about);
  };
  udp::SealKeys keys;
  // Both have to be good at it, or the slower one would hold up the other.
  keys.cipher = here.cipher == there.cipher ? here.cipher : crypto::Cipher::chacha20_poly1305;
  keys.send = direction(is_first ? 1 : 2);
  keys.receive = direction(is_first ? 2 : 1);
  note(keys.cipher, there.qpn, keys.send);
  note(keys.cipher, here.qpn, keys.receive);
  return keys;
}

KeyShare::KeyShare() {
  for (std::size_t i = 0; i < own.size(); i += 8) {
    const std::uint64_t bits = random_bits();
    std::memcpy(own.data() + i, &bits, 8);
  }
  public_key = crypto::x25519_public(own);
}

KeyShare::~KeyShare() { forget(); }

void KeyShare::forget() {
  crypto::secure_zero(own.data(), own.size());
  is_forgotten = true;
}

crypto::Secret shared_root(const KeyShare& ours, const crypto::Secret& theirs, std::span<const std::uint8_t> secret,
                           std::span<const std::uint8_t> salt) {
  SOFTMRC_CHECK(!ours.is_forgotten);
  crypto::ZeroizedSecret shared{};
  if (!crypto::x25519(ours.own, theirs, shared.value)) throw HostError("sent a share of keys that is no key");
  Text text;
  text.reserve(3 * shared.value.size() + secret.size());  // in one place, which can be wiped
  add(text, shared.value);
  add(text, std::min(ours.public_key, theirs));
  add(text, std::max(ours.public_key, theirs));
  add(text, secret);
  const crypto::Secret root = crypto::hmac_sha256(salt, text);
  crypto::secure_zero(text.data(), text.size());
  return root;
}

}  // namespace softmrc::host
