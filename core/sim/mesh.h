// Endpoints, each joined to each by planes, and a clock that only moves when it is called: the fixture that every test
// of the engine stands on, mostly with two of them. Each plane from one to another is a link with a delay and a list of
// faults, and a side's port to a plane may have a rate; single EVs can go wrong by themselves. The network
// draws from its own random stream, so the same seed gives the same run, and `trace_hash` says whether it did.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/prng.h"
#include "base/time.h"
#include "proto/endpoint.h"
#include "sim/delivery_queue.h"
#include "sim/process.h"
#include "sim/sim_driver.h"

namespace softmrc::sim {

// What one direction of one plane does to its packets. Probabilities are per packet.
struct MeshFaults {
  double loss = 0;
  double duplicate = 0;
  double reorder = 0;  // share of packets held back by up to `reorder_delay`
  Duration reorder_delay{0};
  double corrupt = 0;            // one bit flips; where bytes travel, only the ICRC notices
  double trim = 0;               // data packets that lose their payload
  double mark = 0;               // data packets that get CE
  double starve = 0;             // data packets that the receiver answers with RNR
  bool black_hole = false;       // drops everything silently
  bool spares_control = false;   // loss, corruption and reordering befall data only
  Duration delay{0};             // every packet is this much later
  std::uint64_t neck_bps = 0;    // somewhere behind the port is a slower link; 0: none
  std::uint64_t neck_bytes = 0;  // and that its queue holds, what comes then is lost; 0: any number
  Duration path_jitter{0};       // every path gets its own extra delay up to this, drawn again now and then, in order
};

struct MeshConfig {
  std::uint64_t seed = 1;
  std::uint32_t ports = 4;
  Duration starts_at{0};  // what every clock says when the run begins
  Duration one_way_delay = microseconds(4);
  std::uint64_t port_rate_bps = 0;     // 0: no serialisation delay and no queue
  std::uint32_t mark_above_bytes = 0;  // with a rate: queue length from which CE is set; 0: never
  std::uint32_t trim_above_bytes = 0;  // with a rate: queue length from which data is trimmed; 0: never
  bool encode = true;                  // packets travel as bytes; otherwise as structs
  bool carry_payload = true;           // with encode: payload and ICRC travel too
};

class Mesh final : private SimDriver::Context {
 public:
  // All endpoints must have been configured with `config.ports` ports.
  Mesh(const MeshConfig& config, const std::vector<proto::EndpointConfig>& sides);
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  std::uint32_t sides() const { return static_cast<std::uint32_t>(sides_.size()); }
  proto::Endpoint& side(std::uint32_t which) { return *sides_[which].endpoint; }
  // Who lives on a side's endpoint does so by this.
  SimDriver& driver(std::uint32_t which) { return *sides_[which].driver; }
  // What a side's endpoint knows another side by.
  static std::uint32_t peer_id(std::uint32_t of, std::uint32_t other) { return other < of ? other : other - 1; }
  Time now() const override { return now_; }

  MeshFaults& faults(std::uint32_t sender, std::uint32_t receiver, std::uint32_t port) {
    return link(sender, receiver, port).faults;
  }
  // Keeps account of every path from here on.
  void watch_paths() {
    for (Link& link : links_) link.watches_paths = true;
  }
  // One EV of one direction drops everything (or stops doing so).
  void set_ev_dead(std::uint32_t sender, std::uint32_t receiver, std::uint32_t port, std::uint32_t entropy,
                   bool is_dead);
  void set_ev_loss(std::uint32_t sender, std::uint32_t receiver, std::uint32_t port, std::uint32_t entropy,
                   double loss);
  // A side's packets and timers go through a process from here on; before there is any traffic.
  void set_process(std::uint32_t which, const ProcessConfig& config);
  // A side's process dies and another one starts on the same ports. Packets under way reach the new one; the old
  // endpoint is kept, out of reach of everything but its owner's questions.
  void restart(std::uint32_t which, const proto::EndpointConfig& config);
  // A side's process dies, and nothing comes after it. Its host may report that to those that send to it.
  void kill(std::uint32_t which, bool host_says_so);
  // A stalled side neither receives nor sends until then; packets wait for it.
  void stall(std::uint32_t which, Time until) { sides_[which].stalled_until = until; }

  // An attacker in a side's memory that changes what it writes before it is encrypted; where payload travels.
  struct Forger {
    virtual ~Forger() = default;
    virtual void forge(std::uint32_t sender, std::uint32_t receiver, const wire::Packet& packet,
                       std::span<std::uint8_t> payload) = 0;
  };
  void set_forger(Forger* forger) { forger_ = forger; }

