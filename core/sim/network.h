// A whole fabric under the simulated clock: hosts that run the production endpoint and nothing else, links with two
// queues each (control before data), switches that forward by what the packet carries, flows that start each other,
// and faults at given times.
//
// A hop costs one event where the link is idle and two where a packet waits. Packets travel as structs; the engine does
// not know the difference, which a test of Pair proves.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/prng.h"
#include "proto/endpoint.h"
#include "sim/baselines/roce.h"
#include "sim/fabric.h"
#include "sim/process.h"
#include "sim/scheduler.h"

namespace softmrc::sim {

enum class Forwarding : std::uint8_t {
  srv6,        // the packet's uSIDs name each switch; static tables
  ecmp,        // a hash of the flow and its EV at each switch; dead links leave the group after a delay
  structured,  // fields of the EV name the uplink of each tier
};

enum class Transport : std::uint8_t { mrc, roce };

struct QueueConfig {
  std::uint32_t data_bytes = 0;          // tail drop above this
  std::uint32_t control_bytes = 0;       // the same, for control packets and trimmed headers
  std::uint32_t ecn_low_bytes = 0;       // marking probability rises from 0 here ...
  std::uint32_t ecn_high_bytes = 0;      // ... to 1 here; both 0: no marking
  std::uint32_t trim_bytes = 0;          // data is trimmed above this; 0: never
  std::uint32_t last_hop_trim_bytes = 0;
  bool ecn_on_last_hop = false;
};

struct NetworkConfig {
  std::uint64_t seed = 1;
  FabricConfig fabric;
  QueueConfig queue;
  Forwarding forwarding = Forwarding::srv6;
  Transport transport = Transport::mrc;
  RoceConfig roce;                                  // with Transport::roce
  Duration convergence_delay = milliseconds(100);  // until ECMP groups leave out a dead link
  std::uint32_t data_overhead_bytes = 104;          // on the link, beside the payload
  std::uint32_t control_packet_bytes = 128;
  std::uint32_t trimmed_packet_bytes = 128;
  std::uint32_t mtu = 4096;
  std::uint32_t mpr = 16;
  std::uint32_t timeout = 8;
  std::uint32_t qps_per_pair = 1;                   // of MRC: flows between two hosts take them in turn
  bool hints = false;                               // queue pairs are told how many others there will be
  bool chain_on_acknowledgement = false;            // a flow that waits for another one starts when its sender knows
  ProcessConfig process;                            // of every host; by default none: NICs do the work
  proto::EndpointConfig endpoint;
  std::shared_ptr<const proto::EvProfile> ev_profile;
  std::shared_ptr<const proto::CcProfile> cc_profile;
};

// A flow is one write-with-immediate. It starts at `start`, or when the last of the flows it waits for was delivered (or
// acknowledged, where flows are chained on that).
struct Flow {
  std::uint32_t source = 0;
  std::uint32_t destination = 0;
  std::uint32_t bytes = 0;
  std::uint32_t waits_for = 0;      // flows still to be delivered before this one starts
  Duration think{0};                // pause between that delivery and the start
  Time start = Time::never();
  Time delivered = Time::never();   // the immediate reached the destination's completion queue
  Time completed = Time::never();   // the source saw its completion
  std::uint64_t first_packet = 0;   // where its packets lie in the checker's bitmap
  std::uint32_t bytes_placed = 0;   // with RoCE, whose parts arrive by several queue pairs
  std::uint32_t bytes_acknowledged = 0;
};

enum class FaultKind : std::uint8_t {
  down,        // both ends of the cable notice
  black_hole,  // nobody notices
  loss,        // value: probability
  corrupt,     // value: probability; the receiver's ICRC refuses the packet
  slow,        // value: share of the rate that is left; queues and their thresholds stay
  slow_scaled, // the same, and the queues and thresholds shrink with the rate
  ev_loss,     // value: probability, for one EV only: that of the next data packet to take the link
  heal,        // everything above ends
};

struct Fault {
  Time at{};
  FaultKind kind = FaultKind::down;
  LinkId link = 0;
  double value = 0;
};

class Network : private proto::TraceSink, private RoceObserver {
 public:
  explicit Network(const NetworkConfig& config);
  ~Network() override;
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  const Fabric& fabric() const { return fabric_; }

