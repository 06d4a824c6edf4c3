#include "sim/network.h"

#include <algorithm>

#include "base/check.h"
#include "base/fetch.h"
#include "sim/mrc_hosts.h"
#include "sim/roce_hosts.h"

namespace softmrc::sim {
namespace {

std::unique_ptr<Hosts> make_hosts(const Hosts::Place& place) {
  if (place.config.transport == Transport::roce) return std::make_unique<RoceHosts>(place);
  return std::make_unique<MrcHosts>(place);
}

bool is_mrc_data(const NetworkConfig& config, const Parcel& p) {
  return config.transport == Transport::mrc && wire::is_write(p.packet.bth.opcode);
}

std::uint64_t key_of(const Parcel& p) { return Recovery::key(p.packet.bth.dqp, p.packet.bth.psn); }

}  // namespace

Network::Network(const NetworkConfig& config)
    : config_(config), fabric_(config.fabric), nics_(config.fabric.hosts),
      links_(config_, fabric_, scheduler_, parcels_, *this),
      hosts_(make_hosts({config_, scheduler_, parcels_, nics_, *this})), workload_(config.chain_on_acknowledgement),
      checker_(config.mtu), series_(config.fabric.planes) {}

Network::~Network() = default;

std::uint32_t Network::add_flow(std::uint32_t source, std::uint32_t destination, std::uint32_t bytes, Time start) {
  SOFTMRC_CHECK(source < nics_.size() && destination < nics_.size());
  checker_.plan(source, destination, bytes);
  return workload_.add(source, destination, bytes, start);
}

// The oracle has no plan for what a collective sends: it watches that everything lands once, and that all of it does.
std::uint32_t Network::add_call(std::int32_t collective, std::uint32_t rank, const Flow& flow) {
  SOFTMRC_CHECK(flow.source < nics_.size());
  checker_.plan(flow.source, flow.destination, 0);
  Flow call = flow;
  call.collective = collective;
  call.rank = rank;
  return workload_.add(call);
}

void Network::add_fault(const Fault& fault) {
  faults_.push_back(fault);
  if (has_begun_) scheduler_.push(fault.at, Happening::fault, 0, static_cast<std::uint32_t>(faults_.size() - 1));
}

void Network::begin() {
  has_begun_ = true;
  checker_.expect(hosts_->begin(workload_.flows()));
  for (std::uint32_t i = 0; i < faults_.size(); ++i) scheduler_.push(faults_[i].at, Happening::fault, 0, i);
  workload_.begin([this](Time at, std::uint32_t flow) { start_at(at, flow); });
}

bool Network::run(Time until, std::uint64_t max_events) {
  if (!has_begun_) begin();
  for (std::uint64_t handled = 0; handled < max_events; ++handled) {
    const bool is_done = workload_.is_done() && survey_.is_over();
    if (is_done || scheduler_.empty() || scheduler_.now() > until) {
      check_conserved();
      if (workload_.is_done()) checker_.check_expected();
      return false;
    }
    const Scheduler::Event event = scheduler_.pop();
    fetch_ahead();
    ++events_;
    handle(event);
  }
  return true;
}

void Network::handle(const Scheduler::Event& event) {
  switch (static_cast<Happening::Kind>(event.kind())) {
    case Happening::arrive: {
      if (!links_.on_arrive(event.who(), event.what())) break;
      if (parcels_[event.what()].is_survey) {
        survey_.on_back(now(), parcels_[event.what()]);
        parcels_.drop(event.what());
        break;
      }
      const std::uint32_t host = links_.end_of(event.who()).index;
      hosts_->handle(host, event.what());
      arm_timer(host);
      break;
    }
    case Happening::ready:
      if (links_.on_ready(event.who())) on_free_port(event.who());
      break;
    case Happening::pause:
      if (links_.on_pause(event.who(), event.what() != 0)) on_pause(event.who(), event.what() != 0);
      break;
    case Happening::timer:
      if (nics_[event.who()].timer_at != event.at) break;
      nics_[event.who()].timer_at = Time::never();
      hosts_->handle_timeout(event.who());
      arm_timer(event.who());
      break;
    case Happening::flow_start: {
      const Flow& flow = workload_.on_started(now(), event.what());
      hosts_->start(event.what(), flow);
      arm_timer(flow.source);
      if (flow.collective < 0) scheduler_.push(now() + config_.fabric.link_delay, Happening::flow_meet, flow.destination, event.what());
      break;
    }
    case Happening::flow_meet:
      hosts_->expect(event.what(), workload_.flows()[event.what()]);
      arm_timer(event.who());
      break;
    case Happening::fault: on_fault(faults_[event.what()]); break;
    case Happening::shot: on_shot(event.who(), event.what()); break;
  }
}

void Network::on_free_port(LinkId link) {
  const std::uint32_t host = fabric_.host_before(link);
  nics_[host].busy_ports &= ~(1u << fabric_.plane_of(link));
  hosts_->handle_free_port(host);
  arm_timer(host);
}

void Network::on_pause(LinkId link, bool is_paused) {
  const std::uint32_t host = fabric_.host_before(link);
  const std::uint32_t port = 1u << fabric_.plane_of(link);
  if (is_paused) {
    nics_[host].paused_ports |= port;
    return;
  }
  nics_[host].paused_ports &= ~port;
  hosts_->handle_free_port(host);
  arm_timer(host);
}

// The host at one end of a cable sees it go down and come up.
void Network::on_fault(const Fault& f) {
  const bool was_down = links_.is_down(f.link);
  links_.apply(f);
  const bool is_up = f.kind == FaultKind::heal && was_down;
  if (!is_up && f.kind != FaultKind::down) return;
  const Node from = fabric_.from(f.link);
  const Node& end = from.tier == Tier::host ? from : links_.end_of(f.link);
  if (end.tier != Tier::host) return;
  if (hosts_->set_port(end.index, end.plane, is_up)) arm_timer(end.index);
}

void Network::arm_timer(std::uint32_t host) {
  const Time at = hosts_->deadline(host);
  Nic& nic = nics_[host];
  if (at >= nic.timer_at) return;
  nic.timer_at = std::max(at, now());
  scheduler_.push(nic.timer_at, Happening::timer, host, 0);
}

void Network::on_leave(std::uint32_t host, std::uint32_t id) {
  Parcel& p = parcels_[id];
  links_.router().address(p);
  if (recovery_.unsent() && is_mrc_data(config_, p)) recovery_.on_sent(now(), key_of(p));
  depart(host, id);
}

void Network::on_shot(std::uint32_t host, std::uint32_t number) {
  const std::uint32_t id = parcels_.take();
  survey_.prepare(number, parcels_[id]);
  depart(host, id);
}

void Network::depart(std::uint32_t host, std::uint32_t id) {
  const Parcel& p = parcels_[id];
  const LinkId link = fabric_.host_up(p.plane, host);
  std::uint32_t& busy = nics_[host].busy_ports;
  // Only a process leaves several at a time, or a survey beside what the host itself sends.
  if (busy >> p.plane & 1) return links_.leave_later(link, id);
  busy |= 1u << p.plane;
  links_.leave(link, id);
}

// To a fault, that is; what a full queue drops is not counted here.
void Network::on_lost(const Parcel& p) {
  if (p.is_survey) return survey_.on_lost();
  if (p.is_control || !is_mrc_data(config_, p)) return;
  const std::uint64_t va = std::get<wire::Write>(p.packet.body).reth.va;
  if (const Hosts::Carried carried = hosts_->carried(p.packet.bth.dqp); carried != Hosts::Carried::flow) {
    if (carried == Hosts::Carried::bulk)
      recovery_.on_lost(now(), key_of(p), checker_.has_landed(p.destination, std::get<wire::Write>(p.packet.body).reth.rkey, va));
    return;
  }
  recovery_.on_lost(now(), key_of(p), checker_.is_placed(static_cast<std::uint32_t>(va >> 32), va & 0xFFFFFFFF));
}

void Network::on_placed(const Placement& p) {
  checker_.on_placed(p.flow, p.source, p.destination, p.offset, p.bytes);
  series_.on_placed(now(), p.port, p.bytes);
  recovery_.on_placed(p.packet);
}

void Network::on_landed(const Landing& l) {
  checker_.on_landed(l.host, l.rkey, l.va, l.bytes);
  series_.on_placed(now(), l.port, l.bytes);
  recovery_.on_placed(l.packet);
}

void Network::on_delivered(std::uint32_t id) {
  checker_.on_delivered(id);
  workload_.on_delivered(now(), id, [this](Time at, std::uint32_t flow) { start_at(at, flow); });
}

void Network::on_completed(std::uint32_t id) {
  workload_.on_completed(now(), id, [this](Time at, std::uint32_t flow) { start_at(at, flow); });
}

bool Network::is_port_down(std::uint32_t host, std::uint32_t plane) const {
  return links_.is_down(fabric_.host_up(plane, host)) || links_.is_down(fabric_.host_down(plane, host));
}

void Network::check_conserved() const {
  const Hosts::Counters& h = hosts_->counters();
  const Links::Counters& l = links_.counters();
  Checker::check_conserved({.sent = h.data_packets + h.control_packets + h.retransmitted + survey_.sent(),
                            .arrived = h.arrived + survey_.arrived(),
                            .dropped = h.dropped + l.dropped, .lost = l.lost, .under_way = parcels_.in_use()});
}

// Large fabrics wait for memory more than for anything else, and the next events are known: what they will touch is
// asked for a few events before its turn, one step of the pointer chain at a time.
void Network::fetch_ahead() const {
  if (const Scheduler::Event* event = scheduler_.ahead(16)) {
    links_.fetch_link(*event);
    if (event->kind() == Happening::timer) fetch_host(event->who());
  }
  if (const Scheduler::Event* event = scheduler_.ahead(10); event && !links_.fetch_behind(*event)) fetch_host(links_.host_of(*event));
  if (!hosts_->have_engines()) return;
  const auto arriving = [this](const Scheduler::Event& event) { return event.kind() == Happening::arrive ? &parcels_[event.what()] : nullptr; };
  if (const Scheduler::Event* event = scheduler_.ahead(6))
    if (const std::uint32_t host = links_.host_of(*event); host != no_host) hosts_->fetch_engine(host, arriving(*event));
  if (const Scheduler::Event* event = scheduler_.ahead(3))
    if (const std::uint32_t host = links_.host_of(*event); host != no_host) hosts_->fetch_work(host, arriving(*event));
}

void Network::fetch_host(std::uint32_t host) const {
  fetch(&nics_[host]);
  if (hosts_->have_engines()) hosts_->fetch_row(host);
}

}  // namespace softmrc::sim