  // Sends whatever the sides have ready now.
  void flush();
  // Moves the clock to `until`, through everything that happens before.
  void run(Time until);
  // The same, until something is over or so much time has passed; whether it is.
  bool pass(const std::function<bool()>& is_over, Duration timeout) override;
  // The same, but stops early once nothing is in flight and no timer is set before `until`, or once `cq` of a side
  // holds at least `completions`; returns the number of packets delivered.
  std::uint64_t run_until_completions(Time until, std::uint32_t which, std::uint32_t cq, std::size_t completions);
  // Delivers one thing, or moves to `until`. False when `until` was reached.
  bool step(Time until);

  std::uint64_t trace_hash() const { return hash_; }
  std::uint64_t packets_delivered() const { return packets_delivered_; }
  std::uint64_t data_packets_sent(std::uint32_t sender, std::uint32_t receiver, std::uint32_t port) const {
    return link(sender, receiver, port).data_packets;
  }
  // The last packet for this path that the endpoint gave away; long ago if none did since it is watched.
  Time last_polled_at(std::uint32_t sender, std::uint32_t receiver, std::uint32_t port, std::uint32_t entropy) const;

  struct Counters {
    std::uint64_t lost = 0, duplicated = 0, reordered = 0, corrupted = 0, trimmed = 0, marked = 0, swallowed = 0,
                  starved = 0, overflowed = 0;
  };
  const Counters& counters() const { return counters_; }

 private:
  struct InFlight {
    std::uint32_t sender = 0;
    proto::Arrival arrival;
    wire::ParseOptions options;
    wire::Packet packet;     // when packets travel as structs
    std::uint32_t size = 0;  // of the bytes at hand
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
  // One plane, from one side to another.
  struct Link {
    MeshFaults faults;
    Time neck_free_at{};
    std::uint64_t data_packets = 0;
    std::unordered_map<std::uint32_t, Path> paths;
    bool watches_paths = false;
  };

  // A side, also as its process sees it.
  struct Side final : Process::Surroundings {
    Side(Mesh& all, std::uint32_t which) : mesh(all), number(which) {}
    void hand_in(std::uint32_t slot) override { mesh.hand_in(number, slot); }
    void leave(const proto::Transmit& transmit) override { mesh.send(number, transmit); }
    std::uint32_t free_ports() override { return mesh.free_ports(*this); }
    Time next_free_port() const override { return port_free_at; }
    bool progress() override { return driver->progress(); }
    Time progress_handlers_at() const override { return driver->deadline(); }

    Mesh& mesh;
    const std::uint32_t number;
    std::unique_ptr<proto::Endpoint> endpoint;
    std::unique_ptr<SimDriver> driver;
    Process process;
    std::vector<Time> free_at;            // by port
    DeliveryQueue<std::uint32_t> toward;  // indexes into in_flight_
    Time stalled_until{};
    Time port_free_at = Time::never();
    bool is_dead = false;
    bool is_known_dead = false;  // to those that send to it
  };

  void on_posted(std::uint32_t which) override { drain(sides_[which]); }
  Link& link(std::uint32_t sender, std::uint32_t receiver, std::uint32_t port) {
    return links_[(sender * sides_.size() + receiver) * config_.ports + port];
  }
  const Link& link(std::uint32_t sender, std::uint32_t receiver, std::uint32_t port) const {
    return const_cast<Mesh*>(this)->link(sender, receiver, port);
  }
  void equip(Side& side, const proto::EndpointConfig& config);
  void drain(Side& sender);
  std::uint32_t free_ports(Side& sender);
  void send(std::uint32_t sender, const proto::Transmit& transmit);
  void launch(std::uint32_t sender, std::uint32_t receiver, const proto::Transmit& transmit, Time at, bool marked,
              bool trimmed, bool copy_is_corrupt);
  Time arrival_time(Link& link, const proto::Transmit& transmit, Time departs);
  void refuse_for_want(std::uint32_t sender, std::uint32_t receiver, const proto::Transmit& transmit, Time at);
  void deliver(Side& receiver);
  void hand_in(std::uint32_t receiver, std::uint32_t slot);
  void mix(std::uint64_t value);
  std::uint32_t take_slot();

  MeshConfig config_;
  Time now_{};
  std::deque<Side> sides_;
  std::vector<Link> links_;
  std::deque<InFlight> in_flight_;
  std::vector<std::uint32_t> free_in_flight_;
  std::vector<std::unique_ptr<proto::Endpoint>> dead_;
  Prng prng_;
  std::uint64_t hash_ = 0xCBF29CE484222325u;
  std::uint64_t packets_delivered_ = 0;
  Counters counters_;
  proto::Transmit scratch_;
  Forger* forger_ = nullptr;
};

}  // namespace softmrc::sim
