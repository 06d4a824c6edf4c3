// A packet in flight: what links and switches need of it, and the packet itself, which they do not read. Packets are
// known by number; a queue is a chain of them.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/check.h"
#include "proto/endpoint.h"
#include "sim/baselines/roce.h"
#include "sim/fabric.h"

namespace softmrc::sim {

constexpr std::uint32_t no_packet = 0xFFFFFFFF;

// The path of a packet: up to six uSIDs, the next one first.
struct SimRoute {
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
struct alignas(64) SimPacket {
  SimRoute route{};
  std::uint32_t entropy = 0;
  std::uint32_t source = 0;
  std::uint32_t destination = 0;
  std::uint32_t peer = 0;  // the source, as the destination's endpoint numbers it
  std::uint32_t next = 0;  // in a queue or on the free list
  std::uint32_t bytes = 0;
  LinkId came_from = no_link;  // the link that brought it to this switch, for PFC
  std::uint8_t plane = 0;
  std::uint8_t owner = 0;  // the shard whose memory it is
  bool is_control = false;
  bool is_trimmable = false;
  bool congestion = false;
  bool is_corrupt = false;
  bool is_survey = false;  // of a mapper (probe_traffic.h), which knows it by `peer`
  proto::Trim trim = proto::Trim::none;
  wire::Packet packet;
  RocePacket roce;
};

// The memory of all packets. It grows and never moves, and any thread that has a number may look.
class PacketArena {
 public:
  static constexpr unsigned chunk_bits = 12;
  static constexpr std::uint32_t chunk_size = 1u << chunk_bits;

  ~PacketArena() {
    for (std::uint32_t i = 0; i < chunks_in_use_; ++i) delete[] chunks_[i];
  }
  PacketArena() = default;
  PacketArena(const PacketArena&) = delete;
  PacketArena& operator=(const PacketArena&) = delete;

  SimPacket& operator[](std::uint32_t id) const { return chunks_[id >> chunk_bits][id & (chunk_size - 1)]; }

  // The first number of a new chunk. Any thread may ask.
  std::uint32_t grow() {
    auto chunk = std::make_unique<SimPacket[]>(chunk_size);
    const std::lock_guard lock(mutex_);
    SOFTMRC_CHECK(chunks_in_use_ < max_chunks);
    chunks_[chunks_in_use_] = chunk.release();
    return chunks_in_use_++ << chunk_bits;
  }

 private:
  static constexpr std::uint32_t max_chunks = 1u << (32 - chunk_bits);
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  // Of the table, too, only as much is real as was used: it is as long as numbers allow.
  std::unique_ptr<SimPacket* [], Free> chunks_ {
    static_cast<SimPacket**>(std::calloc(max_chunks, sizeof(SimPacket*)))
  };
  std::mutex mutex_;
  std::uint32_t chunks_in_use_ = 0;
};

struct PacketChain {
  std::uint32_t first = no_packet;
  std::uint32_t last = no_packet;
};

// The packets of one shard. Those of others that end here are sent home, in chains.
class PacketPool {
 public:
  PacketPool(PacketArena& store, std::uint32_t shards, std::uint32_t shard)
      : store_(store), owner_(static_cast<std::uint8_t>(shard)), returns_(shards) {}

  SimPacket& operator[](std::uint32_t id) { return store_[id]; }
  const SimPacket& operator[](std::uint32_t id) const { return store_[id]; }
  // Taken here less dropped here: of all shards together, those in use.
  std::int64_t in_use() const { return in_use_; }

  std::uint32_t take() {
    if (free_ == no_packet) grow();
    const std::uint32_t id = free_;
    free_ = store_[id].next;
    ++in_use_;
    return id;
  }

  void drop(std::uint32_t id) {
    SimPacket& packet_id = store_[id];
    --in_use_;
    if (packet_id.owner == owner_) {
      packet_id.next = free_;
      free_ = id;
      return;
    }
    PacketChain& chain = returns_[packet_id.owner];
    packet_id.next = chain.first;
    if (chain.first == no_packet) chain.last = id;
    chain.first = id;
  }

  PacketChain take_returns(std::uint32_t owner) { return std::exchange(returns_[owner], {}); }
  void take_back(const PacketChain& chain) {
    if (chain.first == no_packet) return;
    store_[chain.last].next = free_;
    free_ = chain.first;
  }

 private:
  void grow() {
    const std::uint32_t first = store_.grow();
    for (std::uint32_t i = PacketArena::chunk_size; i-- > 0;) {
      store_[first + i].owner = owner_;
      store_[first + i].next = free_;
      free_ = first + i;
    }
  }

  PacketArena& store_;
  const std::uint8_t owner_;
  std::vector<PacketChain> returns_;  // by home
  std::uint32_t free_ = no_packet;
  std::int64_t in_use_ = 0;
};

struct PacketFifo {
  std::uint32_t head = no_packet;
  std::uint32_t tail = no_packet;

  bool empty() const { return head == no_packet; }

  void push(PacketPool& packets, std::uint32_t id) {
    packets[id].next = no_packet;
    if (empty()) head = id;
    else packets[tail].next = id;
    tail = id;
  }

  std::uint32_t pop(PacketPool& packets) {
    const std::uint32_t id = head;
    head = packets[id].next;
    return id;
  }
};

}  // namespace softmrc::sim
