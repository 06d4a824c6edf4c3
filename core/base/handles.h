// Things that callers know by number. The number of one that was removed is given again.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace softmrc {

template <typename Pointer>
class Handles {
 public:
  std::uint32_t add(Pointer thing) {
    if (free_.empty()) {
      things_.push_back(std::move(thing));
      return static_cast<std::uint32_t>(things_.size() - 1);
    }
    const std::uint32_t id = free_.back();
    free_.pop_back();
    things_[id] = std::move(thing);
    return id;
  }
  bool contains(std::uint32_t id) const { return id < things_.size() && things_[id]; }
  const Pointer& operator[](std::uint32_t id) const { return things_[id]; }
  bool remove(std::uint32_t id) {
    if (!contains(id)) return false;
    things_[id] = nullptr;
    free_.push_back(id);
    return true;
  }
  std::size_t size() const { return things_.size() - free_.size(); }

 private:
  std::vector<Pointer> things_;
  std::vector<std::uint32_t> free_;
};

}  // namespace softmrc
