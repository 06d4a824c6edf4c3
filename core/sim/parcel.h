// A packet on its way: what links and switches need of it, and the packet itself, which they do not read. Parcels are
// known by number; a queue is a chain of them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "proto/endpoint.h"
#include "sim/baselines/roce.h"
#include "sim/fabric.h"

namespace softmrc::sim {

constexpr std::uint32_t no_parcel = 0xFFFFFFFF;

// Which way a packet goes: up to six uSIDs, the next one first.
struct Route {
  std::uint64_t head = 0;
  std::uint32_t tail = 0;

  void append(unsigned place, std::uint16_t usid) {
    if (place < 4) head |= static_cast<std::uint64_t>(usid) << (48 - 16 * place);
    else tail |= static_cast<std::uint32_t>(usid) << (16 - 16 * (place - 4));
  }
  std::uint16_t front() const { return static_cast<std::uint16_t>(head >> 48); }
  void shift() {
    head = head << 16 | tail >> 16;
    tail <<= 16;
  }
};

// What forwarding needs lies in the first cache line, the packet itself behind it.
struct alignas(64) Parcel {
  Route route{};
  std::uint32_t entropy = 0;
  std::uint32_t source = 0;
  std::uint32_t destination = 0;
  std::uint32_t peer = 0;      // the source, as the destination's endpoint numbers it
  std::uint32_t next = 0;      // in a queue or on the free list
  std::uint32_t bytes = 0;
  LinkId came_from = no_link;  // the link that brought it to this switch, for PFC
  std::uint8_t plane = 0;
  bool is_control = false;
  bool is_trimmable = false;
  bool congestion = false;
  bool is_corrupt = false;
  bool is_survey = false;      // of a mapper (survey.h), which knows it by `peer`
  proto::Trim trim = proto::Trim::none;
  wire::Packet packet;
  RocePacket roce;
};

class Parcels {
 public:
  Parcel& operator[](std::uint32_t id) { return chunks_[id >> chunk_bits][id & (chunk_size - 1)]; }
  const Parcel& operator[](std::uint32_t id) const { return chunks_[id >> chunk_bits][id & (chunk_size - 1)]; }
  std::uint64_t in_use() const { return in_use_; }

  std::uint32_t take() {
    if (free_ == no_parcel) grow();
    const std::uint32_t id = free_;
    free_ = (*this)[id].next;
    ++in_use_;
    return id;
  }

  void drop(std::uint32_t id) {
    (*this)[id].next = free_;
    free_ = id;
    --in_use_;
  }

 private:
  static constexpr unsigned chunk_bits = 12;
  static constexpr std::uint32_t chunk_size = 1u << chunk_bits;

  void grow() {
    const auto first = static_cast<std::uint32_t>(chunks_.size()) << chunk_bits;
    chunks_.push_back(std::make_unique<Parcel[]>(chunk_size));
    for (std::uint32_t i = chunk_size; i-- > 0;) {
      chunks_.back()[i].next = free_;
      free_ = first + i;
    }
  }

  std::vector<std::unique_ptr<Parcel[]>> chunks_;
  std::uint32_t free_ = no_parcel;
  std::uint64_t in_use_ = 0;
};

struct Fifo {
  std::uint32_t head = no_parcel;
  std::uint32_t tail = no_parcel;

  bool empty() const { return head == no_parcel; }

  void push(Parcels& parcels, std::uint32_t id) {
    parcels[id].next = no_parcel;
    if (empty()) head = id;
    else parcels[tail].next = id;
    tail = id;
  }

  std::uint32_t pop(Parcels& parcels) {
    const std::uint32_t id = head;
    head = parcels[id].next;
    return id;
  }
};

}  // namespace softmrc::sim
