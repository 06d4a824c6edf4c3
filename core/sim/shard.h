// A part of a network with its own clock: some leaves with their hosts, and some of the switches above. It
// simulates a window of time by itself; what happens elsewhere in that window cannot reach it before the next one,
// because it would have to cross a link. What crosses, goes through an Outbox.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sim/checker.h"
#include "sim/hosts.h"
#include "sim/links.h"
#include "sim/outbox.h"
#include "sim/probe_traffic.h"
#include "sim/recovery.h"
#include "sim/scheduler.h"
#include "sim/series.h"
#include "sim/sim_packet.h"
#include "sim/workload.h"

namespace softmrc::sim {

// What all shards look at. A shard changes what belongs to its own nodes and flows; the rest changes while all of them
// wait.
struct World {
  explicit World(const NetworkConfig& config);

  const NetworkConfig config;
  const Fabric fabric;
  Partition partition;
  LinkTable links;
  PacketArena packets;
  std::vector<Nic> nics;  // by host
  Workload workload;
  Checker checker;
  ProbeTraffic survey;
  std::unique_ptr<HostFactory> host_factory;
};

class Shard final : private HostObserver, private LinkObserver {
 public:
  Shard(World& world, std::uint32_t number, const Series& series);
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  void start_at(Time at, std::uint32_t flow) {
    scheduler_.push(at, EventKind::flow_start, world_.workload.flows()[flow].source, flow);
  }
  void probe_at(Time at, std::uint32_t host, std::uint32_t number) {
    scheduler_.push(at, EventKind::probe, host, number);
  }

  // Reads what the others wrote for it in the window before.
  void read(std::vector<std::unique_ptr<Shard>>& others);
  // Everything before `end`, but no more than so many events; whether that was all.
  bool run(Time end, std::uint64_t max_events);
  // The window is over.
  void seal() { outbox_.seal(packets_); }
  // A cable of one of its hosts went down or came up.
  void set_port(Time now, std::uint32_t host, std::uint32_t plane, bool is_up);

  // No event here, or in flight from here, is earlier.
  Time earliest() const { return std::min(scheduler_.earliest(), outbox_.earliest()); }
  Time now() const { return scheduler_.now(); }

  // What it found so far.
  struct Found {
    std::uint64_t events = 0;
    std::uint32_t completed = 0;  // flows
    Time last_completed = Time::long_ago();
    Time last_placed = Time::long_ago();  // or computed
    Checker::Seen seen;
    ProbeTraffic::Count survey;
    std::vector<Recovery::Lost> lost;  // of this window
    std::vector<Recovery::Resent> resent;
  };
  Found& found() { return found_; }
  const Found& found() const { return found_; }
  const Series& series() const { return series_; }
  const Links::Counters& link_counters() const { return links_.counters(); }
  const Hosts& hosts() const { return *hosts_; }
  std::int64_t parcels_in_use() const { return packets_.in_use(); }

 private:
  void on_lost(const SimPacket& packet_id) override;
  void on_dropped(const SimPacket& packet_id) override { found_.survey.lost += packet_id.is_survey; }
  void on_leave(std::uint32_t host, std::uint32_t packet_id) override;
  void on_placed(const Placement& placement) override;
  void on_landed(const Landing& landing) override;
  void on_bad_evs(std::int64_t change) override { series_.on_bad_evs(now(), change); }
  void on_delivered(std::uint32_t flow) override;
  void on_completed(std::uint32_t flow) override;
  bool is_port_down(std::uint32_t host, std::uint32_t plane) const override;

  void handle(const Scheduler::Event& event);
  void on_flow_start(std::uint32_t flow);
  void on_probe(std::uint32_t host, std::uint32_t number);
  void enter_time_wait(std::uint32_t host, std::uint32_t packet_id);
  void on_free_port(LinkId link);
  void on_pause(LinkId link, bool is_paused);
  void arm_timer(std::uint32_t host);
  void prefetch_state() const;
  void fetch_host(std::uint32_t host) const;

  World& world_;
  const std::uint32_t number_;
  Scheduler scheduler_;
  Outbox outbox_;
  PacketPool packets_;
  Links links_;
  std::unique_ptr<Hosts> hosts_;
  Series series_;
  Found found_;
};

}  // namespace softmrc::sim