  std::uint32_t add_flow(std::uint32_t source, std::uint32_t destination, std::uint32_t bytes, Time start);
  // `later` starts only after `earlier` was delivered.
  void add_dependency(std::uint32_t earlier, std::uint32_t later, Duration think);
  void add_fault(const Fault& fault) { faults_.push_back(fault); }
  void sample_every(Duration bin);

  // Runs until all flows are complete, `until` passes, or so many events were handled; true while there is more to do.
  bool run(Time until, std::uint64_t max_events);

  Time now() const { return scheduler_.now(); }
  bool is_idle() const { return scheduler_.empty(); }
  const std::vector<Flow>& flows() const { return flows_; }
  std::uint32_t flows_completed() const { return flows_completed_; }

  struct Counters {
    std::uint64_t events = 0, link_hops = 0, data_packets = 0, control_packets = 0;
    std::uint64_t trimmed = 0, marked = 0, dropped = 0, lost_to_faults = 0, corrupted = 0;
    std::uint64_t retransmitted = 0, pauses = 0, broken_connections = 0;
    std::uint64_t bytes_placed = 0;
    std::uint64_t data_lost = 0;  // of lost_to_faults: data of MRC
  };
  const Counters& counters() const { return counters_; }
  std::uint64_t trace_hash() const { return hash_; }
  std::uint64_t bytes_on_link(LinkId link) const { return links_[link].bytes; }
  std::uint32_t max_queue_on_link(LinkId link) const { return links_[link].max_queue; }
  // Bytes placed per bin and plane, bin-major; EVs assumed bad at the end of each bin. Both grow with the run.
  const std::vector<std::uint64_t>& goodput_series() const { return goodput_; }
  const std::vector<std::int64_t>& bad_ev_series() const { return bad_evs_; }
  // EVs of all queue pairs that send, by state.
  std::array<std::uint64_t, 4> ev_census() const;
  // Sums of the counters of every queue pair.
  proto::QpStats total_stats() const;
  // Data packets that faults swallowed: when the last one was, when the last one was sent again, how many still wait.
  struct Recovery {
    Time last_lost = Time::long_ago();
    Time last_resent = Time::long_ago();
    std::uint64_t unsent = 0;
  };
  Recovery recovery() const;
  // Flows that are under way but not complete.
  std::vector<std::uint32_t> stuck_flows() const;

 private:
  static constexpr std::uint32_t none = 0xFFFFFFFF;
  static constexpr std::uint32_t first_qpn = 16;

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
    std::uint32_t peer = 0;   // the source, as the destination's endpoint numbers it
    std::uint32_t next = 0;   // in a queue or on the free list
    std::uint32_t bytes = 0;
    LinkId came_from = none;  // the link that brought it to this switch, for PFC
    std::uint8_t plane = 0;
    bool is_control = false;
    bool is_trimmable = false;
    bool congestion = false;
    bool is_corrupt = false;
    proto::Trim trim = proto::Trim::none;
    wire::Packet packet;
    RocePacket roce;
  };
  struct Fifo {
    std::uint32_t head = none;
    std::uint32_t tail = none;
  };
  // What every packet on it needs fits a cache line; what faults need lies apart.
  struct alignas(64) Link {
    Time busy_until{};
    std::uint64_t bytes = 0;
    Fifo data;
    Fifo control;
    std::uint32_t data_bytes = 0;
    std::uint32_t control_bytes = 0;
    std::uint32_t max_queue = 0;
    std::uint32_t ps_per_byte_q8 = 0; // serialisation time of a byte, in 1/256 ps
    std::uint32_t buffered = 0;       // bytes that came in by this link and wait in the switch at its end
    float queue_share = 1;            // of the configured queues and thresholds
    bool is_ready_armed = false;
    bool is_faulty = false;           // packets may be lost or broken on it: LinkFaults says how
    bool is_last_hop = false;
    bool is_paused = false;           // PFC: no data until told otherwise
    bool pause_asked = false;
  };
  static_assert(sizeof(Link) == 64);
  struct LinkFaults {
    Time dead_since = Time::never();  // for ECMP: groups leave it out after the convergence delay
    float loss = 0;
    float corrupt = 0;
    float ev_loss = 0;
    std::uint32_t lossy_ev = none;    // the EV that ev_loss hits; none until a packet names it
    bool is_black_hole = false;
  };
  struct RemotePeer {
    std::uint32_t host = 0;
    std::uint32_t our_id_there = 0;
  };
  // A host whose endpoint is driven by a process, and what that process sees.
  struct Driven : Process::Surroundings {
    Driven(Network& around, std::uint32_t host);
    void hand_in(std::uint32_t parcel) override { network.hand_in(host, parcel); }
    void leave(const proto::Transmit& transmit) override { network.inject(host, transmit); }
    std::uint32_t free_ports() override;
    Time next_free_port() const override { return Time::never(); }  // a port that has room again kicks it

