#include "sim/network.h"

#include <algorithm>
#include <thread>

#include "base/check.h"

namespace softmrc::sim {
namespace {

// As long as nothing can cross a link in it, and whole spans of the scheduler where that is possible.
Duration window_of(const NetworkConfig& config) {
  constexpr std::int64_t span = std::int64_t{1} << Scheduler::span_bits;
  const std::int64_t delay = config.fabric.link_delay.ps;
  if (delay <= 0) return microseconds(1);
  return Duration{delay < span ? delay : delay / span * span};
}

template <typename Counters, typename Add>
Counters sum(const std::vector<std::unique_ptr<Shard>>& shards, Add add) {
  Counters all{};
  for (const std::unique_ptr<Shard>& shard : shards) add(all, *shard);
  return all;
}

}  // namespace

Network::Network(const NetworkConfig& config) : world_(config), series_(config.fabric.planes) {}

// Who lives on hosts leaves before the clocks do.
Network::~Network() { world_.host_factory.reset(); }

std::uint32_t Network::add_flow(std::uint32_t source, std::uint32_t destination, std::uint32_t bytes, Time start) {
  SOFTMRC_CHECK(source < world_.nics.size() && destination < world_.nics.size());
  world_.checker.plan(source, destination, bytes);
  return world_.workload.add(source, destination, bytes, start);
}

// The oracle has no plan for what a collective sends: it watches that everything lands once, and that all of it does.
std::uint32_t Network::add_call(std::int32_t collective, std::uint32_t rank, const Flow& flow) {
  SOFTMRC_CHECK(flow.source < world_.nics.size());
  world_.checker.plan(flow.source, flow.destination, 0);
  Flow call = flow;
  call.collective = collective;
  call.rank = rank;
  return world_.workload.add(call);
}

std::uint32_t Network::add_compute(std::uint32_t host, Duration lasts, Time start) {
  SOFTMRC_CHECK(host < world_.nics.size() && lasts.ps >= 0);
  world_.checker.plan(host, host, 0);
  Flow flow;
  flow.source = flow.destination = host;
  flow.lasts = lasts;
  flow.start = start;
  return world_.workload.add(flow);
}

void Network::add_fault(const Fault& fault) {
  const auto later = [](const Fault& a, const Fault& b) { return a.at < b.at; };
  const auto from = faults_.begin() + static_cast<std::ptrdiff_t>(next_fault_);
  faults_.insert(std::upper_bound(from, faults_.end(), fault, later), fault);
}

void Network::add_probe(const ProbeTraffic::MapperProbe& probe) {
  const std::uint32_t number = world_.survey.add(probe);
  if (has_begun_) shards_[world_.partition.of_host(probe.host)]->probe_at(probe.at, probe.host, number);
}

void Network::sample_every(Duration bin) {
  SOFTMRC_CHECK(!has_begun_);
  series_.sample_every(bin);
}

// Flows that start each other from afar, at once, hold everything together.
void Network::begin() {
  has_begun_ = true;
  const std::uint32_t most = world_.workload.is_local() ? Partition::most(world_.fabric) : 1;
  world_.partition = Partition(world_.fabric, std::clamp(world_.config.cores, 1u, most));
  world_.links.divide(world_.partition);
  for (std::uint32_t i = 0; i < cores(); ++i) shards_.push_back(std::make_unique<Shard>(world_, i, series_));
  is_through_.resize(cores());
  failures_.resize(cores() + 1);
  barrier_ = std::make_unique<Barrier>(cores());
  world_.checker.expect(world_.host_factory->begin(world_.workload.flows()));
  const auto at = [this](std::uint32_t host) -> Shard& { return *shards_[world_.partition.of_host(host)]; };
  world_.workload.begin(
      [&](Time start, std::uint32_t flow) { at(world_.workload.flows()[flow].source).start_at(start, flow); });
  const std::vector<ProbeTraffic::MapperProbe>& probes = world_.survey.probes();
  for (std::uint32_t i = 0; i < probes.size(); ++i) at(probes[i].host).probe_at(probes[i].at, probes[i].host, i);
}

bool Network::run(Time until, std::uint64_t max_events) {
  if (!has_begun_) begin();
  until_ = until;
  max_events_ = std::max<std::uint64_t>(1, max_events / cores());
  events_before_ = events();
  goes_on_ = window_.is_open || open_window();
  if (goes_on_) {
    std::vector<std::jthread> team;
    for (std::uint32_t i = 1; i < cores(); ++i) team.emplace_back([this, i] { work(i); });
    work(0);
  }
  for (const std::exception_ptr& failure : failures_)
    if (failure) std::rethrow_exception(failure);
  if (window_.is_open) return true;
  if (!is_done() && !is_idle() && now_ <= until_) return true;
  check_conserved();
  return false;
}

// What every core does: window after window, until `move_on` says that it is enough.
void Network::work(std::uint32_t number) {
  Shard& shard = *shards_[number];
  while (goes_on_) {
    try {
      if (window_.is_new) shard.read(shards_);
      if (!is_through_[number] && shard.run(window_.end, max_events_)) {
        is_through_[number] = true;
        shard.seal();
      }
    } catch (...) {
      failures_[number] = std::current_exception();
    }
    barrier_->wait([this] { move_on(); });
  }
}

// While all others wait.
void Network::move_on() {
  try {
    window_.is_new = false;
    goes_on_ = false;
    if (std::any_of(failures_.begin(), failures_.end(), [](const std::exception_ptr& one) { return one != nullptr; }))
      return;
    if (std::find(is_through_.begin(), is_through_.end(), 0) != is_through_.end()) return;
    close_window();
    if (events() - events_before_ >= max_events_ * cores()) return;
    goes_on_ = open_window();
  } catch (...) {
    failures_.back() = std::current_exception();
    goes_on_ = false;
  }
}

// The next stretch of time in which something happens, up to the grid's next line or the next fault. False: there is
// none, or it is not asked for.
bool Network::open_window() {
  const Duration length = window_of(world_.config);
  for (;;) {
    if (is_done() || now_ > until_) return false;
    Time first = Time::never();
    for (const std::unique_ptr<Shard>& shard : shards_) first = std::min(first, shard->earliest());
    const Time fault = next_fault_ < faults_.size() ? faults_[next_fault_].at : Time::never();
    if (fault == Time::never() && first == Time::never()) return false;
    if (fault <= first) {
      apply_faults(fault);
      continue;
    }
    const Time grid_end{(first.ps / length.ps + 1) * length.ps};
    window_ = {std::min(grid_end, fault), true, true};
    std::fill(is_through_.begin(), is_through_.end(), 0);
    return true;
  }
}

void Network::close_window() {
  window_.is_open = false;
  std::vector<Recovery::Lost> lost;
  std::vector<Recovery::Resent> resent;
  Time last_completed = Time::long_ago();
  completed_ = 0;
  for (const std::unique_ptr<Shard>& shard : shards_) {
    Shard::Found& found = shard->found();
    lost.insert(lost.end(), found.lost.begin(), found.lost.end());
    resent.insert(resent.end(), found.resent.begin(), found.resent.end());
    found.lost.clear();
    found.resent.clear();
    completed_ += found.completed;
    last_completed = std::max(last_completed, found.last_completed);
    now_ = std::max(now_, shard->now());
  }
  recovery_.settle(lost, resent, [this](const Recovery::Lost& one) { return is_placed(one); });
  if (is_done() && completed_ > 0) now_ = last_completed;
  else if (next_fault_ < faults_.size() && faults_[next_fault_].at == window_.end) apply_faults(window_.end);
}

void Network::apply_faults(Time at) {
  now_ = std::max(now_, at);
  for (; next_fault_ < faults_.size() && faults_[next_fault_].at == at; ++next_fault_) on_fault(faults_[next_fault_]);
}

// The host at one end of a cable sees it go down and come up.
void Network::on_fault(const Fault& f) {
  const bool was_down = world_.links.faults().is_down(f.link);
  world_.links.apply(f.at, f);
  const bool is_up = f.kind == FaultKind::heal && was_down;
  if (!is_up && f.kind != FaultKind::down) return;
  const FabricNode from = world_.fabric.from(f.link);
  const FabricNode& end = from.tier == Tier::host ? from : world_.links.end_of(f.link);
  if (end.tier == Tier::host) shards_[world_.partition.of(end)]->set_port(f.at, end.index, end.plane, is_up);
}

bool Network::is_done() const { return completed_ == world_.workload.flows().size() && is_survey_over(); }

bool Network::is_survey_over() const {
  std::int64_t left = world_.survey.added();
  for (const std::unique_ptr<Shard>& shard : shards_)
    left -= shard->found().survey.arrived + shard->found().survey.lost;
  return left == 0;
}

bool Network::is_idle() const {
  if (!has_begun_) return false;
  return next_fault_ == faults_.size() && std::all_of(shards_.begin(), shards_.end(), [](const auto& shard) {
    return shard->earliest() == Time::never();
  });
}

Time Network::reached() const {
  Time at = now_;
  for (const std::unique_ptr<Shard>& shard : shards_) at = std::max(at, shard->now());
  return at;
}

bool Network::is_placed(const Recovery::Lost& lost) const {
  if (lost.is_flow) return world_.checker.is_placed(static_cast<std::uint32_t>(lost.va >> 32), lost.va & 0xFFFFFFFF);
  return world_.checker.has_landed(shards_[world_.partition.of_host(lost.host)]->found().seen, lost.host, lost.rkey,
                                   lost.va);
}

std::uint64_t Network::unsent() const {
  return recovery_.unsent([this](const Recovery::Lost& one) { return is_placed(one); });
}

Series Network::series() const {
  Series all = series_;
  for (const std::unique_ptr<Shard>& shard : shards_) all.add(shard->series());
  return all;
}

std::uint64_t Network::events() const {
  return sum<std::uint64_t>(shards_, [](std::uint64_t& all, const Shard& shard) { all += shard.found().events; });
}

std::uint64_t Network::trace_hash() const {
  return sum<std::uint64_t>(shards_, [](std::uint64_t& all, const Shard& shard) { all += shard.hosts().trace_hash(); });
}

std::uint64_t Network::bytes_placed() const {
  return sum<std::uint64_t>(shards_, [](std::uint64_t& all, const Shard& shard) {
    all += shard.found().seen.bytes_placed + shard.found().seen.bytes_landed;
  });
}

Time Network::last_placed() const {
  return sum<Time>(shards_, [](Time& last, const Shard& shard) { last = std::max(last, shard.found().last_placed); });
}

Links::Counters Network::link_counters() const {
  return sum<Links::Counters>(shards_, [](Links::Counters& all, const Shard& shard) { all += shard.link_counters(); });
}

Hosts::Counters Network::host_counters() const {
  return sum<Hosts::Counters>(shards_,
                              [](Hosts::Counters& all, const Shard& shard) { all += shard.hosts().counters(); });
}

std::vector<std::string> Network::errors() const {
  std::vector<Hosts::CollectiveError> found;
  for (const std::unique_ptr<Shard>& shard : shards_)
    for (const Hosts::CollectiveError& one : shard->hosts().errors()) found.push_back(one);
  std::sort(found.begin(), found.end(),
            [](const Hosts::CollectiveError& a, const Hosts::CollectiveError& b) { return a.flow < b.flow; });
  std::vector<std::string> texts;
  for (const Hosts::CollectiveError& one : found) texts.push_back(one.text);
  return texts;
}

void Network::check_conserved() const {
  const Hosts::Counters h = host_counters();
  const Links::Counters l = link_counters();
  std::int64_t under_way = 0;
  std::uint64_t landed = 0;
  ProbeTraffic::Count survey;
  for (const std::unique_ptr<Shard>& shard : shards_) {
    under_way += shard->parcels_in_use();
    landed += shard->found().seen.bytes_landed;
    survey.sent += shard->found().survey.sent;
    survey.arrived += shard->found().survey.arrived;
  }
  Checker::check_conserved(
      {.sent = h.data_packets + h.control_packets + h.retransmitted + static_cast<std::uint64_t>(survey.sent),
       .arrived = h.arrived + static_cast<std::uint64_t>(survey.arrived),
       .dropped = h.dropped + l.dropped,
       .lost = l.lost,
       .under_way = static_cast<std::uint64_t>(under_way)});
  if (completed_ == world_.workload.flows().size()) world_.checker.check_expected(landed);
}

}  // namespace softmrc::sim
