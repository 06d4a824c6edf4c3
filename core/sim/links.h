// Links with two queues each (control before data), the switches between them, and what both do to packets: delay,
// mark, trim, drop, pause, lose. Who sends, and what becomes of a packet that reached a host, is left to others.
//
// A hop costs one event where the link is idle and two where a packet waits.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/fabric.h"
#include "sim/link_faults.h"
#include "sim/network_config.h"
#include "sim/outbox.h"
#include "sim/partition.h"
#include "sim/router.h"
#include "sim/scheduler.h"
#include "sim/sim_packet.h"

namespace softmrc::sim {

// What happens in a network, by the number that the scheduler carries.
struct EventKind {
  enum Kind : std::uint32_t {
    arrive,      // at the end of link `who`: packet `what`
    ready,       // link `who` may transmit its next packet
    pause,       // link `who` is to pause, or may go on
    timer,       // host `who` wanted to be called
    flow_start,  // flow `what`, at its source `who`
    flow_meet,   // flow `what`, which has started, is announced to its destination `who`
    probe,       // number `what` of a survey leaves
    computed,    // flow `what`, in which its source `who` computes, is over
  };
};

// Is called for packets that faults took, and for those that found no space or no path.
struct LinkObserver {
  virtual ~LinkObserver() = default;
  virtual void on_lost(const SimPacket& packet_id) = 0;
  virtual void on_dropped(const SimPacket&) {}
};

// All links. What belongs to the beginning of one is touched by the shard of the node there, what belongs to its end by
// that node's; how it is broken changes only while all shards wait.
class LinkTable {
 public:
  explicit LinkTable(const Fabric& fabric);

  // Sets the shard of every link's end.
  void divide(const Partition& partition);
  void apply(Time now, const Fault& fault);

  const FabricNode& end_of(LinkId at) const { return ends_[at]; }
  const LinkFaults& faults() const { return faults_; }
  std::uint64_t bytes_on(LinkId at) const { return links_[at].bytes; }
  std::uint32_t max_queue_on(LinkId at) const { return links_[at].max_queue; }

 private:
  friend class Links;

  // What every packet on it needs fits a cache line; what faults need lies apart.
  struct alignas(64) Link {
    Time busy_until{};
    std::uint64_t bytes = 0;
    PacketFifo data;
    PacketFifo control;
    std::uint32_t data_bytes = 0;
    std::uint32_t control_bytes = 0;
    std::uint32_t max_queue = 0;
    std::uint32_t ps_per_byte_q8 = 0;  // serialisation time of a byte, in 1/256 ps
    std::uint32_t buffered = 0;        // bytes that came in by this link and wait in the switch at its end
    float queue_share = 1;             // of the configured queues and thresholds
    std::uint16_t draws = 0;           // what was left to chance on it, so often
    bool is_ready_armed = false;
    bool is_first_hop = false;
    bool is_last_hop = false;
    bool is_paused = false;    // PFC: no data until it is resumed
    bool pause_asked = false;  // by the node at its end
    std::uint8_t end_shard = 0;
  };
  static_assert(sizeof(Link) == 64);

  double byte_time_q8(LinkId at) const;

  const Fabric& fabric_;
  std::vector<Link> links_;
  std::vector<FabricNode> ends_;
  LinkFaults faults_;
};

// The links of one shard.
class Links {
 public:
  struct Counters {
    std::uint64_t hops = 0, trimmed = 0, marked = 0, dropped = 0, lost = 0, corrupted = 0, pauses = 0;

    Counters& operator+=(const Counters& other);
  };
  // Where they lie, who moves them, and who observes that; all of it outlives them.
  struct Context {
    const NetworkConfig& config;
    const Fabric& fabric;
    LinkTable& table;
    const Partition& partition;
    std::uint32_t shard;
    Scheduler& scheduler;
    Outbox& outbox;
    PacketPool& packets;
    LinkObserver& observer;
  };

  explicit Links(const Context& place);
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  // To the scheduler of that shard.
  void send(std::uint32_t shard, const Scheduler::Event& event);

  // A packet leaves a host by this link, which is idle, or by and by, in the order of these calls.
  void leave(LinkId at, std::uint32_t id) { transmit(at, id); }
  void leave_later(LinkId at, std::uint32_t id) { links_[at].data.push(packets_, id); }

  // The three happenings of a link. True: the host at its end has the packet now; the host at its beginning has a free
  // port; that host must heed the pause.
  [[nodiscard]] bool on_arrive(LinkId at, std::uint32_t id);
  [[nodiscard]] bool on_ready(LinkId at);
  [[nodiscard]] bool on_pause(LinkId at, bool is_paused);

  const Router& router() const { return router_; }
  const Counters& counters() const { return counters_; }

  // The host that an arrival or a free port is a matter of, if it is one's.
  std::uint32_t host_of(const Scheduler::Event& event) const {
    if (event.kind() == EventKind::arrive && ends_[event.who()].tier == Tier::host) return ends_[event.who()].index;
    if (event.kind() == EventKind::ready && links_[event.who()].is_first_hop) return fabric_.host_before(event.who());
    return no_host;
  }
  // Asks for the memory of what is to happen, one step of the pointer chain at a time: the link and the packet first,
  // then what lies behind them. False: only the host knows what that is.
  void fetch_link(const Scheduler::Event& event) const;
  bool fetch_behind(const Scheduler::Event& event) const;

 private:
  void enqueue(LinkId at, std::uint32_t id);
  bool admit(LinkId at, std::uint32_t id);
  void cut(SimPacket& packet_id, bool last_hop);
  LinkRng draw(LinkId at) { return {seed_, at, now(), links_[at].draws++}; }
  bool should_mark(LinkId at);
  void transmit(LinkId at, std::uint32_t id);
  void kick(LinkId at);
  void ask_to_pause(LinkId came_from, bool is_paused);
  void count_buffered(LinkId came_from, std::int64_t bytes);
  void lose(std::uint32_t id);
  void drop(std::uint32_t id);
  Time now() const { return scheduler_.now(); }

  using Link = LinkTable::Link;

  const NetworkConfig& config_;
  const Fabric& fabric_;
  const Partition& partition_;
  const std::uint32_t shard_;
  Scheduler& scheduler_;
  Outbox& outbox_;
  PacketPool& packets_;
  LinkObserver& observer_;
  std::vector<Link>& links_;
  const std::vector<FabricNode>& ends_;
  LinkFaults& faults_;
  const std::uint64_t seed_;
  Router router_;
  bool is_lossless_;          // PFC: the switch's shared buffer takes what pausing let through
  std::uint32_t xoff_bytes_;  // a link is paused when more of what it brought waits, and goes on when less does
  std::uint32_t xon_bytes_;
  Counters counters_;
};

}  // namespace softmrc::sim