    Network& network;
    std::uint32_t host;
    Process process;
  };
  struct Host {
    std::unique_ptr<proto::Endpoint> endpoint;
    std::unique_ptr<Driven> driven;
    std::vector<RemotePeer> peers;
    Time timer_at = Time::never();
    std::uint32_t busy_ports = 0;
    std::uint32_t paused_ports = 0;
    std::unique_ptr<RoceHost> roce;
    const proto::QueuePair* last_sender = nullptr;  // likely to send next, too: its memory is fetched ahead
  };
  // One queue pair per ordered pair of hosts that talk.
  struct Connection {
    std::uint32_t source = 0;
    std::uint32_t destination = 0;
    const proto::QueuePair* sender = nullptr;
    const proto::QueuePair* receiver = nullptr;
  };
  enum Kind : std::uint32_t { arrive, ready, timer, flow_start, fault, pause };

  void on(const proto::Event& event) override;
  void on_roce_placed(std::uint32_t flow, std::uint32_t offset, std::uint32_t bytes, std::uint8_t port) override;
  void on_roce_acknowledged(std::uint32_t flow, std::uint32_t bytes) override;
  void on_roce_broken(std::uint32_t qp) override;
  RoceHost& roce_of(std::uint32_t host);
  void start_roce_flow(std::uint32_t flow);
  void inject_roce(std::uint32_t host, const RoceSend& send);
  void check_placement(std::uint32_t flow, std::uint64_t offset, std::uint32_t bytes, std::uint8_t port);
  proto::Endpoint& endpoint_of(std::uint32_t host);
  std::uint32_t connection(std::uint32_t source, std::uint32_t destination, std::uint32_t lane);
  proto::InitAttributes hints_for(std::uint32_t source, std::uint32_t destination) const;
  void count_peers();
  void start_flow(std::uint32_t flow);
  void on_delivered(std::uint32_t flow);
  void on_completed(std::uint32_t flow);
  void start_waiting(std::uint32_t flow);
  void collect_completions(std::uint32_t host);
  void drain(std::uint32_t host);
  void arm_timer(std::uint32_t host);
  void inject(std::uint32_t host, const proto::Transmit& transmit);
  void deliver(std::uint32_t host, std::uint32_t parcel);
  void hand_in(std::uint32_t host, std::uint32_t parcel);
  void on_timer(std::uint32_t host);
  void on_arrive(LinkId link, std::uint32_t parcel);
  void on_ready(LinkId link);
  void apply_fault(const Fault& fault);
  void set_port_state(LinkId link, bool is_up);
  void lose(std::uint32_t parcel);
  bool is_placed(std::uint64_t va) const;
  bool is_swallowed(LinkId link, const Parcel& parcel);
  bool is_corrupted(LinkId link);
  std::size_t bin_now();

