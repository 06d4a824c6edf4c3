#include "sim/roce_hosts.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace softmrc::sim {

RoceHost& RoceHosts::host_of(std::uint32_t host) {
  if (!hosts_[host]) {
    RoceConfig config = place_.config.roce;
    if (config.line_rate_bps == 0) config.line_rate_bps = place_.config.fabric.host_link_bps;
    RoceObserver& observer = *this;
    hosts_[host] = std::make_unique<RoceHost>(config, place_.config.mtu, observer);
  }
  return *hosts_[host];
}

std::unique_ptr<Hosts> RoceHostFactory::make_shard(const ShardContext& place) {
  return std::make_unique<RoceHosts>(place, *this);
}

std::uint64_t RoceHostFactory::begin(const std::vector<Flow>& flows) {
  std::unordered_map<std::uint64_t, std::uint32_t> pairs;
  for (const Flow& flow : flows) {
    const std::uint64_t key = static_cast<std::uint64_t>(flow.source) << 32 | flow.destination;
    const auto [found, is_new] = pairs.try_emplace(key, static_cast<std::uint32_t>(connections_.size()));
    if (is_new) connections_.push_back({flow.source, flow.destination});
    connection_of_.push_back(found->second);
    left_.push_back({flow.bytes, flow.bytes});
  }
  return 0;
}

// `make(qp, entropy, port)`, of each queue pair of a pair of hosts.
template <typename Make>
void RoceHosts::each_qp(std::uint32_t connection, Make make) const {
  const std::uint32_t first = connection * max_qps;
  for (std::uint32_t qp = first; qp < first + place_.config.roce.qps_per_pair; ++qp)
    make(qp, entropy_of(qp), static_cast<std::uint8_t>(qp % place_.config.fabric.planes));
}

void RoceHosts::expect(std::uint32_t id, const Flow& flow) {
  Connection& connection = connections_[connection_of_[id]];
  if (std::exchange(connection.has_receiver, true)) return;
  RoceHost& host = host_of(flow.destination);
  each_qp(connection_of_[id], [&](std::uint32_t qp, std::uint32_t entropy, std::uint8_t port) {
    host.accept(qp, flow.source, entropy, port);
  });
}

// Each flow is cut into one part for each queue pair.
void RoceHosts::start(std::uint32_t id, const Flow& flow) {
  const std::uint32_t mtu = place_.config.mtu;
  const std::uint32_t qps = place_.config.roce.qps_per_pair;
  const std::uint32_t first = connection_of_[id] * max_qps;
  RoceHost& host = host_of(flow.source);
  if (!std::exchange(connections_[connection_of_[id]].has_sender, true))
    each_qp(connection_of_[id], [&](std::uint32_t qp, std::uint32_t entropy, std::uint8_t port) {
      host.open(qp, flow.destination, entropy, port);
    });
  const std::uint32_t packets = (flow.bytes + mtu - 1) / mtu;
  const std::uint32_t share = (packets + qps - 1) / qps * mtu;
  std::uint32_t offset = 0;
  for (std::uint32_t i = 0; offset < flow.bytes; ++i) {
    const std::uint32_t bytes = std::min(share, flow.bytes - offset);
    host.post(now(), first + i, id, offset, bytes);
    offset += bytes;
  }
  drain(flow.source);
}

void RoceHosts::drain(std::uint32_t host) {
  if (!hosts_[host]) return;  // a port that only a survey used
  RoceSend send;
  for (std::uint32_t ports;
       (ports = free_ports(host)) && hosts_[host]->poll(now(), ports, ports & ~place_.nics[host].paused_ports, send);)
    leave(host, send);
}

void RoceHosts::leave(std::uint32_t host, const RoceSend& send) {
  const std::uint32_t id = place_.packets.take();
  SimPacket& p = place_.packets[id];
  p.roce = send.packet;
  p.entropy = send.entropy;
  p.source = host;
  p.destination = send.destination;
  p.plane = send.port;
  p.is_control = send.packet.kind != RocePacket::Kind::data;
  p.is_trimmable = p.congestion = p.is_corrupt = p.is_survey = false;
  p.trim = proto::Trim::none;
  p.came_from = no_link;
  p.bytes = p.is_control ? place_.config.control_packet_bytes : send.packet.bytes + place_.config.data_overhead_bytes;
  ++(p.is_control ? counters_.control_packets : counters_.data_packets);
  place_.network.on_leave(host, id);
}

void RoceHosts::handle(std::uint32_t host, std::uint32_t id) {
  const SimPacket& p = place_.packets[id];
  count_arrival(host, p.roce.psn);
  if (!p.is_corrupt) hosts_[host]->handle(now(), p.roce, p.congestion);
  place_.packets.drop(id);
  drain(host);
}

void RoceHosts::handle_timeout(std::uint32_t host) {
  hosts_[host]->handle_timeout(now());
  drain(host);
}

void RoceHosts::on_roce_placed(const RocePacket& p, std::uint8_t port) {
  const Connection& connection = connections_[p.qp / max_qps];
  place_.network.on_placed({p.flow, connection.source, connection.destination, p.offset, p.bytes, port, 0});
  if ((left_[p.flow].to_place -= p.bytes) == 0) place_.network.on_delivered(p.flow);
}

void RoceHosts::on_roce_acknowledged(std::uint32_t flow, std::uint32_t bytes) {
  if ((left_[flow].to_acknowledge -= bytes) == 0) place_.network.on_completed(flow);
}

void RoceHosts::on_roce_broken(std::uint32_t) { ++counters_.broken_connections; }

}  // namespace softmrc::sim
