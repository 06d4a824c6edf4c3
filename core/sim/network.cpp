// Hosts, flows, faults and the event loop. Links and forwarding are in network_links.cpp.
#include "sim/network.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace softmrc::sim {
namespace {

constexpr std::uint32_t rkey = 1;
constexpr std::uint32_t cq = 0;

// A data packet by its queue pair and PSN; a retransmission has the same key.
std::uint64_t packet_key(std::uint32_t qpn, std::uint32_t psn) { return static_cast<std::uint64_t>(qpn) << 24 | psn; }
std::uint64_t packet_key(const wire::Packet& packet) { return packet_key(packet.bth.dqp, packet.bth.psn); }

std::uint32_t packets_of(std::uint64_t bytes, std::uint32_t mtu) { return static_cast<std::uint32_t>((bytes + mtu - 1) / mtu); }

}  // namespace

Network::Network(const NetworkConfig& config) : config_(config), fabric_(config.fabric), prng_(config.seed, "network") {
  const auto byte_time = [](std::uint64_t bps) { return static_cast<std::uint32_t>(8e12 * 256 / static_cast<double>(bps) + 0.5); };
  const std::uint32_t host_time = byte_time(config.fabric.host_link_bps);
  const std::uint32_t fabric_time = byte_time(config.fabric.fabric_link_bps);
  links_.resize(fabric_.links());
  link_to_.resize(fabric_.links());
  is_down_.resize(fabric_.links());
  for (LinkId link = 0; link < fabric_.links(); ++link) {
    link_to_[link] = fabric_.to(link);
    const bool at_host = link_to_[link].tier == Tier::host || fabric_.from(link).tier == Tier::host;
    links_[link].ps_per_byte_q8 = at_host ? host_time : fabric_time;
    links_[link].is_last_hop = fabric_.is_last_hop(link);
  }
  hosts_.resize(config.fabric.hosts);
  links_per_plane_ = fabric_.links() / config.fabric.planes;
  is_lossless_ = config.transport == Transport::roce && config.roce.pfc;
}

Network::~Network() = default;

Network::Driven::Driven(Network& around, std::uint32_t which)
    : network(around), host(which),
      process(around.config_.process, around.config_.fabric.planes, Prng(around.config_.seed, "process", which)) {}

std::uint32_t Network::Driven::free_ports() {
  return ((1u << network.config_.fabric.planes) - 1) & ~network.hosts_[host].busy_ports;
}

proto::Endpoint& Network::endpoint_of(std::uint32_t host) {
  Host& h = hosts_[host];
  if (h.endpoint) return *h.endpoint;
  proto::EndpointConfig config = config_.endpoint;
  config.ports = config_.fabric.planes;
  config.seed = config_.seed * 0x9E3779B97F4A7C15u + host;
  h.endpoint = std::make_unique<proto::Endpoint>(config);
  if (config_.process.most_received) h.driven = std::make_unique<Driven>(*this, host);
  std::uint32_t id = 0;
  SOFTMRC_CHECK(!h.endpoint->add_ev_profile(config_.ev_profile, id));
  SOFTMRC_CHECK(!h.endpoint->add_cc_profile(config_.cc_profile, id));
  h.endpoint->create_cq();
  h.endpoint->add_region({nullptr, 0, 1ull << 63, rkey});
  h.endpoint->set_trace(this, proto::wants(proto::EventType::packet_placed) | proto::wants(proto::EventType::ev_state));
  // A port that was down before the host had anything to say is known to be down.
  for (std::uint32_t plane = 0; plane < config_.fabric.planes; ++plane)
    if (is_down_[fabric_.host_up(plane, host)] || is_down_[fabric_.host_down(plane, host)])
      h.endpoint->set_port(now(), plane, false);
  return *h.endpoint;
}

