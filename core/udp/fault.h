// Weather for a real port: what it does to the packets that leave by it (and, for loss and black holes, to those that
// come in), so that every failure can be shown without root and without a second machine. Off, it costs one branch.
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

#include "base/prng.h"
#include "base/time.h"
#include "udp/socket.h"

namespace softmrc::udp {

// Probabilities are per packet.
struct Faults {
  double drop = 0;
  double duplicate = 0;
  double reorder = 0;          // share of packets held back by up to `reorder_delay`
  Duration reorder_delay = microseconds(200);
  double corrupt = 0;          // one bit flips
  double mark = 0;             // gets CE
  double trim = 0;             // data loses its payload, as in a switch without room
  Duration delay{0};           // of every packet
  bool black_hole = false;     // swallows everything, both ways, and says nothing

  bool is_active() const { return black_hole || drop > 0 || needs_copy(); }
  // Packets that only may vanish still go from the user's memory; the others are copied, which is fine for weather.
  bool needs_copy() const {
    return duplicate > 0 || reorder > 0 || corrupt > 0 || mark > 0 || trim > 0 || delay.ps > 0;
  }
};

#define SOFTMRC_FAULT_COUNTERS(X) X(dropped) X(duplicated) X(reordered) X(corrupted) X(marked) X(trimmed) X(swallowed)

struct FaultStats {
#define X(name) std::uint64_t name = 0;
  SOFTMRC_FAULT_COUNTERS(X)
#undef X
};

// A packet as bytes, on its way to a socket.
struct OwnedDatagram {
  Destination to;
  std::uint32_t entropy = 0;
  std::uint8_t tos = 0;
  std::vector<std::uint8_t> bytes;
};

// The weather of one port, and the packets it is holding back.
class FaultLine {
 public:
  Faults faults;
  FaultStats stats;

  void seed(std::uint64_t seed, std::uint64_t index) { prng_ = Prng(seed, "fault", index); }

  // Whether a packet vanishes right away.
  bool swallows() {
    if (faults.black_hole) {
      ++stats.swallowed;
      return true;
    }
    if (!prng_.chance(faults.drop)) return false;
    ++stats.dropped;
    return true;
  }
  bool trims() { return chance(faults.trim, stats.trimmed); }
  // Changes the packet and decides when it goes; it, and a duplicate perhaps, waits here until then.
  void hold(Time now, OwnedDatagram packet);
  // The next packet whose time has come.
  bool release(Time now, OwnedDatagram& out);
  Time deadline() const { return held_.empty() ? Time::never() : held_.top().at; }

 private:
  struct Held {
    Time at;
    std::uint64_t order = 0;
    OwnedDatagram packet;
    bool operator<(const Held& other) const { return at != other.at ? at > other.at : order > other.order; }
  };
  static constexpr std::size_t most_held = 65'536;

  bool chance(double probability, std::uint64_t& counter) {
    if (!prng_.chance(probability)) return false;
    ++counter;
    return true;
  }
  void push(Time at, OwnedDatagram packet);

  std::priority_queue<Held> held_;
  std::uint64_t order_ = 0;
  Prng prng_;
};

}  // namespace softmrc::udp
