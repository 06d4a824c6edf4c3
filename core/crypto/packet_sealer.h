// The two directions of an encrypted queue pair. One numbers packets and closes them; the other opens what the peer
// closed, each number once. Bytes in, bytes out: whose packets they are, and by which way they go, is for others.
//
// Keys are replaced on the run: the sender begins with the next one when the old one has served long enough, and says
// so in every packet; the receiver follows as soon as one is authentic, and takes the old one for a while yet. Then
// it replaces its own sending key, too, which is how the sender learns that the new key has arrived: without
// that it keeps the key.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/time.h"
#include "crypto/fork_guard.h"
#include "crypto/packet_keys.h"
#include "crypto/replay_window.h"
#include "wire/sealed.h"

namespace softmrc::crypto {

// When a key has served long enough: then the next one follows, if the peer is known to have this one. Where it is
// not, for as long as an outage of one way takes, the receiver must not lose count of keys. But no key serves for
// more than `most`.
struct KeyUpdatePolicy {
  std::uint64_t packets = std::uint64_t{1} << 36;
  Duration after = seconds(3600);
  std::uint64_t most = std::uint64_t{1} << 36;
};

class PacketSealer {
 public:
  PacketSealer(Cipher cipher, const Secret& secret, std::uint32_t to_qpn, const KeyUpdatePolicy& key_update,
               std::shared_ptr<const ForkGuard> guard);

  // `packet` holds the headers that stay in the clear; it has space behind them for KEY, for the header's tag where
  // there is something to hide, for that, and for the tag. Returns the size of all.
  std::size_t seal(Time now, std::uint8_t* packet, std::size_t clear, Bytes imm, Bytes payload, Bytes padding);

  // Something of the peer's was authentic, and this is the newest epoch that it has used. It replaces its key when it
  // has seen a new one of ours, or when its own has served and it has seen ours of the same epoch: so neither end is
  // ever more than one key ahead of what it has heard, nor more than two ahead of what the other has.
  void on_heard(std::uint8_t epoch) {
    heard_ = epoch;
    is_heard_ = true;
  }

  std::uint8_t epoch() const { return epoch_; }
  std::uint64_t sealed() const { return number_; }

 private:
  // How far the peer's epoch is ahead of this one; epochs are numbers modulo 256.
  std::int8_t heard_ahead() const { return static_cast<std::int8_t>(heard_ - epoch_); }
  bool is_due(Time now) const;
  void replace_keys(Time now);

  Cipher cipher_;
  PacketKeys keys_;
  std::uint32_t to_qpn_;
  KeyUpdatePolicy key_update_;
  std::shared_ptr<const ForkGuard> guard_;
  std::uint8_t epoch_ = 0;
  std::uint64_t number_ = 0;
  std::uint64_t began_at_ = 0;      // the first number under this key
  std::optional<Time> replace_by_;  // from the first packet on
  std::uint8_t heard_ = 0;          // the newest epoch of the peer's
  bool is_heard_ = false;           // the peer was, ever
};

enum class OpenStatus : std::uint8_t {
  fresh,     // authentic, and the first of its number
  unsealed,  // not an encrypted packet
  forged,    // not under a key that the peer has, or changed since
  replayed,  // seen before, or too old to know
};

class PacketOpener {
 public:
  // How long the old key is taken, once the new one was seen: two of the longest round trips that a timeout allows for.
  // An end that only receives measures none.
  static constexpr Duration old_key_life = seconds(2);
  // Whole keys that may have been lost with all packets under them.
  static constexpr std::uint8_t max_ahead = 16;

  PacketOpener(Cipher cipher, const Secret& secret);

  // In place. `packet` becomes what was encrypted, as wire::parse takes it, without an ICRC; of a trimmed one the
  // headers.
  OpenStatus open(Time now, MutableBytes& packet, bool is_trimmed);

  std::uint8_t epoch() const { return epoch_; }
  // When the old key has to go; never where there is none.
  Time old_until() const { return old_ ? old_until_ : Time::never(); }
  void drop_old(Time now) {
    if (now >= old_until()) old_.reset();
  }

 private:
  // Null: none that may be used.
  PacketKeys* derive_keys(Time now, std::uint8_t epoch);
  void follow(Time now, std::uint8_t epoch);

  Cipher cipher_;
  std::uint8_t epoch_ = 0;
  std::optional<PacketKeys> old_;
  Time old_until_ = Time::long_ago();
  std::vector<PacketKeys> keys_;  // of this epoch, and of those that may follow, as far as they were needed
  ReplayWindow seen_;
  std::unique_ptr<ReplayWindow> cut_;  // likewise of trimmed ones, from the first on: the whole packet may yet come
};

}  // namespace softmrc::crypto
