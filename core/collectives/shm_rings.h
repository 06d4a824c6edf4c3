// Bulk data between ranks of one machine, through memory that they share: a ring for each direction of a pair of ranks,
// made when the receiver first grants. It decides whether a peer's data goes through it, and checks what a peer says of
// its ring. When a slice goes is left to the transfers: a write of nothing says that a slice is there, so all that is
// promised of writes, their order and their end, holds for slices as well.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "collectives/message_router.h"
#include "collectives/operation.h"
#include "collectives/shm_ring.h"

namespace softmrc::collectives {

class ShmRings {
 public:
  ShmRings(const GroupDirectory& directory, PeerConnections& connections, MessageRouter& router,
           FailureMonitor& failures)
      : directory_(directory), connections_(connections), router_(router), failures_(failures) {}

  // Before the first grant to a neighbour; to others it does nothing.
  void offer(proto::Endpoint& engine, Time now, std::uint32_t peer);
  void on_offer(proto::Endpoint& engine, Time now, std::uint32_t peer, std::span<const std::uint8_t> payload);
  // Null: by the network.
  ShmRing* to(std::uint32_t peer) { return peer < rings_.size() && rings_[peer] ? rings_[peer]->to.get() : nullptr; }
  // Takes the next slice. False when it is not there, which fails the group.
  bool take(proto::Endpoint& engine, Time now, Inbound& in);
  void clear() { rings_.clear(); }

 private:
  struct Pair {
    std::unique_ptr<ShmRing> from, to;
    bool is_offered = false;
  };
  Pair& pair(std::uint32_t peer);

  const GroupDirectory& directory_;
  PeerConnections& connections_;
  MessageRouter& router_;
  FailureMonitor& failures_;
  std::vector<std::unique_ptr<Pair>> rings_;  // by rank; empty while no neighbour has any
};

}  // namespace softmrc::collectives
