#include "sim/shard.h"

#include <algorithm>

#include "base/check.h"
#include "base/prefetch.h"
#include "sim/mrc_hosts.h"
#include "sim/roce_hosts.h"

namespace softmrc::sim {
namespace {

std::unique_ptr<HostFactory> make_roster(const NetworkConfig& config) {
  if (config.transport == Transport::roce) return std::make_unique<RoceHostFactory>(config);
  return std::make_unique<MrcHostFactory>(config);
}

bool is_mrc_data(const NetworkConfig& config, const SimPacket& p) {
  return config.transport == Transport::mrc && wire::is_write(p.packet.bth.opcode);
}

std::uint64_t key_of(const SimPacket& p) { return Recovery::key(p.packet.bth.dqp, p.packet.bth.psn); }

}  // namespace

World::World(const NetworkConfig& network)
    : config(network),
      fabric(network.fabric),
      partition(fabric, 1),
      links(fabric),
      nics(network.fabric.hosts),
      workload(network.chain_on_acknowledgement),
      checker(network.mtu),
      host_factory(make_roster(config)) {}

Shard::Shard(World& world, std::uint32_t number, const Series& series)
    : world_(world),
      number_(number),
      outbox_(world.partition.shards()),
      packets_(world.packets, world.partition.shards(), number),
      links_({world.config, world.fabric, world.links, world.partition, number, scheduler_, outbox_, packets_, *this}),
      hosts_(world.host_factory->make_shard(
          {world.config, world.partition, number, scheduler_, packets_, world.nics, *this})),
      series_(series) {}

void Shard::read(std::vector<std::unique_ptr<Shard>>& others) {
  for (const std::unique_ptr<Shard>& other : others) {
    if (other.get() == this) continue;
    ShardMessages& letter = outbox_.from(other->outbox_, number_);
    for (const Scheduler::Event& event : letter.events) scheduler_.push(event);
    letter.events.clear();
    packets_.take_back(letter.packets);
    letter.packets = {};
  }
}

bool Shard::run(Time end, std::uint64_t max_events) {
  Scheduler::Event event;
  for (std::uint64_t i = 0; i < max_events; ++i) {
    if (!scheduler_.pop_before(end, event)) return true;
    prefetch_state();
    ++found_.events;
    handle(event);
  }
  return scheduler_.earliest() >= end;
}

void Shard::handle(const Scheduler::Event& event) {
  const std::uint32_t who = event.who();
  const std::uint32_t what = event.what();
  switch (static_cast<EventKind::Kind>(event.kind())) {
    case EventKind::arrive: {
      if (!links_.on_arrive(who, what)) break;
      if (packets_[what].is_survey) {
        world_.survey.on_back(found_.survey, now(), packets_[what]);
        packets_.drop(what);
        break;
      }
      const std::uint32_t host = world_.links.end_of(who).index;
      hosts_->handle(host, what);
      arm_timer(host);
      break;
    }
    case EventKind::ready:
      if (links_.on_ready(who)) on_free_port(who);
      break;
    case EventKind::pause:
      if (links_.on_pause(who, what != 0)) on_pause(who, what != 0);
      break;
    case EventKind::timer:
      if (world_.nics[who].timer_at != event.at) break;
      world_.nics[who].timer_at = Time::never();
      hosts_->handle_timeout(who);
      arm_timer(who);
      break;
    case EventKind::flow_start: on_flow_start(what); break;
    case EventKind::flow_meet:
      hosts_->expect(what, world_.workload.flows()[what]);
      arm_timer(who);
      break;
    case EventKind::probe: on_probe(who, what); break;
    case EventKind::computed:
      found_.last_placed = now();
      on_delivered(what);
      on_completed(what);
      break;
  }
}

void Shard::on_flow_start(std::uint32_t id) {
  const Flow& flow = world_.workload.on_started(now(), id);
  if (flow.is_compute()) return scheduler_.push(now() + flow.lasts, EventKind::computed, flow.source, id);
  hosts_->start(id, flow);
  arm_timer(flow.source);
  if (flow.collective < 0)
    links_.send(world_.partition.of_host(flow.destination),
                Scheduler::event(now() + world_.config.fabric.link_delay, EventKind::flow_meet, flow.destination, id));
}

void Shard::on_free_port(LinkId link) {
  const std::uint32_t host = world_.fabric.host_before(link);
  world_.nics[host].busy_ports &= ~(1u << world_.fabric.plane_of(link));
  hosts_->handle_free_port(host);
  arm_timer(host);
}

void Shard::on_pause(LinkId link, bool is_paused) {
  const std::uint32_t host = world_.fabric.host_before(link);
  const std::uint32_t port = 1u << world_.fabric.plane_of(link);
  if (is_paused) {
    world_.nics[host].paused_ports |= port;
    return;
  }
  world_.nics[host].paused_ports &= ~port;
  hosts_->handle_free_port(host);
  arm_timer(host);
}

void Shard::set_port(Time now, std::uint32_t host, std::uint32_t plane, bool is_up) {
  scheduler_.advance(now);
  if (hosts_->set_port(host, plane, is_up)) arm_timer(host);
}

void Shard::arm_timer(std::uint32_t host) {
  const Time at = hosts_->deadline(host);
  Nic& nic = world_.nics[host];
  if (at >= nic.timer_at) return;
  nic.timer_at = std::max(at, now());
  scheduler_.push(nic.timer_at, EventKind::timer, host, 0);
}

void Shard::on_leave(std::uint32_t host, std::uint32_t id) {
  SimPacket& p = packets_[id];
  links_.router().address(p);
  if (is_mrc_data(world_.config, p) && p.packet.bth.retransmission) found_.resent.push_back({now(), key_of(p)});
  enter_time_wait(host, id);
}

void Shard::on_probe(std::uint32_t host, std::uint32_t number) {
  const std::uint32_t id = packets_.take();
  world_.survey.prepare(found_.survey, number, packets_[id]);
  enter_time_wait(host, id);
}

void Shard::enter_time_wait(std::uint32_t host, std::uint32_t id) {
  const SimPacket& p = packets_[id];
  const LinkId link = world_.fabric.host_up(p.plane, host);
  std::uint32_t& busy = world_.nics[host].busy_ports;
  // Only a process sends several at a time, or a survey in addition to what the host itself sends.
  if (busy >> p.plane & 1) return links_.leave_later(link, id);
  busy |= 1u << p.plane;
  links_.leave(link, id);
}

// To a fault, that is; what a full queue drops is not counted here.
void Shard::on_lost(const SimPacket& p) {
  found_.survey.lost += p.is_survey;
  if (p.is_survey || p.is_control || !is_mrc_data(world_.config, p)) return;
  const HostFactory::Carried carried = world_.host_factory->carried(p.packet.bth.dqp);
  if (carried == HostFactory::Carried::message) return;
  const wire::Reth& reth = std::get<wire::Write>(p.packet.body).reth;
  found_.lost.push_back({now(), key_of(p), reth.va, p.destination, reth.rkey, carried == HostFactory::Carried::flow});
}

void Shard::on_placed(const Placement& p) {
  world_.checker.on_placed(found_.seen, p.flow, p.source, p.destination, p.offset, p.bytes);
  series_.on_placed(now(), p.port, p.bytes);
  found_.last_placed = now();
}

void Shard::on_landed(const Landing& l) {
  world_.checker.on_landed(found_.seen, l.host, l.rkey, l.region, l.va, l.bytes);
  series_.on_placed(now(), l.port, l.bytes);
  found_.last_placed = now();
}

void Shard::on_delivered(std::uint32_t id) {
  world_.checker.on_delivered(id);
  world_.workload.on_delivered(now(), id, [this](Time at, std::uint32_t flow) { start_at(at, flow); });
}

void Shard::on_completed(std::uint32_t id) {
  ++found_.completed;
  found_.last_completed = now();
  world_.workload.on_completed(now(), id, [this](Time at, std::uint32_t flow) { start_at(at, flow); });
}

bool Shard::is_port_down(std::uint32_t host, std::uint32_t plane) const {
  const LinkFaults& faults = world_.links.faults();
  return faults.is_down(world_.fabric.host_up(plane, host)) || faults.is_down(world_.fabric.host_down(plane, host));
}

// Large fabrics wait for memory more than for anything else, and the next events are known: what they will touch is
// asked for a few events before its turn, one step of the pointer chain at a time.
void Shard::prefetch_state() const {
  if (const Scheduler::Event* event = scheduler_.ahead(16)) {
    links_.fetch_link(*event);
    if (event->kind() == EventKind::timer) fetch_host(event->who());
  }
  if (const Scheduler::Event* event = scheduler_.ahead(10); event && !links_.fetch_behind(*event))
    fetch_host(links_.host_of(*event));
  if (!hosts_->have_engines()) return;
  const auto arriving = [this](const Scheduler::Event& event) {
    return event.kind() == EventKind::arrive ? &packets_[event.what()] : nullptr;
  };
  if (const Scheduler::Event* event = scheduler_.ahead(6))
    if (const std::uint32_t host = links_.host_of(*event); host != no_host)
      hosts_->fetch_engine(host, arriving(*event));
  if (const Scheduler::Event* event = scheduler_.ahead(3))
    if (const std::uint32_t host = links_.host_of(*event); host != no_host) hosts_->fetch_work(host, arriving(*event));
}

void Shard::fetch_host(std::uint32_t host) const {
  prefetch(&world_.nics[host]);
  if (hosts_->have_engines()) hosts_->fetch_row(host);
}

}  // namespace softmrc::sim
