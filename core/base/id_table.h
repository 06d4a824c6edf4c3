// A hash table from a 32-bit id to a 32-bit value, by open addressing: the demultiplexer of queue pairs and of memory
// keys. Ids come from the driver's randomness, so their low bits are already a good hash.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace softmrc {

class IdTable {
 public:
  std::optional<std::uint32_t> find(std::uint32_t id) const {
    if (slots_.empty()) return std::nullopt;
    for (std::uint32_t i = mix(id);; ++i) {
      const Slot& slot = slots_[i & mask_];
      if (slot.use == Use::free) return std::nullopt;
      if (slot.use == Use::taken && slot.id == id) return slot.value;
    }
  }

  // False when the id is already present.
  bool insert(std::uint32_t id, std::uint32_t value) {
    if (find(id)) return false;
    if ((filled_ + 1) * 2 > slots_.size()) rehash();
    for (std::uint32_t i = mix(id);; ++i) {
      Slot& slot = slots_[i & mask_];
      if (slot.use == Use::taken) continue;
      if (slot.use == Use::free) ++filled_;
      slot = {id, value, Use::taken};
      ++live_;
      return true;
    }
  }

  bool erase(std::uint32_t id) {
    if (slots_.empty()) return false;
    for (std::uint32_t i = mix(id);; ++i) {
      Slot& slot = slots_[i & mask_];
      if (slot.use == Use::free) return false;
      if (slot.use == Use::taken && slot.id == id) {
        slot.use = Use::erased;
        --live_;
        return true;
      }
    }
  }

  std::uint32_t size() const { return live_; }
  const void* memory() const { return slots_.data(); }

 private:
  enum class Use : std::uint8_t { free, taken, erased };
  struct Slot {
    std::uint32_t id = 0;
    std::uint32_t value = 0;
    Use use = Use::free;
  };

  static std::uint32_t mix(std::uint32_t id) { return (id * 0x9E3779B1u) >> 7; }

  void rehash() {
    std::vector<Slot> old = std::move(slots_);
    std::uint32_t wanted = 8;
    while (wanted < (live_ + 1) * 4) wanted *= 2;
    slots_.assign(wanted, Slot{});
    mask_ = wanted - 1;
    filled_ = live_ = 0;
    for (const Slot& slot : old)
      if (slot.use == Use::taken) insert(slot.id, slot.value);
  }

  std::vector<Slot> slots_;
  std::uint32_t mask_ = 0;
  std::uint32_t filled_ = 0;
  std::uint32_t live_ = 0;
};

}  // namespace softmrc
