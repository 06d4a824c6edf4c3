// Registered memory: what peers may write to. Decides whether an incoming packet's address is allowed; a region without
// backing store (data == nullptr) checks and counts but copies nothing, which is how a simulator uses it.
// A region is open to the queue pairs of one protection domain and to no others, whatever keys they know. Memory that
// is only sent from is not here at all, so no key leads to it.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/id_table.h"

namespace softmrc::proto {

// Takes what lands in a region instead of a plain copy. Every byte that was written comes by exactly once, however
// often its packet was sent: this is what makes reducing on arrival safe.
class Placer {
 public:
  virtual ~Placer() = default;
  virtual void place(std::uint64_t offset, const std::uint8_t* source, std::uint32_t size) = 0;
};

// A group of queue pairs and of memory that they may write to. Everything is in the first one by
// default.
using Domain = std::uint64_t;

struct MemoryRegion {
  std::uint8_t* data = nullptr;
  std::uint64_t va = 0;  // the address by which the peer names the first byte
  std::uint64_t length = 0;
  std::uint32_t rkey = 0;
  Placer* placer = nullptr;  // null: bytes are copied to data
  Domain domain = 0;         // whose queue pairs may write here
  std::uint64_t number = 0;  // given by the owner: keys are reused, numbers are not
};

class Memory {
 public:
  // False when the key is in use or the region would wrap the address space.
  bool add(const MemoryRegion& region) {
    if (region.length == 0 || region.va + (region.length - 1) < region.va) return false;
    if (!index_.insert(region.rkey, static_cast<std::uint32_t>(regions_.size()))) return false;
    regions_.push_back(region);
    regions_.back().number = ++added_;
    return true;
  }

  std::size_t size() const { return regions_.size(); }
  bool contains(std::uint32_t rkey) const { return index_.find(rkey).has_value(); }

  // Which region has this key now; 0: none.
  std::uint64_t number_of(std::uint32_t rkey) const {
    const auto at = index_.find(rkey);
    return at ? regions_[*at].number : 0;
  }

  bool remove(std::uint32_t rkey) {
    const auto at = index_.find(rkey);
    if (!at) return false;
    index_.erase(rkey);
    const std::uint32_t last = static_cast<std::uint32_t>(regions_.size()) - 1;
    if (*at != last) {
      regions_[*at] = regions_[last];
      index_.erase(regions_[*at].rkey);
      index_.insert(regions_[*at].rkey, *at);
    }
    regions_.pop_back();
    return true;
  }

  // Writes `size` bytes at `va` if the key allows it to this domain. A null source is a packet whose payload is elided.
  // spec: protection-domain
  [[nodiscard]] bool place(Domain domain, std::uint32_t rkey, std::uint64_t va, const std::uint8_t* source,
                           std::uint32_t size) const {
    const auto at = index_.find(rkey);
    if (!at) return false;
    const MemoryRegion& region = regions_[*at];
    if (region.domain != domain) return false;
    if (va < region.va || va - region.va > region.length || size > region.length - (va - region.va)) return false;
    if (region.placer) region.placer->place(va - region.va, source, size);
    else if (region.data && source) std::memcpy(region.data + (va - region.va), source, size);
    return true;
  }

 private:
  std::vector<MemoryRegion> regions_;
  IdTable index_;
  std::uint64_t added_ = 0;
};

}  // namespace softmrc::proto