// One queue pair, or as many as are asked for, per ordered pair of hosts that talk; flows between them are its messages.
std::uint32_t Network::connection(std::uint32_t source, std::uint32_t destination, std::uint32_t lane) {
  const std::uint64_t key = static_cast<std::uint64_t>(source) << 32 | static_cast<std::uint64_t>(destination) << 8 | lane;
  const auto [found, is_new] = connection_ids_.try_emplace(key, static_cast<std::uint32_t>(connections_.size()));
  if (!is_new) return found->second;
  const std::uint32_t qpn = first_qpn + found->second;
  const std::array<std::uint32_t, 2> ends{source, destination};
  std::array<std::uint32_t, 2> ids{};
  for (std::uint32_t i = 0; i < 2; ++i) {
    ids[i] = endpoint_of(ends[i]).add_peer();
    hosts_[ends[i]].peers.push_back({ends[1 - i], 0});
  }
  const Psn first_psn(static_cast<std::uint32_t>(prng_.bits() >> 40));
  for (std::uint32_t i = 0; i < 2; ++i) {
    hosts_[ends[i]].peers[ids[i]].our_id_there = ids[1 - i];
    proto::Endpoint& endpoint = *hosts_[ends[i]].endpoint;
    proto::RtrAttributes rtr;
    rtr.peer = ids[i];
    rtr.dest_qpn = qpn;
    rtr.first_psn = first_psn;
    rtr.mtu = config_.mtu;
    rtr.mpr_dest = config_.mpr;
    rtr.max_wimm_dest = 16384;
    proto::RtsAttributes rts;
    rts.first_psn = first_psn;
    rts.mpr = config_.mpr;
    rts.max_wimm = 16384;
    rts.timeout = config_.timeout;
    rts.max_send_wr = 32000;
    SOFTMRC_CHECK(!endpoint.create_qp(qpn));
    SOFTMRC_CHECK(!endpoint.modify_init(qpn, hints_for(source, destination)));
    SOFTMRC_CHECK(!endpoint.modify_rtr(now(), qpn, rtr));
    SOFTMRC_CHECK(!endpoint.modify_rts(now(), qpn, rts));
  }
  connections_.push_back({source, destination, hosts_[source].endpoint->qp(qpn), hosts_[destination].endpoint->qp(qpn)});
  return found->second;
}

// What a controller that knows the whole plan would tell a queue pair.
proto::InitAttributes Network::hints_for(std::uint32_t source, std::uint32_t destination) const {
  proto::InitAttributes init;
  if (!config_.hints) return init;
  init.hint_qps_per_peer = static_cast<std::uint16_t>(config_.qps_per_pair);
  init.hint_send_peers = send_peers_[source];
  init.hint_receive_peers = receive_peers_[destination];
  return init;
}

void Network::count_peers() {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> pairs;
  for (const Flow& flow : flows_) pairs.emplace_back(flow.source, flow.destination);
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  send_peers_.assign(hosts_.size(), 0);
  receive_peers_.assign(hosts_.size(), 0);
  for (const auto& [source, destination] : pairs) {
    if (send_peers_[source] < 0xFFFF) ++send_peers_[source];
    if (receive_peers_[destination] < 0xFFFF) ++receive_peers_[destination];
  }
}

std::uint32_t Network::add_flow(std::uint32_t source, std::uint32_t destination, std::uint32_t bytes, Time start) {
  SOFTMRC_CHECK(source < hosts_.size() && destination < hosts_.size() && source != destination && bytes > 0);
  Flow flow;
  flow.source = source;
  flow.destination = destination;
  flow.bytes = bytes;
  flow.start = start;
  flow.first_packet = packets_planned_;
  packets_planned_ += packets_of(bytes, config_.mtu);
  flows_.push_back(flow);
  return static_cast<std::uint32_t>(flows_.size() - 1);
}

void Network::add_dependency(std::uint32_t earlier, std::uint32_t later, Duration think) {
  SOFTMRC_CHECK(earlier < flows_.size() && later < flows_.size() && earlier < later);
  dependencies_.push_back({earlier, later, think});
  ++flows_[later].waits_for;
  flows_[later].start = Time::never();
}

