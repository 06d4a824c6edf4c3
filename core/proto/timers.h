// Deadlines of many queue pairs, earliest first. A deadline that moves later costs nothing: the old entry fires early,
// finds nothing due, and is set again for the true time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/time.h"

namespace softmrc::proto {

class Timers {
 public:
  struct Entry {
    Time at;
    std::uint32_t slot;
  };

  void push(Time at, std::uint32_t slot) {
    heap_.push_back({at, slot});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }
  bool empty() const { return heap_.empty(); }
  const void* memory() const { return heap_.data(); }
  const Entry& front() const { return heap_.front(); }
  Entry pop() {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const Entry entry = heap_.back();
    heap_.pop_back();
    return entry;
  }

 private:
  static bool later(const Entry& a, const Entry& b) { return a.at != b.at ? a.at > b.at : a.slot > b.slot; }

  std::vector<Entry> heap_;
};

}  // namespace softmrc::proto
