#include "sim/mrc_hosts.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/prefetch.h"
#include "sim/recovery.h"

namespace softmrc::sim {
namespace {

constexpr std::uint32_t rkey = 1;
constexpr std::uint32_t cq = 0;

}  // namespace

MrcHostFactory::Driven::Driven(MrcHosts& all, const NetworkConfig& config, std::uint32_t which)
    : hosts(all), host(which), process(config.process, config.fabric.planes, Prng(config.seed, "process", which)) {}

MrcHostFactory::Host::Host() = default;
MrcHostFactory::Host::Host(Host&&) noexcept = default;
MrcHostFactory::Host::~Host() = default;

std::unique_ptr<Hosts> MrcHostFactory::make_shard(const ShardContext& place) {
  auto hosts = std::make_unique<MrcHosts>(place, *this);
  partition_ = &place.partition;
  shards_.push_back(hosts.get());
  return hosts;
}

proto::Endpoint& MrcHosts::endpoint_of(std::uint32_t host) {
  Host& h = hosts_[host];
  if (h.endpoint) return *h.endpoint;
  const NetworkConfig& network = place_.config;
  proto::EndpointConfig config = network.endpoint;
  config.ports = network.fabric.planes;
  config.seed = network.seed * 0x9E3779B97F4A7C15u + host;
  h.endpoint = std::make_unique<proto::Endpoint>(config);
  if (network.process.max_received) h.driven = std::make_unique<MrcHostFactory::Driven>(*this, network, host);
  std::uint32_t id = 0;
  SOFTMRC_CHECK(!h.endpoint->add_ev_profile(network.ev_profile, id));
  SOFTMRC_CHECK(!h.endpoint->add_cc_profile(network.cc_profile, id));
  h.endpoint->create_cq();
  h.endpoint->add_region({nullptr, 0, 1ull << 63, rkey});
  for (std::size_t i = 0; i < h.peers.size(); ++i) h.endpoint->add_peer();
  h.endpoint->set_trace(this, proto::wants(proto::EventType::packet_placed) | proto::wants(proto::EventType::ev_state));
  // A port that was down before the host had anything to say is known to be down.
  for (std::uint32_t plane = 0; plane < network.fabric.planes; ++plane)
    if (place_.network.is_port_down(host, plane)) h.endpoint->set_port(now(), plane, false);
  return *h.endpoint;
}

// Flows of a pair of hosts take its queue pairs in turn. Numbers follow from the plan alone: of connections, and of
// peers at both ends, which are those that their endpoints will give.
void MrcHostFactory::plan_connections(const std::vector<Flow>& flows) {
  std::vector<std::uint32_t> ids;  // pair by pair
  for (std::uint32_t id = 0; id < flows.size(); ++id)
    if (flows[id].is_write()) ids.push_back(id);
  const auto pair = [&flows](std::uint32_t id) {
    return static_cast<std::uint64_t>(flows[id].source) << 32 | flows[id].destination;
  };
  std::sort(ids.begin(), ids.end(),
            [&](std::uint32_t a, std::uint32_t b) { return std::pair(pair(a), a) < std::pair(pair(b), b); });
  connection_of_.resize(flows.size());
  std::uint32_t turn = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    turn = i > 0 && pair(ids[i]) == pair(ids[i - 1]) ? turn + 1 : 0;
    if (turn >= config_.qps_per_pair) {
      connection_of_[ids[i]] = connection_of_[ids[i - config_.qps_per_pair]];
      continue;
    }
    const Flow& flow = flows[ids[i]];
    connection_of_[ids[i]] = static_cast<std::uint32_t>(connections_.size());
    std::vector<RemotePeer>& here = hosts_[flow.source].peers;
    std::vector<RemotePeer>& there = hosts_[flow.destination].peers;
    const auto id_here = static_cast<std::uint32_t>(here.size());
    const auto id_there = static_cast<std::uint32_t>(there.size());
    here.push_back({flow.destination, id_there});
    there.push_back({flow.source, id_here});
    connections_.push_back({flow.source, flow.destination, id_here, id_there});
  }
}

