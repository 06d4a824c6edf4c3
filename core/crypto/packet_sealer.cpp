#include "crypto/packet_sealer.h"

#include <cstring>

#include "base/check.h"

namespace softmrc::crypto {

using wire::header_tag_size;
using wire::SealHeader;

PacketSealer::PacketSealer(Cipher cipher, const Secret& secret, std::uint32_t to_qpn, const KeyUpdatePolicy& key_update,
                           std::shared_ptr<const ForkGuard> guard)
    : cipher_(cipher),
      keys_(cipher, secret, Aead::Use::seal),
      to_qpn_(to_qpn),
      key_update_(key_update),
      guard_(std::move(guard)) {}

// spec: rekeying
bool PacketSealer::is_due(Time now) const {
  const std::uint64_t served = number_ - began_at_;
  if (!replace_by_ || served >= key_update_.most) return true;
  if (!is_heard_ || heard_ahead() < 0) return false;
  return heard_ahead() > 0 || served >= key_update_.packets || now >= *replace_by_;
}

void PacketSealer::replace_keys(Time now) {
  if (replace_by_) {
    keys_ = PacketKeys(cipher_, ZeroizedSecret{next_secret(keys_.secret())}.value, Aead::Use::seal);
    ++epoch_;
  }
  began_at_ = number_;
  replace_by_ = now + key_update_.after;
}

std::size_t PacketSealer::seal(Time now, std::uint8_t* packet, std::size_t clear, Bytes imm, Bytes payload,
                               Bytes padding) {
  SOFTMRC_CHECK(guard_->is_ours());
  SOFTMRC_CHECK(number_ < ReplayWindow::numbers);
  if (is_due(now)) [[unlikely]]
    replace_keys(now);
  const bool is_write = wire::is_write(static_cast<wire::Opcode>(packet[0]));
  packet[1] = static_cast<std::uint8_t>((packet[1] & 0xF0) | wire::sealed_version);
  std::uint8_t* key = packet + clear;
  SealHeader{to_qpn_, epoch_, number_}.emit(key);
  std::size_t front = clear + SealHeader::size;
  if (is_write) {
    wire::store64(packet + front, keys_.header_tag({packet, front}));
    front += header_tag_size;
  }
  keys_.aead().seal(keys_.nonce(number_++), {packet, front}, {imm, payload, padding}, packet + front);
  return front + imm.size() + payload.size() + padding.size() + tag_size;
}

PacketOpener::PacketOpener(Cipher cipher, const Secret& secret) : cipher_(cipher) {
  keys_.emplace_back(cipher, secret, Aead::Use::open);
}

PacketKeys* PacketOpener::derive_keys(Time now, std::uint8_t epoch) {
  const auto ahead = static_cast<std::uint8_t>(epoch - epoch_);
  if (ahead == 0xFF) return old_ && now < old_until_ ? &*old_ : nullptr;
  if (ahead >= max_ahead) return nullptr;
  while (keys_.size() <= ahead)
    keys_.emplace_back(cipher_, ZeroizedSecret{next_secret(keys_.back().secret())}.value, Aead::Use::open);
  return &keys_[ahead];
}

void PacketOpener::follow(Time now, std::uint8_t epoch) {
  const auto ahead = static_cast<std::uint8_t>(epoch - epoch_);
  if (ahead == 0 || ahead == 0xFF) return;
  old_.emplace(std::move(keys_[ahead - 1]));
  old_until_ = now + old_key_life;
  keys_.erase(keys_.begin(), keys_.begin() + ahead);
  epoch_ = epoch;
}

// spec: sealed-packets sealed-trims
OpenStatus PacketOpener::open(Time now, MutableBytes& packet, bool is_trimmed) {
  const std::size_t clear = wire::clear_size(packet, is_trimmed);
  if (clear == 0) return OpenStatus::unsealed;
  std::uint8_t* p = packet.data();
  const SealHeader key = SealHeader::parse(p + clear);
  if (key.number >= ReplayWindow::numbers) return OpenStatus::forged;
  if (!seen_.is_fresh(key.number) || (is_trimmed && cut_ && !cut_->is_fresh(key.number))) return OpenStatus::replayed;
  PacketKeys* keys = derive_keys(now, key.epoch);
  if (!keys) return OpenStatus::forged;
  const bool is_write = wire::is_write(static_cast<wire::Opcode>(p[0]));
  std::size_t front = clear + SealHeader::size;
  // It costs little, so that forgers of large packets cost little, too.
  if (is_write) {
    if (wire::load64(p + front) != keys->header_tag({p, front})) return OpenStatus::forged;
    front += header_tag_size;
  }
  if (!is_trimmed) {
    const std::size_t hidden = packet.size() - front - tag_size;
    if (!keys->aead().open(keys->nonce(key.number), {p, front}, packet.subspan(front, hidden), p + front + hidden))
      return OpenStatus::forged;
    // What was hidden stays where it is; its headers join it.
    std::memmove(p + front - clear, p, clear);
    packet = packet.subspan(front - clear, clear + hidden);
  } else {
    packet = packet.first(clear);
  }
  packet[1] &= 0xF0;
  if (is_trimmed && !cut_) cut_ = std::make_unique<ReplayWindow>();
  (is_trimmed ? *cut_ : seen_).add(key.number);
  follow(now, key.epoch);
  return OpenStatus::fresh;
}

}  // namespace softmrc::crypto
