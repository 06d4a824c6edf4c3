// The simulator's clock: events in the order of (time, kind, whose, which). That order is of the simulated world alone:
// it does not depend on who entered an event first, nor on what else is simulated. A wheel of short spans of
// time holds what is near, a heap what is far. A span is sorted when its turn comes, so that entering an event costs an
// append, and the working set stays a few spans wide however many hosts there are.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/time.h"

namespace softmrc::sim {

class Scheduler {
 public:
  struct Event {
    Time at{};
    std::uint64_t order = 0;  // among those of one moment: the kind (4 bits), who (28), what (32)

    std::uint32_t kind() const { return static_cast<std::uint32_t>(order >> 60); }
    std::uint32_t who() const { return static_cast<std::uint32_t>(order >> 32) & 0xFFFFFFF; }
    std::uint32_t what() const { return static_cast<std::uint32_t>(order); }
  };
  static Event event(Time at, std::uint32_t kind, std::uint32_t who, std::uint32_t what) {
    return {at, static_cast<std::uint64_t>(kind) << 60 | static_cast<std::uint64_t>(who & 0xFFFFFFF) << 32 | what};
  }

  Scheduler() : spans_(span_count), occupied_(span_count / 64, 0) {}

  void push(Time at, std::uint32_t kind, std::uint32_t who, std::uint32_t what) { push(event(at, kind, who, what)); }

  void push(const Event& event) {
    SOFTMRC_CHECK(event.at >= now_);
    const std::uint64_t span = span_of(event.at);
    ++size_;
    if (span <= current_) {
      soon_.push_back(event);
      std::push_heap(soon_.begin(), soon_.end(), later);
    } else if (span < current_ + span_count) {
      append(span, event);
    } else {
      far_.push_back(event);
      std::push_heap(far_.begin(), far_.end(), later);
    }
  }

  bool empty() const { return size_ == 0; }
  std::uint64_t size() const { return size_; }
  Time now() const { return now_; }

  // An event that comes soon, if it is known already: for fetching its memory ahead of time.
  const Event* ahead(std::size_t steps) const { return next_ + steps < open_.size() ? &open_[next_ + steps] : nullptr; }

  // No event is earlier than this.
  Time earliest() const {
    Time at = next_ < open_.size() ? open_[next_].at : Time::never();
    if (!soon_.empty()) at = std::min(at, soon_.front().at);
    return at != Time::never() || size_ == 0 ? at : start_of(next_span());
  }

  // Nothing before this moment is to come any more.
  void advance(Time to) { now_ = std::max(now_, to); }

  // The next event, if it is before this moment.
  bool pop_before(Time end, Event& event) {
    while (next_ == open_.size() && soon_.empty()) {
      if (size_ == 0 || start_of(next_span()) >= end) return false;
      turn();
    }
    const bool from_soon = !soon_.empty() && (next_ == open_.size() || later(open_[next_], soon_.front()));
    if ((from_soon ? soon_.front() : open_[next_]).at >= end) return false;
    --size_;
    if (from_soon) {
      std::pop_heap(soon_.begin(), soon_.end(), later);
      event = soon_.back();
      soon_.pop_back();
    } else {
      event = open_[next_++];
    }
    now_ = event.at;
    return true;
  }

  static constexpr unsigned span_bits = 16;  // 65.5 ns

 private:
  static constexpr std::uint64_t span_count = 4096;  // 268 us ahead

  static bool later(const Event& a, const Event& b) { return a.at != b.at ? a.at > b.at : a.order > b.order; }
  static std::uint64_t span_of(Time at) { return static_cast<std::uint64_t>(at.ps) >> span_bits; }

  void append(std::uint64_t span, const Event& event) {
    std::vector<Event>& events = spans_[span % span_count];
    if (events.empty()) {
      occupied_[span % span_count / 64] |= 1ull << (span % 64);
      if (events.capacity() == 0 && !spare_.empty()) {
        events = std::move(spare_.back());
        spare_.pop_back();
      }
    }
    events.push_back(event);
  }

  static Time start_of(std::uint64_t span) { return Time{static_cast<std::int64_t>(span << span_bits)}; }

  std::uint64_t next_span() const {
    const std::uint64_t next = next_occupied();
    return far_.empty() ? next : std::min(next, span_of(far_.front().at));
  }

  // Opens the next span that holds anything, after drawing in what has come within reach of the wheel.
  void turn() {
    current_ = next_span();
    while (!far_.empty() && span_of(far_.front().at) < current_ + span_count) {
      std::pop_heap(far_.begin(), far_.end(), later);
      append(span_of(far_.back().at), far_.back());
      far_.pop_back();
    }
    open_.clear();
    if (open_.capacity()) spare_.push_back(std::move(open_));
    open_ = std::move(spans_[current_ % span_count]);
    spans_[current_ % span_count] = {};
    occupied_[current_ % span_count / 64] &= ~(1ull << (current_ % 64));
    std::sort(open_.begin(), open_.end(), [](const Event& a, const Event& b) { return later(b, a); });
    next_ = 0;
  }

  std::uint64_t next_occupied() const {
    for (std::uint64_t step = 1; step < span_count;) {
      const std::uint64_t span = current_ + step;
      const std::uint64_t word = occupied_[span % span_count / 64] >> (span % 64);
      if (word) {
        const std::uint64_t found = step + static_cast<std::uint64_t>(std::countr_zero(word));
        return found < span_count ? current_ + found : ~0ull;
      }
      step += 64 - span % 64;
    }
    return ~0ull;
  }

  std::vector<std::vector<Event>> spans_;
  std::vector<std::uint64_t> occupied_;
  std::vector<std::vector<Event>> spare_;  // emptied spans, kept for their capacity
  std::vector<Event> open_;                // the span whose turn it is, sorted
  std::size_t next_ = 0;
  std::vector<Event> soon_;  // entered after their span was opened
  std::vector<Event> far_;
  std::uint64_t current_ = 0;
  std::uint64_t size_ = 0;
  Time now_{};
};

}  // namespace softmrc::sim
