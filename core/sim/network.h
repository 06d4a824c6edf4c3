// A whole fabric under the simulated clock: hosts at its edge, links and switches between them, flows that start each
// other, and faults at given times. This room introduces the parts to each other and moves time on, in windows:
//
//   shard.h      a part of the fabric for the length of a window, on a separate core; partition.h says which part
//   links.h      queues, marks, trims, faults; router.h says where a packet goes
//   hosts.h      who sends and receives: mrc_hosts.h runs the production endpoint, roce_hosts.h the rival
//   workload.h   which flow starts when
//   checker.h    the oracle: every byte exactly once, no packet from nothing
//   probe_traffic.h     packets of a mapper, which is no host
//   series.h, recovery.h   results of a run
//
// Windows lie on a grid of link delays, whatever the number of shards; between two of them all shards stand still, and
// whatever concerns more than one of them is done: faults, counting what was lost, seeing whether the run is over.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "sim/barrier.h"
#include "sim/network_config.h"
#include "sim/recovery.h"
#include "sim/series.h"
#include "sim/shard.h"

namespace softmrc::sim {

class Network final {
 public:
  explicit Network(const NetworkConfig& config);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  std::uint32_t add_flow(std::uint32_t source, std::uint32_t destination, std::uint32_t bytes, Time start);
  // Ranks, by their hosts; and what they call, each in a separate flow. Those that differ in `kind` or `bytes` are
  // called by all ranks in the same order.
  void add_group(const std::vector<std::uint32_t>& hosts) { world_.host_factory->add_group(hosts); }
  std::int32_t add_collective(const Collective& collective) { return world_.host_factory->add_collective(collective); }
  std::uint32_t add_call(std::int32_t collective, std::uint32_t rank, const Flow& flow);
  // A host computes for so long, and sends nothing because of it.
  std::uint32_t add_compute(std::uint32_t host, Duration lasts, Time start);
  void add_dependency(std::uint32_t earlier, std::uint32_t later, Duration think) {
    world_.workload.add_dependency(earlier, later, think);
  }
  // Before the run or during it; then not before `reached`.
  void add_fault(const Fault& fault);
  // A mapper's packet; where forwarding is by uSID only.
  void add_probe(const ProbeTraffic::MapperProbe& probe);
  bool is_survey_over() const;
  std::vector<ProbeTraffic::MapperProbe> take_probes() { return world_.survey.take(); }
  void sample_every(Duration bin);

  // Runs until all flows are complete and no probe is under way, `until` has passed, or about so many events were
  // handled; true while there is more to do. How a run is cut into calls does not change what happens in it.
  bool run(Time until, std::uint64_t max_events);

  // When the last flow was completed, if all are; else when the last event was, of the windows that are over.
  Time now() const { return now_; }
  // Up to here everything is over.
  Time reached() const;
  // Nothing will happen any more.
  bool is_idle() const;
  // Flows that are complete, in the windows that are over.
  std::uint32_t completed() const { return completed_; }
  // Those that simulate it: from the first event on, as many as were requested, or fewer where that is impossible.
  std::uint32_t cores() const { return world_.partition.shards(); }

  // The parts and their results, and sums over shards.
  const Fabric& fabric() const { return world_.fabric; }
  const NetworkConfig& config() const { return world_.config; }
  const LinkTable& links() const { return world_.links; }
  const Workload& workload() const { return world_.workload; }
  const HostFactory& hosts() const { return *world_.host_factory; }
  const Recovery& recovery() const { return recovery_; }
  std::uint64_t unsent() const;
  Series series() const;
  std::uint64_t events() const;
  std::uint64_t trace_hash() const;
  std::uint64_t bytes_placed() const;
  Time last_placed() const;
  Links::Counters link_counters() const;
  Hosts::Counters host_counters() const;
  std::vector<std::string> errors() const;

 private:
  void begin();
  void work(std::uint32_t shard);
  void move_on();
  bool open_window();
  void close_window();
  void apply_faults(Time at);
  void on_fault(const Fault& fault);
  bool is_done() const;
  bool is_placed(const Recovery::Lost& lost) const;
  void check_conserved() const;

  World world_;
  Series series_;              // empty: what every shard begins with
  std::vector<Fault> faults_;  // in the order of their times, and then in which they were added, from `next_fault_` on
  std::size_t next_fault_ = 0;
  std::vector<std::unique_ptr<Shard>> shards_;
  Recovery recovery_;
  bool has_begun_ = false;
  Time now_{};
  std::uint32_t completed_ = 0;

  // The window that is open, and how far this call goes.
  struct Window {
    Time end{};
    bool is_open = false;
    bool is_new = false;  // and the outboxes were not read yet
  };
  Window window_;
  Time until_{};
  std::uint64_t max_events_ = 0;
  std::uint64_t events_before_ = 0;
  std::unique_ptr<Barrier> barrier_;
  std::vector<char> is_through_;              // by shard: the window
  std::vector<std::exception_ptr> failures_;  // by shard, and one for all
  bool goes_on_ = false;
};

}  // namespace softmrc::sim
