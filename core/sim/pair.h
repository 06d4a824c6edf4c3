// Two endpoints, the planes between them, and a clock that only moves when told to: the fixture that every test of the
// engine stands on. Each direction of each plane is a link with a delay, an optional rate, and a list of ways to go
// wrong; single EVs can go wrong by themselves. The network draws from its own random stream, so the same seed gives
// the same run, and `trace_hash` says whether it did.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/prng.h"
#include "base/time.h"
#include "proto/endpoint.h"
#include "sim/delivery_queue.h"
#include "sim/process.h"

namespace softmrc::sim {

// What one direction of one plane does to its packets. Probabilities are per packet.
struct Weather {
  double loss = 0;
  double duplicate = 0;
  double reorder = 0;            // share of packets held back by up to `reorder_delay`
  Duration reorder_delay{0};
  double corrupt = 0;            // one bit flips; where bytes travel, only the ICRC notices
  double trim = 0;               // data packets that lose their payload
  double mark = 0;               // data packets that get CE
  double starve = 0;             // data packets that the receiver has no room for, and says so
  bool black_hole = false;       // swallows everything, says nothing
  bool spares_control = false;   // loss, corruption and reordering befall data only
  Duration delay{0};             // every packet is this much later
  std::uint64_t neck_bps = 0;    // somewhere behind the port is a slower link; 0: none
  std::uint64_t neck_bytes = 0;  // and that its queue holds, what comes then is lost; 0: any number
  Duration path_jitter{0};       // every path gets its own extra delay up to this, drawn anew now and then, in order
};

struct PairConfig {
  std::uint64_t seed = 1;
  std::uint32_t ports = 4;
  Duration one_way_delay = microseconds(4);
  std::uint64_t port_rate_bps = 0;        // 0: no serialisation delay and no queue
  std::uint32_t mark_above_bytes = 0;     // with a rate: queue length from which CE is set; 0: never
  std::uint32_t trim_above_bytes = 0;     // with a rate: queue length from which data is trimmed; 0: never
  bool encode = true;                     // packets travel as bytes; otherwise as structs
  bool carry_payload = true;              // with encode: payload and ICRC travel too
};

class Pair {
 public:
  // Both endpoints must have been configured with `config.ports` ports.
  Pair(const PairConfig& config, const proto::EndpointConfig& a, const proto::EndpointConfig& b);
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  proto::Endpoint& side(std::uint32_t which) { return *endpoints_[which]; }
  std::uint32_t peer_id(std::uint32_t which) const { return peer_ids_[which]; }
  Time now() const { return now_; }

  // The direction is named by the side that sends.
  Weather& weather(std::uint32_t sender, std::uint32_t port) { return links_[sender][port].weather; }
  // Keeps account of every path from here on.
  void watch_paths() {
    for (auto& links : links_)
      for (Link& link : links) link.watches_paths = true;
  }
  // One EV of one direction swallows everything (or stops doing so).
  void set_ev_dead(std::uint32_t sender, std::uint32_t port, std::uint32_t entropy, bool is_dead);
  void set_ev_loss(std::uint32_t sender, std::uint32_t port, std::uint32_t entropy, double loss);
  // A side's packets and timers go through a process from here on; before there is any traffic.
  void set_process(std::uint32_t which, const ProcessConfig& config);
  // A side's process dies and another one starts on the same ports. Packets under way reach the new one; the old endpoint
  // is kept, out of reach of everything but its owner's questions.
  void restart(std::uint32_t which, const proto::EndpointConfig& config);
  // A stalled side neither receives nor sends until then; packets wait for it.
  void stall(std::uint32_t which, Time until) { stalled_until_[which] = until; }

  // Sends whatever both sides have ready now.
  void flush();
  // Moves the clock to `until`, through everything that happens before.
  void run(Time until);
  // The same, but stops early once nothing is in flight and no timer is set before `until`, or once `cq` of a side
  // holds at least `completions`; returns the number of packets delivered.
  std::uint64_t run_until_completions(Time until, std::uint32_t which, std::uint32_t cq, std::size_t completions);
  // Delivers one thing, or moves to `until`. False when `until` was reached.
  bool step(Time until);