  void enqueue(LinkId link, std::uint32_t parcel);
  bool admit(Link& link, std::uint32_t id);
  void cut(Parcel& parcel, bool last_hop);
  bool should_mark(const Link& link);
  void transmit(LinkId link, std::uint32_t parcel);
  void kick(LinkId link);
  void count_buffered(LinkId came_from, std::int64_t bytes);
  void on_pause(LinkId link, bool is_paused);
  void push(Fifo& fifo, std::uint32_t parcel);
  std::uint32_t pop(Fifo& fifo);

  Route make_route(std::uint32_t source, std::uint32_t destination, std::uint32_t entropy, std::uint32_t plane) const;
  LinkId next_link(const Node& at, const Parcel& parcel) const;
  LinkId forward_by_usid(const Node& at, const Parcel& parcel) const;
  void fetch_ahead() const;
  void fetch_host(const Scheduler::Event& event, bool is_second_step) const;
  const proto::QueuePair* pair_of(const Scheduler::Event& event) const;
  LinkId forward_by_choice(const Node& at, const Parcel& parcel) const;
  LinkId choose_uplink(const Node& at, const Parcel& parcel) const;
  bool is_routable(LinkId link) const;
  bool is_host_up(LinkId link) const { return link % links_per_plane_ < config_.fabric.hosts; }

  static constexpr std::uint32_t max_roce_qps = 16;
  Parcel& parcel(std::uint32_t id) { return parcel_chunks_[id >> chunk_bits][id & (chunk_size - 1)]; }
  const Parcel& parcel(std::uint32_t id) const { return parcel_chunks_[id >> chunk_bits][id & (chunk_size - 1)]; }
  std::uint32_t take_parcel();
  void drop_parcel(std::uint32_t id);
  void mix(std::uint64_t value) { hash_ = (hash_ ^ value) * 0x100000001B3u ^ (hash_ >> 29); }

  NetworkConfig config_;
  Fabric fabric_;
  std::uint32_t links_per_plane_ = 0;
  Scheduler scheduler_;
  Prng prng_;
  std::vector<Link> links_;
  std::vector<Node> link_to_;
  std::vector<std::uint8_t> is_down_;  // by link: asked of every packet that arrives
  std::unordered_map<LinkId, LinkFaults> link_faults_;  // asked, never walked
  std::vector<Host> hosts_;
  static constexpr unsigned chunk_bits = 12;
  static constexpr std::uint32_t chunk_size = 1u << chunk_bits;
  std::vector<std::unique_ptr<Parcel[]>> parcel_chunks_;
  std::uint32_t free_parcels_ = none;
  std::vector<Flow> flows_;
  struct Dependency {
    std::uint32_t earlier = 0;
    std::uint32_t later = 0;
    Duration think{0};
  };
  std::vector<Dependency> dependencies_;  // sorted by `earlier` before the first event
  std::unordered_map<std::uint64_t, std::uint32_t> connection_ids_;
  std::unordered_map<std::uint64_t, std::uint32_t> next_lane_;  // by pair of hosts, where they have several
  std::vector<std::uint16_t> send_peers_, receive_peers_;       // by host, where there are hints
  std::vector<Connection> connections_;
  std::vector<std::uint64_t> placed_;  // a bit per packet of every flow
  std::uint64_t packets_planned_ = 0;
  bool is_lossless_ = false;           // PFC: the switch's shared buffer takes what pausing let through
  std::vector<Fault> faults_;
  std::uint32_t flows_completed_ = 0;
  bool has_started_ = false;
  Counters counters_;
  std::uint64_t hash_ = 0xCBF29CE484222325u;
  Duration bin_{0};
  std::vector<std::uint64_t> goodput_;
  std::vector<std::int64_t> bad_evs_;
  std::int64_t bad_evs_now_ = 0;
  std::unordered_set<std::uint64_t> lost_packets_;  // queue pair and PSN; asked, never walked
  Recovery recovery_;
  proto::Transmit scratch_;
};

}  // namespace softmrc::sim
