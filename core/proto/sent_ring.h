// What has been sent and not yet been acknowledged, one record a PSN.
// Records in flight hang on two lists: all of them in the order they were sent, and those of each EV in that EV's
// order. Links are the low 16 bits of a PSN, which name a record uniquely inside any allowed window and survive the
// ring's doubling; a link to itself ends a list.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ring.h"
#include "base/serial.h"
#include "base/time.h"
#include "proto/ev_set.h"

namespace softmrc::proto {

enum class SentState : std::uint8_t {
  acked,  // acknowledged, or the slot was never used
  in_flight,
  lost,  // declared lost, waiting for retransmission
};

// Which transmission of a packet an acknowledgement of it answers.
enum class AckedCopy : std::uint8_t {
  newest,   // no earlier one can arrive any more, or its timestamp said so
  unknown,  // an earlier one was given up, but may still arrive
  earlier,  // its timestamp said so
};

struct SentRecord {
  Time sent_at{};
  std::uint16_t msn = 0;
  std::uint16_t ev = no_ev;
  std::uint16_t previous_ev = no_ev;  // of the transmission that was declared lost
  std::uint16_t bytes = 0;            // nominal size
  std::uint16_t older = 0, newer = 0;
  std::uint16_t ev_older = 0, ev_newer = 0;
  SentState state = SentState::acked;
  std::uint8_t tx_count = 0;
  bool on_ev_list : 1 = false;
  bool path_charged : 1 = false;    // the verdict of loss counted against its EV
  bool window_charged : 1 = false;  // and against the congestion window
  bool is_ambiguous = false;        // retransmitted by a timer, without a verdict on the first copy
  bool was_nacked = false;          // the last transmission is known not to have been taken
  AckedCopy answers = AckedCopy::newest;
};
static_assert(sizeof(SentRecord) == 32);

class SentRing {
 public:
  void start(Psn first, std::uint16_t evs) {
    first_ = first;
    ev_lists_.assign(evs, List{});
  }

  SentRecord& operator[](Psn psn) { return records_[psn.value]; }
  const SentRecord& operator[](Psn psn) const { return records_[psn.value]; }

  // The oldest PSN not yet acknowledged cumulatively: the low edge of the window.
  Psn first() const { return first_; }
  void advance(Psn first) { first_ = first; }

  void reserve(std::uint32_t count) { records_.reserve(first_.value, count); }

  // The record's transmission fields are set; it joins both lists at their young end.
  void link(Psn psn) {
    append(in_flight_, psn, &SentRecord::older, &SentRecord::newer);
    append(ev_lists_[records_[psn.value].ev], psn, &SentRecord::ev_older, &SentRecord::ev_newer);
    records_[psn.value].on_ev_list = true;
  }
  void unlink(Psn psn) {
    remove(in_flight_, psn, &SentRecord::older, &SentRecord::newer);
    unlink_from_ev(psn);
  }
  void unlink_from_ev(Psn psn) {
    SentRecord& r = records_[psn.value];
    if (!r.on_ev_list) return;
    remove(ev_lists_[r.ev], psn, &SentRecord::ev_older, &SentRecord::ev_newer);
    r.on_ev_list = false;
  }

  std::uint32_t in_flight() const { return in_flight_.count; }
  Psn oldest() const { return widen(in_flight_.oldest); }
  Psn newest() const { return widen(in_flight_.newest); }
  std::uint32_t in_flight_on(std::uint16_t ev) const { return ev_lists_[ev].count; }
  Psn oldest_on(std::uint16_t ev) const { return widen(ev_lists_[ev].oldest); }
  Psn newer_than(Psn psn) const { return widen(records_[psn.value].newer); }

 private:
  struct List {
    std::uint16_t oldest = 0;
    std::uint16_t newest = 0;
    std::uint16_t count = 0;
  };
  using Link = std::uint16_t SentRecord::*;

  Psn widen(std::uint16_t low) const {
    return first_ + static_cast<std::uint16_t>(low - static_cast<std::uint16_t>(first_.value));
  }

  void append(List& list, Psn psn, Link older, Link newer) {
    const auto me = static_cast<std::uint16_t>(psn.value);
    SentRecord& r = records_[psn.value];
    r.*newer = me;
    if (list.count++ == 0) {
      r.*older = me;
      list.oldest = me;
    } else {
      r.*older = list.newest;
      records_[list.newest].*newer = me;
    }
    list.newest = me;
  }

  void remove(List& list, Psn psn, Link older, Link newer) {
    const auto me = static_cast<std::uint16_t>(psn.value);
    SentRecord& r = records_[psn.value];
    const std::uint16_t before = r.*older;
    const std::uint16_t after = r.*newer;
    --list.count;
    if (before == me) list.oldest = after;
    else records_[before].*newer = after == me ? before : after;
    if (after == me) list.newest = before;
    else records_[after].*older = before == me ? after : before;
  }

  SerialRing<SentRecord> records_;
  std::vector<List> ev_lists_;
  List in_flight_;
  Psn first_;
};

}  // namespace softmrc::proto