Psn MrcHostFactory::first_psn(std::uint32_t qpn) const {
  return Psn(static_cast<std::uint32_t>(Prng(config_.seed, "first psn", qpn).bits() >> 40));
}

const proto::QueuePair* MrcHosts::open(std::uint32_t number, std::uint32_t host, std::uint32_t peer) {
  const std::uint32_t qpn = first_qpn + number;
  const Connection& connection = connections_[number];
  proto::Endpoint& endpoint = endpoint_of(host);
  make_queue_pair(host, qpn, qpn, peer, all_.first_psn(qpn), all_.hints_for(connection.source, connection.destination));
  return endpoint.qp(qpn);
}

void MrcHosts::make_queue_pair(std::uint32_t host, std::uint32_t qpn, std::uint32_t dest_qpn, std::uint32_t peer,
                               Psn first_psn, const proto::InitAttributes& init) {
  const NetworkConfig& config = place_.config;
  proto::Endpoint& endpoint = *hosts_[host].endpoint;
  proto::RtrAttributes rtr;
  rtr.peer = peer;
  rtr.dest_qpn = dest_qpn;
  rtr.first_psn = first_psn;
  rtr.mtu = config.mtu;
  rtr.mpr_dest = config.mpr;
  rtr.max_wimm_dest = 16384;
  proto::RtsAttributes rts;
  rts.first_psn = first_psn;
  rts.mpr = config.mpr;
  rts.max_wimm = 16384;
  rts.timeout = config.timeout;
  rts.max_send_wr = 32000;
  SOFTMRC_CHECK(!endpoint.create_qp(qpn));
  SOFTMRC_CHECK(!endpoint.modify_init(qpn, init));
  SOFTMRC_CHECK(!endpoint.modify_rtr(now(), qpn, rtr));
  SOFTMRC_CHECK(!endpoint.modify_rts(now(), qpn, rts));
}

std::uint64_t MrcHostFactory::begin(const std::vector<Flow>& flows) {
  if (config_.hints) count_peers(flows);
  plan_connections(flows);
  std::uint64_t to_land = 0;
  for (const Flow& flow : flows)
    if (flow.collective >= 0) to_land += meet(flow);
  return to_land;
}

void MrcHostFactory::count_peers(const std::vector<Flow>& flows) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> pairs;
  for (const Flow& flow : flows)
    if (!flow.is_compute()) pairs.emplace_back(flow.source, flow.destination);
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  send_peers_.assign(hosts_.size(), 0);
  receive_peers_.assign(hosts_.size(), 0);
  for (const auto& [source, destination] : pairs) {
    if (send_peers_[source] < 0xFFFF) ++send_peers_[source];
    if (receive_peers_[destination] < 0xFFFF) ++receive_peers_[destination];
  }
}

// What a controller that knows the whole plan would tell a queue pair.
proto::InitAttributes MrcHostFactory::hints_for(std::uint32_t source, std::uint32_t destination) const {
  proto::InitAttributes init;
  if (!config_.hints) return init;
  init.hint_qps_per_peer = static_cast<std::uint16_t>(config_.qps_per_pair);
  init.hint_send_peers = send_peers_[source];
  init.hint_receive_peers = receive_peers_[destination];
  return init;
}

void MrcHosts::start(std::uint32_t id, const Flow& flow) {
  if (flow.collective >= 0) return call(id, flow);
  Connection& connection = connections_[connection_of_[id]];
  if (!connection.sender) connection.sender = open(connection_of_[id], flow.source, connection.id_at_source);
  proto::WorkRequest request;
  request.wr_id = id;
  request.remote_va = static_cast<std::uint64_t>(id) << 32;
  request.rkey = rkey;
  request.length = flow.bytes;
  request.imm = id;
  request.has_imm = true;
  const auto status = hosts_[flow.source].endpoint->post_write(now(), first_qpn + connection_of_[id], request);
  SOFTMRC_CHECK(status == proto::PostStatus::ok || status == proto::PostStatus::wrong_state);
  drain(flow.source);
}

