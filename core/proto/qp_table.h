// The queue pairs of an endpoint. A number leads to a slot, which is the queue pair's until it is destroyed; in RESET
// there is only the number.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/id_table.h"
#include "base/prefetch.h"
#include "proto/queue_pair.h"

namespace softmrc::proto {

class QpTable {
 public:
  void add(std::uint32_t qpn) {
    if (free_.empty()) {
      free_.push_back(static_cast<std::uint32_t>(slots_.size()));
      slots_.emplace_back();
    }
    const std::uint32_t slot = free_.back();
    free_.pop_back();
    slots_[slot].qpn = qpn;
    slot_of_.insert(qpn, slot);
  }
  void set(std::uint32_t slot, std::unique_ptr<QueuePair> pair) { slots_[slot].pair = std::move(pair); }
  void remove(std::uint32_t slot) {
    slot_of_.erase(slots_[slot].qpn);
    slots_[slot] = Slot{};
    free_.push_back(slot);
  }

  std::size_t size() const { return slots_.size() - free_.size(); }
  std::optional<std::uint32_t> find(std::uint32_t qpn) const { return slot_of_.find(qpn); }
  std::uint32_t qpn_at(std::uint32_t slot) const { return slots_[slot].qpn; }
  // Null for a slot or a number without a queue pair, or with one in RESET.
  QueuePair* at(std::uint32_t slot) const { return slots_[slot].pair.get(); }
  QueuePair* qp(std::uint32_t qpn) const {
    const auto slot = find(qpn);
    return slot ? at(*slot) : nullptr;
  }

  // Calls back with the number of each.
  template <typename F>
  void for_each_qpn(F f) const {
    for (const Slot& slot : slots_)
      if (slot.qpn) f(slot.qpn);
  }
  // Calls back with the slot of each that left RESET, and itself.
  template <typename F>
  void for_each(F f) const {
    for (std::uint32_t slot = 0; slot < slots_.size(); ++slot)
      if (QueuePair* pair = at(slot)) f(slot, *pair);
  }
  template <typename F>
  void for_each_to(std::uint32_t peer, F f) const {
    for_each([&](std::uint32_t slot, QueuePair& pair) {
      if (pair.peer() == peer) f(slot, pair);
    });
  }
  // The first that `is_wanted`, or null.
  template <typename F>
  QueuePair* find_if(F is_wanted) const {
    for (const Slot& slot : slots_)
      if (slot.pair && is_wanted(*slot.pair)) return slot.pair.get();
    return nullptr;
  }
  template <typename F>
  QueuePair* find_to(std::uint32_t peer, F is_wanted) const {
    return find_if([&](const QueuePair& pair) { return pair.peer() == peer && is_wanted(pair); });
  }

  void prefetch_state() const {
    prefetch(slots_.data());
    prefetch(slot_of_.memory());
  }

 private:
  struct Slot {
    std::uint32_t qpn = 0;
    std::unique_ptr<QueuePair> pair;
  };

  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  IdTable slot_of_;
};

}  // namespace softmrc::proto