  std::uint64_t trace_hash() const { return hash_; }
  std::uint64_t packets_delivered() const { return packets_delivered_; }
  std::uint64_t data_packets_sent(std::uint32_t sender, std::uint32_t port) const { return links_[sender][port].data_packets; }
  // The last packet for this path that the endpoint gave away; long ago if none did since it is watched.
  Time last_polled_at(std::uint32_t sender, std::uint32_t port, std::uint32_t entropy) const;

  struct Counters {
    std::uint64_t lost = 0, duplicated = 0, reordered = 0, corrupted = 0, trimmed = 0, marked = 0, swallowed = 0, starved = 0, overflowed = 0;
  };
  const Counters& counters() const { return counters_; }

 private:
  struct InFlight {
    proto::Arrival arrival;
    wire::ParseOptions options;
    wire::Packet packet;              // when packets travel as structs
    std::uint32_t size = 0;           // of the bytes at hand
    std::array<std::uint8_t, wire::max_header_size> header{};
    std::vector<std::uint8_t> bytes;  // when the payload travels too
  };
  // What is particular about one path (an EV on a port in one direction).
  struct Path {
    bool is_dead = false;
    double loss = 0;
    Duration extra{0};
    Time redraw_at{};
    Time last_arrival{};
    Time last_polled{};
  };
  struct Link {
    Weather weather;
    Time free_at{};
    Time neck_free_at{};
    std::uint64_t data_packets = 0;
    std::unordered_map<std::uint32_t, Path> paths;
    bool watches_paths = false;
  };

  // A side as its process sees it.
  struct Surroundings : Process::Surroundings {
    Pair* pair = nullptr;
    std::uint32_t side = 0;
    void hand_in(std::uint32_t slot) override { pair->hand_in(side, slot); }
    void leave(const proto::Transmit& transmit) override { pair->send(side, transmit); }
    std::uint32_t free_ports() override { return pair->free_ports(side); }
    Time next_free_port() const override { return pair->port_free_at_[side]; }
  };

  void drain(std::uint32_t sender);
  std::uint32_t free_ports(std::uint32_t sender);
  void send(std::uint32_t sender, const proto::Transmit& transmit);
  void launch(std::uint32_t sender, const proto::Transmit& transmit, Time at, bool marked, bool trimmed, bool copy_is_corrupt);
  Time arrival_time(Link& link, const proto::Transmit& transmit, Time departs);
  void refuse_for_want(std::uint32_t sender, const proto::Transmit& transmit, Time at);
  void deliver(std::uint32_t receiver);
  void hand_in(std::uint32_t receiver, std::uint32_t slot);
  void mix(std::uint64_t value);
  std::uint32_t take_slot();

  PairConfig config_;
  Time now_{};
  std::array<std::unique_ptr<proto::Endpoint>, 2> endpoints_;
  std::array<std::uint32_t, 2> peer_ids_{};
  std::array<std::vector<Link>, 2> links_;
  std::array<DeliveryQueue<std::uint32_t>, 2> toward_;  // by receiver; indexes into in_flight_
  std::deque<InFlight> in_flight_;
  std::vector<std::uint32_t> free_in_flight_;
  std::array<Process, 2> processes_;
  std::array<Surroundings, 2> surroundings_;
  std::vector<std::unique_ptr<proto::Endpoint>> dead_;
  std::array<Time, 2> stalled_until_{};
  std::array<Time, 2> port_free_at_{Time::never(), Time::never()};
  Prng prng_;
  std::uint64_t hash_ = 0xCBF29CE484222325u;
  std::uint64_t packets_delivered_ = 0;
  Counters counters_;
  proto::Transmit scratch_;
};

}  // namespace softmrc::sim