void MrcHosts::expect(std::uint32_t id, const Flow& flow) {
  Connection& connection = connections_[connection_of_[id]];
  if (!connection.receiver)
    connection.receiver = open(connection_of_[id], flow.destination, connection.id_at_destination);
  hosts_[flow.destination].endpoint->post_receive(first_qpn + connection_of_[id], id);
}

void MrcHosts::on(const proto::Event& event) {
  if (event.type == proto::EventType::ev_state) {
    place_.network.on_bad_evs(event.code == static_cast<std::uint32_t>(proto::EvState::assumed_bad) ? 1 : -1);
    return;
  }
  const Connection& connection = connections_[event.qpn - first_qpn];
  if (connection.carried == Carried::bulk && event.ev == 0) return;  // a write of nothing, which lands nowhere
  if (connection.carried == Carried::bulk)
    return place_.network.on_landed({connection.destination, event.code,
                                     hosts_[connection.destination].endpoint->region_number(event.code), event.value,
                                     event.ev, event.port, Recovery::key(event.qpn, event.psn)});
  if (connection.carried == Carried::message) return;
  SOFTMRC_CHECK(event.code == rkey);
  const auto flow = static_cast<std::uint32_t>(event.value >> 32);
  place_.network.on_placed({flow, connection.source, connection.destination, event.value & 0xFFFFFFFF, event.ev,
                            event.port, Recovery::key(event.qpn, event.psn)});
}

void MrcHosts::collect_completions(std::uint32_t host) {
  proto::Endpoint& endpoint = *hosts_[host].endpoint;
  std::array<proto::Completion, 32> found;
  while (endpoint.completions_waiting(cq)) {
    const std::size_t count = endpoint.poll_completions(cq, found);
    for (std::size_t i = 0; i < count; ++i) {
      if (found[i].status != proto::CompletionStatus::success) continue;
      if (found[i].kind == proto::CompletionKind::receive_imm) place_.network.on_delivered(found[i].imm);
      else place_.network.on_completed(static_cast<std::uint32_t>(found[i].wr_id));
    }
  }
}

void MrcHosts::drain(std::uint32_t host) {
  Host& h = hosts_[host];
  if (!h.endpoint) return;  // a port that only a survey used
  if (h.driven) return h.driven->process.kick(now());
  for (std::uint32_t ports; (ports = free_ports(host)) && h.endpoint->poll_transmit(now(), ports, scratch_);)
    leave(host, scratch_);
  collect_completions(host);
}

Time MrcHosts::deadline(std::uint32_t host) {
  Host& h = hosts_[host];
  if (!h.endpoint) return Time::never();
  if (h.driven) return h.driven->process.next_at(*h.endpoint, *h.driven);
  return h.driver ? std::min(h.endpoint->poll_timeout(), h.driver->deadline()) : h.endpoint->poll_timeout();
}

void MrcHosts::handle_timeout(std::uint32_t host) {
  Host& h = hosts_[host];
  if (h.driven) {
    if (deadline(host) <= now()) h.driven->process.step(now(), *h.endpoint, *h.driven);
    return collect_completions(host);
  }
  h.endpoint->handle_timeout(now());
  progress(host);
  drain(host);
}

void MrcHosts::leave(std::uint32_t host, const proto::Transmit& t) {
  const std::uint32_t id = place_.packets.take();
  SimPacket& p = place_.packets[id];
  const MrcHostFactory::RemotePeer& peer = hosts_[host].peers[t.peer];
  p.packet = t.packet;
  p.entropy = t.entropy;
  p.source = host;
  p.destination = peer.host;
  p.peer = peer.our_id_there;
  p.plane = t.port;
  p.is_control = t.traffic_class == proto::TrafficClass::control;
  p.congestion = p.is_corrupt = p.is_survey = false;
  p.trim = proto::Trim::none;
  p.came_from = no_link;
  const bool is_write = wire::is_write(t.packet.bth.opcode);
  p.is_trimmable = is_write && t.traffic_class != proto::TrafficClass::data_no_trim;
  p.bytes = is_write ? std::get<wire::Write>(t.packet.body).payload_size + place_.config.data_overhead_bytes
                     : place_.config.control_packet_bytes;
  if (!is_write) ++counters_.control_packets;
  else if (t.packet.bth.retransmission) ++counters_.retransmitted;
  else ++counters_.data_packets;
  if (is_write) hosts_[host].last_sender = connections_[t.packet.bth.dqp - first_qpn].sender;
  place_.network.on_leave(host, id);
}

