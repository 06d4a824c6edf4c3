// Things under way, delivered by (time, order of entry). What enters in order rides a ring; only what overtakes or is
// overtaken pays for a heap.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/ring.h"
#include "base/time.h"

namespace softmrc::sim {

template <typename T>
class DeliveryQueue {
 public:
  bool empty() const { return in_order_.empty() && heap_.empty(); }
  std::size_t size() const { return in_order_.size() + heap_.size(); }

  void push(Time at, T value) {
    const std::uint64_t order = next_order_++;
    if (in_order_.empty() || at >= last_at_) {
      last_at_ = at;
      in_order_.push({at, order, std::move(value)});
    } else {
      heap_.push_back({at, order, std::move(value)});
      std::push_heap(heap_.begin(), heap_.end(), later);
    }
  }

  Time next_at() const {
    Time at = in_order_.empty() ? Time::never() : in_order_.front().at;
    if (!heap_.empty()) at = std::min(at, heap_.front().at);
    return at;
  }

  T pop() {
    const bool from_heap = !heap_.empty() && (in_order_.empty() || later(in_order_.front(), heap_.front()));
    if (!from_heap) {
      T value = std::move(in_order_.front().value);
      in_order_.pop();
      return value;
    }
    std::pop_heap(heap_.begin(), heap_.end(), later);
    T value = std::move(heap_.back().value);
    heap_.pop_back();
    return value;
  }

 private:
  struct Entry {
    Time at{};
    std::uint64_t order = 0;
    T value{};
  };
  static bool later(const Entry& a, const Entry& b) { return a.at != b.at ? a.at > b.at : a.order > b.order; }

  Ring<Entry> in_order_;
  std::vector<Entry> heap_;
  Time last_at_{};
  std::uint64_t next_order_ = 0;
};

}  // namespace softmrc::sim
