// What the responder owes its peer: SACKs, NACKs and transport ACKs, in the order they should leave.
// Plain SACKs overwrite each other while they wait, since the newest says all that the older did, and as many of them
// are sent as it takes to report everything; marked ones, answers to probes and NACKs each report on one packet's path
// and are kept apart. Bitmaps are filled in when a reply leaves.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/ring.h"
#include "base/serial.h"
#include "base/time.h"
#include "proto/transmit.h"
#include "wire/packet.h"

namespace softmrc::proto {

// The packet that a reply is about.
struct Trigger {
  Psn psn;
  std::uint32_t entropy = 0;
  std::uint16_t ticks = 0;
  std::uint8_t port = 0;
};

struct Reply {
  enum class Kind : std::uint8_t { sack, nack, ack };
  Kind kind = Kind::sack;
  wire::Mark mark = wire::Mark::none;
  wire::NackReason reason{};
  wire::Syndrome syndrome = wire::Syndrome::ack;
  bool answers_probe = false;
  std::uint16_t probe_id = 0;
  Trigger trigger;
};

// spec: sack-triggers
class AckGenerator {
 public:
  AckGenerator(std::uint32_t threshold_bytes, Duration gap) : threshold_(threshold_bytes), gap_(gap) {}

  // A data packet was taken. `must` is set when this packet asks for a SACK by itself.
  void on_packet(Time now, const Trigger& trigger, std::uint32_t bytes, bool must, bool congestion) {
    counted_ += bytes < 1024 ? 1024 : bytes;
    if (congestion) {
      Reply& r = keep(Reply::Kind::sack, trigger);
      r.mark = wire::Mark::skip_once;
      counted_ = 0;
    } else if (must || is_due(now)) {
      owe_plain(now, trigger);
    } else if (is_held_back()) {
      held_back_ = trigger;
    }
  }
  // When the gap after the last SACK is over, if one waits for that: a sender whose window is full sends nothing more
  // that could call for it.
  Time deadline() const { return is_held_back() ? last_at_ + gap_ : Time::never(); }
  void on_timer(Time now) {
    if (deadline() <= now) owe_plain(now, held_back_);
  }
  void on_probe(const Trigger& trigger, std::uint16_t probe_id) {
    Reply& r = keep(Reply::Kind::sack, trigger);
    r.answers_probe = true;
    r.probe_id = probe_id;
  }
  void nack(const Trigger& trigger, wire::NackReason reason) { keep(Reply::Kind::nack, trigger).reason = reason; }
  void ack(std::uint8_t port) {
    ack_wanted_ = true;
    ack_port_ = port;
  }
  // A refusal of the request itself; it outlives the queue pair's fall into error.
  void nak(const Trigger& trigger, wire::Syndrome syndrome) { keep(Reply::Kind::ack, trigger).syndrome = syndrome; }

  // With this SACK nothing is left to report: of the requested SACKs none need follow; or one, to
  // answer the packet that requested it, if this was not it.
  void on_all_reported(const Reply& told) {
    const bool is_plain = told.mark == wire::Mark::none && !told.answers_probe;
    plain_owed_ = is_plain ? 0 : std::min(plain_owed_, 1u);
  }

  bool empty() const { return kept_.empty() && !plain_owed_ && !ack_wanted_; }
  // Where what the next reply is for came in.
  std::uint8_t next_port() const {
    return !kept_.empty() ? kept_.front().trigger.port : plain_owed_ ? plain_.port : ack_port_;
  }

  Reply take() {
    Reply r;
    if (!kept_.empty()) {
      r = kept_.front();
      kept_.pop();
    } else if (plain_owed_) {
      r.trigger = plain_;
      --plain_owed_;
    } else {
      r.kind = Reply::Kind::ack;
      r.trigger.port = ack_port_;
      ack_wanted_ = false;
    }
    return r;
  }

 private:
  // A peer that floods us with marks or trims must not make us hoard: the newest reports are the ones worth sending.
  static constexpr std::size_t max_kept = 1024;

  // Where packets come fast, as often as bytes say would be more often than anybody needs to know.
  bool is_due(Time now) const {
    return counted_ >= threshold_ && (now - last_at_ >= gap_ || counted_ / 4 >= threshold_);
  }
  bool is_held_back() const { return counted_ >= threshold_; }
  void owe_plain(Time now, const Trigger& trigger) {
    last_at_ = now;
    plain_ = trigger;
    if (plain_owed_ < max_kept) ++plain_owed_;
    counted_ = 0;
  }

  Reply& keep(Reply::Kind kind, const Trigger& trigger) {
    if (kept_.size() >= max_kept) kept_.pop();
    Reply r;
    r.kind = kind;
    r.trigger = trigger;
    kept_.push(r);
    return kept_.back();
  }

  std::uint32_t threshold_;
  std::uint32_t counted_ = 0;
  Duration gap_;
  Time last_at_ = Time::long_ago();
  Trigger held_back_;  // what the SACK that waits for the gap to end is about
  Ring<Reply> kept_;
  Trigger plain_;
  std::uint32_t plain_owed_ = 0;
  bool ack_wanted_ = false;
  std::uint8_t ack_port_ = 0;
};

}  // namespace softmrc::proto