void Network::sample_every(Duration bin) {
  SOFTMRC_CHECK(bin.ps > 0);
  bin_ = bin;
}

// The bin that holds this moment; the series are drawn out to it. A run longer than anyone would plot ends in one bin.
std::size_t Network::bin_now() {
  constexpr std::size_t max_bins = 1u << 20;
  const std::size_t bin = std::min(static_cast<std::size_t>(now().ps / bin_.ps), max_bins - 1);
  if (bad_evs_.size() <= bin) {
    bad_evs_.resize(bin + 1, bad_evs_now_);
    goodput_.resize((bin + 1) * config_.fabric.planes, 0);
  }
  return bin;
}

// The checker. Every packet of every flow is placed exactly once, where the plan says; anything else is our bug.
void Network::check_placement(std::uint32_t id, std::uint64_t offset, std::uint32_t bytes, std::uint8_t port) {
  const Flow& flow = flows_[id];
  SOFTMRC_CHECK(offset % config_.mtu == 0 && offset < flow.bytes);
  SOFTMRC_CHECK(bytes == std::min<std::uint64_t>(config_.mtu, flow.bytes - offset));
  const std::uint64_t bit = flow.first_packet + offset / config_.mtu;
  SOFTMRC_CHECK(!(placed_[bit / 64] >> (bit % 64) & 1));
  placed_[bit / 64] |= 1ull << (bit % 64);
  counters_.bytes_placed += bytes;
  if (bin_.ps) goodput_[bin_now() * config_.fabric.planes + port] += bytes;
}

void Network::on(const proto::Event& event) {
  if (event.type == proto::EventType::ev_state) {
    const std::size_t bin = bin_.ps ? bin_now() : 0;
    bad_evs_now_ += event.code == static_cast<std::uint32_t>(proto::EvState::assumed_bad) ? 1 : -1;
    if (bin_.ps) bad_evs_[bin] = bad_evs_now_;
    return;
  }
  const std::uint64_t flow = event.value >> 32;
  SOFTMRC_CHECK(flow < flows_.size() && event.code == rkey);
  const Connection& connection = connections_[event.qpn - first_qpn];
  SOFTMRC_CHECK(connection.source == flows_[flow].source && connection.destination == flows_[flow].destination);
  check_placement(static_cast<std::uint32_t>(flow), event.value & 0xFFFFFFFF, event.ev, event.port);
  if (!lost_packets_.empty()) lost_packets_.erase(packet_key(event.qpn, event.psn));
}

void Network::start_flow(std::uint32_t id) {
  Flow& flow = flows_[id];
  flow.start = now();
  if (config_.transport == Transport::roce) return start_roce_flow(id);
  std::uint32_t lane = 0;
  if (config_.qps_per_pair > 1)
    lane = next_lane_[static_cast<std::uint64_t>(flow.source) << 32 | flow.destination]++ % config_.qps_per_pair;
  const std::uint32_t qpn = first_qpn + connection(flow.source, flow.destination, lane);
  hosts_[flow.destination].endpoint->post_receive(qpn, id);
  proto::WorkRequest request;
  request.wr_id = id;
  request.remote_va = static_cast<std::uint64_t>(id) << 32;
  request.rkey = rkey;
  request.length = flow.bytes;
  request.imm = id;
  request.has_imm = true;
  const auto status = hosts_[flow.source].endpoint->post_write(now(), qpn, request);
  SOFTMRC_CHECK(status == proto::PostStatus::ok || status == proto::PostStatus::wrong_state);
  drain(flow.source);
}

void Network::on_delivered(std::uint32_t id) {
  Flow& flow = flows_[id];
  SOFTMRC_CHECK(flow.delivered == Time::never());
  flow.delivered = now();
  for (std::uint64_t i = 0; i < packets_of(flow.bytes, config_.mtu); ++i) {
    const std::uint64_t bit = flow.first_packet + i;
    SOFTMRC_CHECK(placed_[bit / 64] >> (bit % 64) & 1);
  }
  if (!config_.chain_on_acknowledgement) start_waiting(id);
}

