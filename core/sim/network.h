// A whole fabric under the simulated clock: hosts at its edge, links and switches between them, flows that start each other,
// and faults at given times. This room introduces the parts to each other and keeps the order of events; what each of them
// does is its own affair:
//
//   links.h      queues, marks, trims, faults; where a packet goes is asked of router.h
//   hosts.h      who sends and receives: mrc_hosts.h runs the production endpoint, roce_hosts.h the rival
//   workload.h   which flow starts when
//   checker.h    the oracle: every byte exactly once, no packet from nothing
//   survey.h     packets of a mapper, which is no host
//   series.h, recovery.h   what a run is asked about afterwards
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sim/checker.h"
#include "sim/fabric.h"
#include "sim/hosts.h"
#include "sim/links.h"
#include "sim/network_config.h"
#include "sim/parcel.h"
#include "sim/recovery.h"
#include "sim/scheduler.h"
#include "sim/series.h"
#include "sim/survey.h"
#include "sim/workload.h"

namespace softmrc::sim {

class Network final : private HostObserver, private LinkObserver {
 public:
  explicit Network(const NetworkConfig& config);
  ~Network() override;
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  std::uint32_t add_flow(std::uint32_t source, std::uint32_t destination, std::uint32_t bytes, Time start);
  // Ranks, by their hosts; and what they call, each in a flow of its own. Those that differ in `kind` or `bytes` are called
  // by all ranks in the same order.
  void add_group(const std::vector<std::uint32_t>& hosts) { hosts_->add_group(hosts); }
  std::int32_t add_collective(const Collective& collective) { return hosts_->add_collective(collective); }
  std::uint32_t add_call(std::int32_t collective, std::uint32_t rank, const Flow& flow);
  void add_dependency(std::uint32_t earlier, std::uint32_t later, Duration think) { workload_.add_dependency(earlier, later, think); }
  // Before the run or during it; then at a time still to come.
  void add_fault(const Fault& fault);
  // A mapper's packet; where forwarding is by uSID only.
  void add_shot(const Survey::Shot& shot) { scheduler_.push(shot.at, Happening::shot, shot.host, survey_.add(shot)); }
  bool is_survey_over() const { return survey_.is_over(); }
  std::vector<Survey::Shot> take_shots() { return survey_.take(); }
  void sample_every(Duration bin) { series_.sample_every(bin); }

  // Runs until all flows are complete and no survey is under way, `until` passes, or so many events were handled; true while there is more to do.
  bool run(Time until, std::uint64_t max_events);

  Time now() const { return scheduler_.now(); }
  bool is_idle() const { return scheduler_.empty(); }
  std::uint64_t events() const { return events_; }

  // The parts, to be asked what they found.
  const Fabric& fabric() const { return fabric_; }
  const Links& links() const { return links_; }
  const Hosts& hosts() const { return *hosts_; }
  const Workload& workload() const { return workload_; }
  const Checker& checker() const { return checker_; }
  const Series& series() const { return series_; }
  const Recovery& recovery() const { return recovery_; }
  const NetworkConfig& config() const { return config_; }

 private:
  void on_lost(const Parcel& parcel) override;
  void on_dropped(const Parcel& parcel) override { if (parcel.is_survey) survey_.on_lost(); }
  void on_leave(std::uint32_t host, std::uint32_t parcel) override;
  void on_placed(const Placement& placement) override;
  void on_landed(const Landing& landing) override;
  void on_bad_evs(std::int64_t change) override { series_.on_bad_evs(now(), change); }
  void on_delivered(std::uint32_t flow) override;
  void on_completed(std::uint32_t flow) override;
  bool is_port_down(std::uint32_t host, std::uint32_t plane) const override;

  void begin();
  void start_at(Time at, std::uint32_t flow) { scheduler_.push(at, Happening::flow_start, workload_.flows()[flow].source, flow); }
  void handle(const Scheduler::Event& event);
  void on_shot(std::uint32_t host, std::uint32_t number);
  void depart(std::uint32_t host, std::uint32_t parcel);
  void on_free_port(LinkId link);
  void on_pause(LinkId link, bool is_paused);
  void on_fault(const Fault& fault);
  void arm_timer(std::uint32_t host);
  void fetch_ahead() const;
  void fetch_host(std::uint32_t host) const;
  void check_conserved() const;

  // What the parts refer to comes before them.
  const NetworkConfig config_;
  const Fabric fabric_;
  Scheduler scheduler_;
  Parcels parcels_;
  std::vector<Nic> nics_;  // by host
  Links links_;
  std::unique_ptr<Hosts> hosts_;
  Workload workload_;
  std::vector<Fault> faults_;
  Checker checker_;
  Series series_;
  Recovery recovery_;
  Survey survey_;
  std::uint64_t events_ = 0;
  bool has_begun_ = false;
};

}  // namespace softmrc::sim
