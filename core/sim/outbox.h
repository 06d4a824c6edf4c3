// What shards send each other while they simulate a window of time: events that happen in a later one, and packets'
// memory that goes back to its owner. It is written by one shard and read by another, never at the same time: what is
// written in one window is read at the beginning of the next, while that one's goes into another buffer.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/time.h"
#include "sim/scheduler.h"
#include "sim/sim_packet.h"

namespace softmrc::sim {

struct ShardMessages {
  std::vector<Scheduler::Event> events;
  PacketChain packets;
};

// What one shard sends to all.
class Outbox {
 public:
  explicit Outbox(std::uint32_t shards)
      : messages_{std::vector<ShardMessages>(shards), std::vector<ShardMessages>(shards)} {}

  void send(std::uint32_t to, const Scheduler::Event& event) {
    messages_[open_][to].events.push_back(event);
    earliest_ = std::min(earliest_, event.at);
  }
  // Of what is written, and of the window that ended last.
  Time earliest() const { return std::min(earliest_, sealed_earliest_); }

  // The window is over: what was written can be read, with the memory that went away in it.
  void seal(PacketPool& packets) {
    for (std::uint32_t to = 0; to < messages_[open_].size(); ++to)
      messages_[open_][to].packets = packets.take_returns(to);
    open_ ^= 1;
    sealed_earliest_ = std::exchange(earliest_, Time::never());
  }
  // What another shard wrote in the window that this one has ended. The other may have ended the next one by now.
  ShardMessages& from(Outbox& other, std::uint32_t me) const { return other.messages_[open_ ^ 1][me]; }

 private:
  std::array<std::vector<ShardMessages>, 2> messages_;
  std::uint32_t open_ = 0;
  Time earliest_ = Time::never();
  Time sealed_earliest_ = Time::never();
};

}  // namespace softmrc::sim