void MrcHosts::handle(std::uint32_t host, std::uint32_t id) {
  Host& h = hosts_[host];
  if (!h.driven) {
    hand_in(host, id);
    progress(host);
  } else if (!h.driven->process.arrive(now(), place_.packets[id].plane, id)) {
    ++counters_.dropped;
    place_.packets.drop(id);
  }
  drain(host);
}

void MrcHosts::hand_in(std::uint32_t host, std::uint32_t id) {
  const SimPacket& p = place_.packets[id];
  proto::Arrival arrival;
  arrival.peer = p.peer;
  arrival.entropy = p.entropy;
  arrival.port = p.plane;
  arrival.congestion = p.congestion;
  arrival.trim = p.trim;
  count_arrival(host, p.packet.bth.psn);
  proto::Endpoint& endpoint = *hosts_[host].endpoint;
  if (p.is_corrupt) {
    arrival.integrity = proto::Integrity::bad;
    endpoint.handle_datagram(now(), {}, arrival);
  } else {
    endpoint.handle_packet(now(), p.packet, arrival);
  }
  place_.packets.drop(id);
}

bool MrcHosts::set_port(std::uint32_t host, std::uint32_t plane, bool is_up) {
  if (!hosts_[host].endpoint) return false;
  hosts_[host].endpoint->set_port(now(), plane, is_up);
  drain(host);
  return true;
}

// The queue pair that will be at work, as far as that is known beforehand.
const proto::QueuePair* MrcHosts::pair_of(const Host& host, const SimPacket* arriving) const {
  if (!arriving) return host.last_sender;
  const std::uint32_t index = arriving->packet.bth.dqp - first_qpn;
  if (index >= connections_.size()) return nullptr;
  const Connection& connection = connections_[index];
  return connection.destination == arriving->destination ? connection.receiver : connection.sender;
}

void MrcHosts::fetch_row(std::uint32_t host) const { prefetch(&hosts_[host]); }

void MrcHosts::fetch_engine(std::uint32_t host, const SimPacket* arriving) const {
  const Host& h = hosts_[host];
  const proto::QueuePair* pair = pair_of(h, arriving);
  if (!h.endpoint || !pair) return;
  prefetch_bytes(h.endpoint.get(), sizeof *h.endpoint);
  prefetch_bytes(pair, sizeof *pair);
}

void MrcHosts::fetch_work(std::uint32_t host, const SimPacket* arriving) const {
  const Host& h = hosts_[host];
  const proto::QueuePair* pair = pair_of(h, arriving);
  if (!h.endpoint || !pair) return;
  h.endpoint->prefetch_state();
  pair->prefetch_state(arriving && wire::is_write(arriving->packet.bth.opcode));
}

std::array<std::uint64_t, 4> MrcHostFactory::ev_census() const {
  std::array<std::uint64_t, 4> states{};
  for (const Connection& connection : connections_) {
    if (!connection.sender) continue;  // its first flow has not started
    const proto::EvSet& evs = connection.sender->requester().evs();
    for (std::uint16_t ev = 0; ev < evs.size(); ++ev)
      if (!evs[ev].is_spare) ++states[static_cast<std::size_t>(evs[ev].state)];
  }
  return states;
}

proto::QpStats MrcHostFactory::total_stats() const {
  proto::QpStats sum;
  for (const Connection& connection : connections_)
    for (const proto::QueuePair* pair : {connection.sender, connection.receiver}) {
      if (!pair || (connection.carried != Carried::flow && pair == connection.sender))
        continue;  // that is the receiver of another one
      const proto::QpStats& one = pair->stats();
#define X(name) sum.name += one.name;
      SOFTMRC_QP_COUNTERS(X)
#undef X
    }
  return sum;
}

}  // namespace softmrc::sim
