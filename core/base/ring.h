// Two rings that double when they must and never shrink, so that steady traffic allocates nothing.
//   Ring<T>        a FIFO.
//   SerialRing<T>  slots for a sliding window of sequence numbers; a number keeps its slot until the ring doubles.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/check.h"

namespace softmrc {

template <typename T>
class Ring {
 public:
  bool empty() const { return head_ == tail_; }
  std::size_t size() const { return static_cast<std::size_t>(tail_ - head_); }
  std::size_t capacity() const { return slots_ ? static_cast<std::size_t>(mask_) + 1 : 0; }

  T& front() { return slots_[head_ & mask_]; }
  const T& front() const { return slots_[head_ & mask_]; }
  T& back() { return slots_[(tail_ - 1) & mask_]; }
  T& operator[](std::size_t i) { return slots_[(head_ + static_cast<std::uint32_t>(i)) & mask_]; }
  const T& operator[](std::size_t i) const { return slots_[(head_ + static_cast<std::uint32_t>(i)) & mask_]; }

  // For fetching ahead what comes next.
  const T* front_slot() const { return slots_ ? &slots_[head_ & mask_] : nullptr; }

  void push(T value) {
    if (size() == capacity()) grow();
    slots_[tail_++ & mask_] = std::move(value);
  }
  // The same so many times.
  void push(std::size_t count, const T& value) {
    while (capacity() - size() < count) grow(std::bit_ceil(static_cast<std::uint32_t>(size() + count)));
    for (; count; --count) slots_[tail_++ & mask_] = value;
  }
  void pop() { slots_[head_++ & mask_] = T{}; }
  void clear() {
    while (!empty()) pop();
  }
  template <typename Predicate>
  void remove_if(Predicate is_unwanted) {
    for (std::size_t left = size(); left; --left) {
      T value = std::move(front());
      pop();
      if (!is_unwanted(value)) push(std::move(value));
    }
  }

 private:
  void grow() { grow(slots_ ? (mask_ + 1) * 2 : 4); }
  void grow(std::uint32_t wider) {
    const std::uint32_t count = static_cast<std::uint32_t>(size());
    SOFTMRC_CHECK(wider > count);
    auto slots = std::make_unique<T[]>(wider);
    for (std::uint32_t i = 0; i < count; ++i) slots[i] = std::move((*this)[i]);
    slots_ = std::move(slots);
    mask_ = wider - 1;
    head_ = 0;
    tail_ = count;
  }

  std::unique_ptr<T[]> slots_;
  std::uint32_t mask_ = 0;
  std::uint32_t head_ = 0;
  std::uint32_t tail_ = 0;
};

template <typename T>
class SerialRing {
 public:
  std::uint32_t capacity() const { return slots_ ? mask_ + 1 : 0; }

  // The caller reserves room before it uses a number; `first` is the oldest number still in use.
  void reserve(std::uint32_t first, std::uint32_t count) {
    if (count > capacity()) [[unlikely]]
      grow(first, count);
  }

  T& operator[](std::uint32_t number) { return slots_[number & mask_]; }
  const T& operator[](std::uint32_t number) const { return slots_[number & mask_]; }

 private:
  // Separate from the check whether it is needed, which runs for every packet.
  [[gnu::noinline]] void grow(std::uint32_t first, std::uint32_t count) {
    const std::uint32_t wider = std::bit_ceil(count < 16 ? 16u : count);
    auto slots = std::make_unique<T[]>(wider);
    for (std::uint32_t i = 0; i < capacity(); ++i) slots[(first + i) & (wider - 1)] = slots_[(first + i) & mask_];
    slots_ = std::move(slots);
    mask_ = wider - 1;
  }

  std::unique_ptr<T[]> slots_;
  std::uint32_t mask_ = 0;
};

}  // namespace softmrc