void Network::on_completed(std::uint32_t id) {
  flows_[id].completed = now();
  ++flows_completed_;
  if (config_.chain_on_acknowledgement) start_waiting(id);
}

void Network::start_waiting(std::uint32_t id) {
  const auto by_earlier = [](const Dependency& d, std::uint32_t earlier) { return d.earlier < earlier; };
  for (auto it = std::lower_bound(dependencies_.begin(), dependencies_.end(), id, by_earlier);
       it != dependencies_.end() && it->earlier == id; ++it)
    if (--flows_[it->later].waits_for == 0) scheduler_.push(now() + it->think, flow_start, 0, it->later);
}

void Network::collect_completions(std::uint32_t host) {
  proto::Endpoint& endpoint = *hosts_[host].endpoint;
  std::array<proto::Completion, 32> found;
  while (endpoint.completions_waiting(cq)) {
    const std::size_t count = endpoint.poll_completions(cq, found);
    for (std::size_t i = 0; i < count; ++i) {
      if (found[i].status != proto::CompletionStatus::success) continue;
      if (found[i].kind == proto::CompletionKind::receive_imm) {
        on_delivered(found[i].imm);
      } else {
        on_completed(static_cast<std::uint32_t>(found[i].wr_id));
      }
    }
  }
}

void Network::drain(std::uint32_t host) {
  Host& h = hosts_[host];
  const std::uint32_t ports = (1u << config_.fabric.planes) - 1;
  if (h.roce) {
    RoceSend send;
    while ((ports & ~h.busy_ports) && h.roce->poll(now(), ports & ~h.busy_ports, ports & ~h.busy_ports & ~h.paused_ports, send))
      inject_roce(host, send);
  } else if (h.driven) {
    h.driven->process.kick(now());
  } else {
    while ((ports & ~h.busy_ports) && h.endpoint->poll_transmit(now(), ports & ~h.busy_ports, scratch_)) inject(host, scratch_);
    collect_completions(host);
  }
  arm_timer(host);
}

void Network::arm_timer(std::uint32_t host) {
  Host& h = hosts_[host];
  const Time at = h.roce     ? h.roce->deadline(now())
                  : h.driven ? h.driven->process.next_at(*h.endpoint, *h.driven)
                             : h.endpoint->poll_timeout();
  if (at >= h.timer_at) return;
  h.timer_at = std::max(at, now());
  scheduler_.push(h.timer_at, timer, host, 0);
}

void Network::on_timer(std::uint32_t host) {
  Host& h = hosts_[host];
  h.timer_at = Time::never();
  if (h.driven) {
    if (h.driven->process.next_at(*h.endpoint, *h.driven) <= now()) h.driven->process.step(now(), *h.endpoint, *h.driven);
    collect_completions(host);
    return arm_timer(host);
  }
  if (h.roce) h.roce->handle_timeout(now());
  else h.endpoint->handle_timeout(now());
  drain(host);
}

void Network::inject(std::uint32_t host, const proto::Transmit& t) {
  const std::uint32_t id = take_parcel();
  Parcel& p = parcel(id);
  const RemotePeer& peer = hosts_[host].peers[t.peer];
  p.packet = t.packet;
  p.entropy = t.entropy;
  p.source = host;
  p.destination = peer.host;
  p.peer = peer.our_id_there;
  p.plane = t.port;
  p.is_control = t.traffic_class == proto::TrafficClass::control;
  p.congestion = p.is_corrupt = false;
  p.trim = proto::Trim::none;
  p.came_from = none;
  const bool is_write = wire::is_write(t.packet.bth.opcode);
  p.is_trimmable = is_write && t.traffic_class != proto::TrafficClass::data_no_trim;
  p.bytes = is_write ? std::get<wire::Write>(t.packet.body).payload_size + config_.data_overhead_bytes : config_.control_packet_bytes;
  if (config_.forwarding == Forwarding::srv6) p.route = make_route(host, p.destination, p.entropy, p.plane);
  if (!is_write) ++counters_.control_packets;
  else if (t.packet.bth.retransmission) ++counters_.retransmitted;
  else ++counters_.data_packets;
  if (is_write) hosts_[host].last_sender = connections_[t.packet.bth.dqp - first_qpn].sender;
  if (is_write && !lost_packets_.empty() && lost_packets_.erase(packet_key(t.packet))) recovery_.last_resent = now();
  const LinkId link = fabric_.host_up(t.port, host);
  // Only a process leaves several at a time.
  if (hosts_[host].busy_ports >> t.port & 1) push(links_[link].data, id);
  else transmit(link, id);
}

