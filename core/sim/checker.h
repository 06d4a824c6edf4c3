// The oracle: what must be true of a run whatever the network, the hosts and the transport do. It keeps its own copy of
// the plan and its own record of what arrived, and believes none of those that it judges. What it finds wrong is our
// bug, and stops the run.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "collectives/types.h"

namespace softmrc::sim {

class Checker {
 public:
  // What it has seen at the hosts of one shard.
  struct Seen {
    std::uint64_t bytes_placed = 0;
    std::uint64_t bytes_landed = 0;
    struct Landed {
      std::uint64_t region = 0;
      std::vector<std::uint64_t> bits;  // one for each packet
    };
    std::unordered_map<std::uint64_t, Landed> landed;  // by host and key, of the last region that had it
  };

  explicit Checker(std::uint32_t mtu) : mtu_(mtu) {}

  // The next flow of the plan; flows are known by their order.
  void plan(std::uint32_t source, std::uint32_t destination, std::uint32_t bytes);

  // A connection between these two carried so many bytes of a flow, which were placed at this offset. That happens
  // exactly once to every packet of the plan, and to nothing else.
  void on_placed(Seen& seen, std::uint32_t flow, std::uint32_t source, std::uint32_t destination, std::uint64_t offset,
                 std::uint32_t bytes);
  // Its completion was reported: all of it is there.
  void on_delivered(std::uint32_t flow) const;

  // What collectives move: every packet of every region lands once; and in the end, as much as their plans say.
  void on_landed(Seen& seen, std::uint32_t host, std::uint32_t rkey, std::uint64_t region, std::uint64_t va,
                 std::uint32_t bytes) const;
  bool has_landed(const Seen& seen, std::uint32_t host, std::uint32_t rkey, std::uint64_t va) const;
  void expect(std::uint64_t bytes) { expected_ += bytes; }
  void check_expected(std::uint64_t landed) const;
  // What a rank of a collective that sums `sample` over ranks holds in the end.
  static std::uint32_t sample(std::uint32_t rank, std::uint64_t element) {
    return rank * 2'654'435'761u + static_cast<std::uint32_t>(element) * 40'503u;
  }
  static void check_result(collectives::Kind kind, std::uint32_t rank, std::uint32_t ranks,
                           std::span<const std::uint32_t> found);

  // Packets do not come from nothing, nor vanish uncounted.
  struct Packets {
    std::uint64_t sent = 0, arrived = 0, dropped = 0, lost = 0, under_way = 0;
  };
  static void check_conserved(const Packets& packets);

  bool is_placed(std::uint32_t flow, std::uint64_t offset) const { return has(bit_of(flow, offset)); }

 private:
  struct Planned {
    std::uint64_t first_packet = 0;
    std::uint32_t source = 0;
    std::uint32_t destination = 0;
    std::uint32_t bytes = 0;
  };

  std::uint64_t bit_of(std::uint32_t flow, std::uint64_t offset) const {
    return flows_[flow].first_packet + offset / mtu_;
  }
  bool has(std::uint64_t bit) const { return placed_[bit / 64] >> (bit % 64) & 1; }

  std::uint32_t mtu_;
  std::vector<Planned> flows_;
  std::uint64_t packets_ = 0;          // of all flows, each with different words
  std::vector<std::uint64_t> placed_;  // a bit for each of them
  std::uint64_t expected_ = 0;
};

}  // namespace softmrc::sim
