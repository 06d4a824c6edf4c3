// Faults of a real port: what it does to the packets that leave by it (and, for loss and black holes, to those that
// come in), so that every failure can be shown without root and without a second machine.
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

#include "base/prng.h"
#include "udp/packet_io.h"
#include "wire/frame.h"

namespace softmrc::udp {

// What may befall a packet, as a share of all: each is named once.
#define SOFTMRC_FAULT_SHARES(X) \
  X(drop)                       \
  X(duplicate)                  \
  X(reorder)                    \
  X(corrupt)                    \
  X(mark)                       \
  X(trim)

// Probabilities are per packet.
struct Faults {
  double drop = 0;
  double duplicate = 0;
  double reorder = 0;  // share of packets held back by up to `reorder_delay`
  Duration reorder_delay = microseconds(200);
  double corrupt = 0;       // one bit flips
  double mark = 0;          // gets CE
  double trim = 0;          // data loses its payload, as in a switch without room
  Duration delay{0};        // of every packet
  bool black_hole = false;  // silently drops everything in both directions
  std::uint32_t mtu = 0;    // silently drops IP packets of more bytes in both directions; 0: none

  bool is_active() const { return black_hole || mtu > 0 || drop > 0 || needs_copy(); }
  // Packets that only may vanish still go from the user's memory; the others are copied, which is fine for faults.
  bool needs_copy() const {
    return duplicate > 0 || reorder > 0 || corrupt > 0 || mark > 0 || trim > 0 || delay.ps > 0;
  }
};

#define SOFTMRC_FAULT_COUNTERS(X) \
  X(dropped)                      \
  X(duplicated)                   \
  X(reordered)                    \
  X(corrupted)                    \
  X(marked)                       \
  X(trimmed)                      \
  X(swallowed)

struct FaultStats {
#define X(name) std::uint64_t name = 0;
  SOFTMRC_FAULT_COUNTERS(X)
#undef X
};

class FaultInjector final : public PacketIo {
 public:
  void set_up(std::uint64_t seed, std::uint64_t index, const wire::DscpMap& dscp);
  void wrap(PacketIo& inner) { inner_ = &inner; }
  void set(const Faults& faults) { faults_ = faults; }
  const FaultStats& stats() const { return stats_; }
  // What it holds back leaves now, in the order in which it would have.
  void flush(Time now) { release(now, Time::never()); }

  void send(Time now, std::uint32_t socket, std::span<const GsoBatch> batches) override;
  void send_delayed(Time now) override;
  Time deadline() const override;
  std::span<const GroBatch> receive(Receiver& receiver) override;
  // A black hole drops reports of the network, too.
  bool next_error(std::uint32_t socket, SendError& out) override;

 private:
  struct Held {
    Time at;
    std::uint64_t order = 0;
    OwnedGsoBatch packet;
    bool operator<(const Held& other) const { return at != other.at ? at > other.at : order > other.order; }
  };
  static constexpr std::size_t max_held = 65'536;

  bool chance(double probability, std::uint64_t& counter) {
    if (!prng_.chance(probability)) return false;
    ++counter;
    return true;
  }
  // Whether a packet of so many bytes of IP vanishes right away.
  bool swallows(std::uint32_t bytes);
  template <typename F>
  void for_each_run(std::uint32_t bytes, std::uint32_t segment, std::uint32_t around, F f);
  // Changes the packet and decides when it goes; it, and a duplicate perhaps, waits here until then.
  void hold(Time now, OwnedGsoBatch packet);
  void trim(OwnedGsoBatch& packet);
  void push(Time at, OwnedGsoBatch packet);
  void release(Time now, Time until);

  PacketIo* inner_ = nullptr;
  Faults faults_;
  FaultStats stats_;
  std::uint8_t trimmed_tos_ = 0;
  std::priority_queue<Held> held_;
  std::uint64_t order_ = 0;
  Prng prng_;
  std::vector<iovec> pieces_;
  std::vector<GroBatch> incoming_;
};

}  // namespace softmrc::udp
