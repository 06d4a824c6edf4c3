// How Network hosts the RoCE baseline.
#include <algorithm>

#include "base/check.h"
#include "sim/network.h"

namespace softmrc::sim {

RoceHost& Network::roce_of(std::uint32_t host) {
  Host& h = hosts_[host];
  if (!h.roce) {
    RoceConfig config = config_.roce;
    if (config.line_rate_bps == 0) config.line_rate_bps = config_.fabric.host_link_bps;
    RoceObserver& observer = *this;
    h.roce = std::make_unique<RoceHost>(config, config_.mtu, observer);
  }
  return *h.roce;
}

// A pair of hosts has its queue pairs from its first flow on; each flow is cut into one part for each of them.
void Network::start_roce_flow(std::uint32_t id) {
  const Flow& flow = flows_[id];
  const std::uint32_t qps = config_.roce.qps_per_pair;
  const std::uint64_t key = static_cast<std::uint64_t>(flow.source) << 32 | flow.destination;
  const auto [found, is_new] = connection_ids_.try_emplace(key, static_cast<std::uint32_t>(connections_.size()));
  const std::uint32_t first = found->second * max_roce_qps;
  if (is_new) {
    connections_.push_back({flow.source, flow.destination});
    for (std::uint32_t i = 0; i < qps; ++i) {
      const auto entropy = static_cast<std::uint32_t>(prng_.bits() >> 32);
      const auto port = static_cast<std::uint8_t>((first + i) % config_.fabric.planes);
      roce_of(flow.source).open(first + i, flow.destination, entropy, port);
      roce_of(flow.destination).accept(first + i, flow.source, entropy, port);
    }
  }
  const std::uint32_t packets = (flow.bytes + config_.mtu - 1) / config_.mtu;
  const std::uint32_t share = (packets + qps - 1) / qps * config_.mtu;
  std::uint32_t offset = 0;
  for (std::uint32_t i = 0; offset < flow.bytes; ++i) {
    const std::uint32_t bytes = std::min(share, flow.bytes - offset);
    hosts_[flow.source].roce->post(now(), first + i, id, offset, bytes);
    offset += bytes;
  }
  drain(flow.source);
}

void Network::inject_roce(std::uint32_t host, const RoceSend& send) {
  const std::uint32_t id = take_parcel();
  Parcel& p = parcel(id);
  p.packet.bth = wire::Bth{};
  p.roce = send.packet;
  p.entropy = send.entropy;
  p.source = host;
  p.destination = send.destination;
  p.plane = send.port;
  p.is_control = send.packet.kind != RocePacket::Kind::data;
  p.is_trimmable = p.congestion = p.is_corrupt = false;
  p.trim = proto::Trim::none;
  p.came_from = none;
  p.bytes = p.is_control ? config_.control_packet_bytes : send.packet.bytes + config_.data_overhead_bytes;
  ++(p.is_control ? counters_.control_packets : counters_.data_packets);
  transmit(fabric_.host_up(send.port, host), id);
}

void Network::on_roce_placed(std::uint32_t id, std::uint32_t offset, std::uint32_t bytes, std::uint8_t port) {
  check_placement(id, offset, bytes, port);
  Flow& flow = flows_[id];
  flow.bytes_placed += bytes;
  if (flow.bytes_placed == flow.bytes) on_delivered(id);
}

void Network::on_roce_acknowledged(std::uint32_t id, std::uint32_t bytes) {
  Flow& flow = flows_[id];
  flow.bytes_acknowledged += bytes;
  if (flow.bytes_acknowledged < flow.bytes) return;
  on_completed(id);
}

void Network::on_roce_broken(std::uint32_t) { ++counters_.broken_connections; }

// PFC: the switch at the end of `came_from` holds so much that arrived by it; past a limit the sender must pause.
void Network::count_buffered(LinkId came_from, std::int64_t bytes) {
  if (!is_lossless_ || came_from == none) return;
  Link& link = links_[came_from];
  link.buffered = static_cast<std::uint32_t>(link.buffered + bytes);
  const std::uint32_t xoff = config_.roce.pfc_xoff_bytes ? config_.roce.pfc_xoff_bytes : config_.queue.data_bytes / 2;
  const std::uint32_t xon = config_.roce.pfc_xon_bytes ? config_.roce.pfc_xon_bytes : xoff / 4 * 3;
  if (!link.pause_asked && link.buffered > xoff) {
    link.pause_asked = true;
    ++counters_.pauses;
    scheduler_.push(now() + config_.fabric.link_delay, pause, came_from, 1);
  } else if (link.pause_asked && link.buffered < xon) {
    link.pause_asked = false;
    scheduler_.push(now() + config_.fabric.link_delay, pause, came_from, 0);
  }
}

void Network::on_pause(LinkId at, bool is_paused) {
  links_[at].is_paused = is_paused;
  const Node from = fabric_.from(at);
  if (from.tier != Tier::host) {
    kick(at);
    return;
  }
  Host& host = hosts_[from.index];
  if (is_paused) {
    host.paused_ports |= 1u << from.plane;
  } else {
    host.paused_ports &= ~(1u << from.plane);
    drain(from.index);
  }
}

}  // namespace softmrc::sim