void Network::deliver(std::uint32_t host, std::uint32_t id) {
  Parcel& p = parcel(id);
  if (hosts_[host].roce) {
    mix(static_cast<std::uint64_t>(now().ps) ^ static_cast<std::uint64_t>(host) << 40 ^ p.roce.psn);
    if (!p.is_corrupt) hosts_[host].roce->handle(now(), p.roce, p.congestion);
    drop_parcel(id);
    return drain(host);
  }
  if (!hosts_[host].driven) {
    hand_in(host, id);
  } else if (!hosts_[host].driven->process.arrive(now(), p.plane, id)) {
    ++counters_.dropped;
    drop_parcel(id);
  }
  drain(host);
}

void Network::hand_in(std::uint32_t host, std::uint32_t id) {
  const Parcel& p = parcel(id);
  proto::Arrival arrival;
  arrival.peer = p.peer;
  arrival.entropy = p.entropy;
  arrival.port = p.plane;
  arrival.congestion = p.congestion;
  arrival.trim = p.trim;
  mix(static_cast<std::uint64_t>(now().ps) ^ static_cast<std::uint64_t>(host) << 40 ^ p.packet.bth.psn);
  proto::Endpoint& endpoint = *hosts_[host].endpoint;
  if (p.is_corrupt) {
    arrival.integrity = proto::Integrity::bad;
    endpoint.handle_datagram(now(), {}, arrival);
  } else {
    endpoint.handle_packet(now(), p.packet, arrival);
  }
  drop_parcel(id);
}

void Network::set_port_state(LinkId link, bool is_up) {
  const Node from = fabric_.from(link);
  const Node to = link_to_[link];
  const Node& end = from.tier == Tier::host ? from : to;
  if (end.tier != Tier::host || !hosts_[end.index].endpoint) return;
  hosts_[end.index].endpoint->set_port(now(), end.plane, is_up);
  drain(end.index);
}

void Network::apply_fault(const Fault& f) {
  Link& link = links_[f.link];
  LinkFaults& faults = link_faults_[f.link];
  const std::uint64_t bps = fabric_.from(f.link).tier == Tier::host || link_to_[f.link].tier == Tier::host
                                ? config_.fabric.host_link_bps : config_.fabric.fabric_link_bps;
  const double byte_time = 8e12 * 256 / static_cast<double>(bps);
  link.is_faulty = f.kind != FaultKind::heal;
  switch (f.kind) {
    case FaultKind::down:
      is_down_[f.link] = true;
      faults.dead_since = now();
      set_port_state(f.link, false);
      break;
    case FaultKind::black_hole:
      faults.is_black_hole = true;
      break;
    case FaultKind::loss:
      faults.loss = static_cast<float>(f.value);
      break;
    case FaultKind::corrupt:
      faults.corrupt = static_cast<float>(f.value);
      break;
    case FaultKind::slow:
    case FaultKind::slow_scaled:
      link.ps_per_byte_q8 = static_cast<std::uint32_t>(byte_time / f.value + 0.5);
      link.queue_share = f.kind == FaultKind::slow ? 1 : static_cast<float>(f.value);
      break;
    case FaultKind::ev_loss:
      faults.ev_loss = static_cast<float>(f.value);
      faults.lossy_ev = none;
      break;
    case FaultKind::heal: {
      const bool was_down = is_down_[f.link];
      is_down_[f.link] = false;
      faults = LinkFaults{};
      link.ps_per_byte_q8 = static_cast<std::uint32_t>(byte_time + 0.5);
      link.queue_share = 1;
      if (was_down) set_port_state(f.link, true);
      break;
    }
  }
}

