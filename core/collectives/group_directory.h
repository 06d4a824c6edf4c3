// What the ranks of a group know of each other before they are connected: where each is, and numbers from which both
// ends derive the same connection. So the rank that sends first need not ask, and the other end is made when its first
// packet arrives.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/siphash.h"
#include "proto/config.h"
#include "proto/qpn_reservations.h"

namespace softmrc::collectives {

// Where a rank's channel is, and what it keeps for the others: of every rank two queue pairs and the key to a ring, by
// rank.
struct PeerEndpoint {
  std::uint32_t place = 0;  // by which the driver knows it; not of the own one
  std::uint32_t first_qpn = 0;
  std::uint32_t stride = 1;
  std::uint32_t first_rkey = 0;

  std::uint32_t qpn(std::uint32_t rank, bool is_bulk) const { return first_qpn + stride * (2 * rank + is_bulk); }
  std::uint32_t rank_of(std::uint32_t qpn) const { return (qpn - first_qpn) / stride / 2; }
  std::uint32_t ring_rkey(std::uint32_t rank) const { return first_rkey + rank; }
};

struct PeerInfo {
  std::vector<PeerEndpoint> ends;  // by channel
  std::uint32_t mpr = 8;           // what it takes of us, and we send
  std::uint32_t max_wimm = 128;
  std::shared_ptr<const proto::EvProfile> paths;  // to it; null: the home's own
  bool is_neighbour = false;                      // may share memory with us: both are of one machine, and want to
  std::vector<std::uint32_t> denied;              // of these paths, what the controller does not want taken
};

struct GroupParams {
  SecretKey key{};  // this group's alone; those that have it could have read all else in the store
  proto::RtrAttributes receiving;
  proto::RtsAttributes sending;
};

struct GroupDirectory {
  std::uint32_t rank = 0;  // our own
  GroupParams params;
  std::vector<PeerInfo> members;  // by rank

  proto::RtrAttributes receiving(std::uint32_t channel, std::uint32_t peer, bool is_bulk, std::uint32_t node) const;
  proto::RtsAttributes sending(std::uint32_t channel, std::uint32_t peer, bool is_bulk) const;

 private:
  enum class Use : std::uint8_t { messages, bulk, port_key };
  std::uint64_t number_of(Use use, std::uint32_t channel, std::uint32_t from, std::uint32_t to) const;
  Psn first_psn(std::uint32_t channel, std::uint32_t from, std::uint32_t to, bool is_bulk) const;
};

}  // namespace softmrc::collectives