bool Network::run(Time until, std::uint64_t max_events) {
  if (!has_started_) {
    has_started_ = true;
    placed_.assign(packets_planned_ / 64 + 1, 0);
    if (config_.hints) count_peers();
    std::stable_sort(dependencies_.begin(), dependencies_.end(), [](const Dependency& a, const Dependency& b) { return a.earlier < b.earlier; });
    for (std::uint32_t i = 0; i < faults_.size(); ++i) scheduler_.push(faults_[i].at, fault, 0, i);
    for (std::uint32_t i = 0; i < flows_.size(); ++i)
      if (flows_[i].start != Time::never()) scheduler_.push(flows_[i].start, flow_start, 0, i);
  }
  for (std::uint64_t handled = 0; handled < max_events; ++handled) {
    if (flows_completed_ == flows_.size() || scheduler_.empty() || scheduler_.now() > until) return false;
    const Scheduler::Event event = scheduler_.pop();
    fetch_ahead();
    ++counters_.events;
    switch (static_cast<Kind>(event.kind)) {
      case arrive: on_arrive(event.who, event.what); break;
      case ready: on_ready(event.who); break;
      case timer:
        if (hosts_[event.who].timer_at == event.at) on_timer(event.who);
        break;
      case flow_start: start_flow(event.what); break;
      case fault: apply_fault(faults_[event.what]); break;
      case pause: on_pause(event.who, event.what != 0); break;
    }
  }
  return true;
}

std::array<std::uint64_t, 4> Network::ev_census() const {
  std::array<std::uint64_t, 4> states{};
  if (config_.transport != Transport::mrc) return states;
  for (const Connection& connection : connections_) {
    const proto::EvSet& evs = connection.sender->requester().evs();
    for (std::uint16_t ev = 0; ev < evs.size(); ++ev)
      if (!evs[ev].is_spare) ++states[static_cast<std::size_t>(evs[ev].state)];
  }
  return states;
}

Network::Recovery Network::recovery() const {
  Recovery found = recovery_;
  found.unsent = lost_packets_.size();
  return found;
}

// To a fault, that is; what a full queue drops is not counted here. A copy of what has arrived already is no loss.
void Network::lose(std::uint32_t id) {
  ++counters_.lost_to_faults;
  const Parcel& p = parcel(id);
  if (config_.transport == Transport::mrc && !p.is_control && wire::is_write(p.packet.bth.opcode)) {
    ++counters_.data_lost;
    recovery_.last_lost = now();
    if (!is_placed(std::get<wire::Write>(p.packet.body).reth.va)) lost_packets_.insert(packet_key(p.packet));
  }
  drop_parcel(id);
}

bool Network::is_placed(std::uint64_t va) const {
  const std::uint64_t bit = flows_[va >> 32].first_packet + (va & 0xFFFFFFFF) / config_.mtu;
  return placed_[bit / 64] >> (bit % 64) & 1;
}

std::vector<std::uint32_t> Network::stuck_flows() const {
  std::vector<std::uint32_t> stuck;
  for (std::uint32_t i = 0; i < flows_.size(); ++i)
    if (flows_[i].completed == Time::never()) stuck.push_back(i);
  return stuck;
}

proto::QpStats Network::total_stats() const {
  proto::QpStats sum;
  if (config_.transport == Transport::roce) return sum;
  for (const Connection& connection : connections_)
    for (const proto::QueuePair* pair : {connection.sender, connection.receiver}) {
      const proto::QpStats& one = pair->stats();
#define X(name) sum.name += one.name;
      SOFTMRC_QP_COUNTERS(X)
#undef X
    }
  return sum;
}

}  // namespace softmrc::sim
