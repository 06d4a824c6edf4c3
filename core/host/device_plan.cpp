#include "host/device_plan.h"

#include <sys/random.h>

#include <algorithm>
#include <numeric>

namespace softmrc::host {
namespace {

constexpr std::uint64_t unknown_rate_bps = 40'000'000'000;  // what software may reach
constexpr double queue_here_us = 8'000;                     // on loopback

Duration us(double value) { return Duration{static_cast<std::int64_t>(value * 1e6)}; }

}  // namespace

std::uint64_t random_bits() {
  std::uint64_t bits = 0;
  while (getrandom(&bits, sizeof bits, 0) != sizeof bits) {}
  return bits;
}

proto::CcProfile congestion_of(const DeviceSettings& settings, std::span<const std::uint64_t> speeds_bps,
                               bool stays_here) {
  proto::CcProfile profile;
  profile.algorithm = settings.congestion_control;
  profile.shared_window_bdp = 0;  // the kernel's queues are no fabric's; a collective sends to all at once
  profile.rate_bps = settings.rate_bps;
  if (!profile.rate_bps)
    profile.rate_bps = std::ranges::count(speeds_bps, 0u)
                           ? unknown_rate_bps
                           : std::accumulate(speeds_bps.begin(), speeds_bps.end(), std::uint64_t{0});
  profile.base_rtt = profile.min_base_rtt = us(settings.base_rtt_us);
  profile.min_reorder_window = us(settings.reorder_us);
  profile.trimming = settings.trimming;
  profile.each_port = profile.algorithm == proto::controller_of_sockets;
  if (profile.each_port) profile.target_delay = us(stays_here ? queue_here_us : settings.queue_us);
  // Each of several planes has its share, but no less than a controller takes.
  const std::uint64_t share = std::max<std::uint64_t>(
      settings.window_bytes / std::max<std::size_t>(speeds_bps.size(), 1), smallest_mtu);
  profile.limit_window(profile.each_port ? share : settings.window_bytes);
  if (stays_here) profile.start_bytes = profile.max_bytes;
  return profile;
}

udp::DeviceConfig device_plan(const DeviceSettings& d, const std::vector<LocalPlane>& planes, std::uint32_t mtu,
                              std::uint32_t lanes) {
  udp::DeviceConfig plan;
  plan.engine.seed = random_bits() >> 1;
  plan.engine.secret = random_bits();
  plan.engine.ports = static_cast<std::uint32_t>(planes.size());
  plan.engine.sack_threshold_bytes = d.sack_threshold_bytes;
  plan.engine.sack_gap = us(d.sack_gap_us);
  plan.engine.trim_nack = plan.engine.peer_trim_nack = d.trimming;
  plan.engine.announces_ports = true;
  plan.engine.proves_addresses = d.prove_addresses;
  plan.engine.probe_interval = us(d.probe_interval_us);
  plan.engine.probe_interval_max = std::max(plan.engine.probe_interval_max, plan.engine.probe_interval);
  plan.engine.answers_per_s = d.answers_per_s;
  plan.sender.icrc = d.icrc;
  plan.seal.key_update.packets = d.rekey_packets;
  plan.seal.key_update.after = seconds(d.rekey_s);
  plan.sender.gso = d.gso;
  plan.sender.ecn = d.ecn;
  plan.watches_links = d.watch_links;
  plan.spin = us(d.spin_us);
  plan.lanes = lanes;
  if (d.send_buffer_bytes) plan.port_burst = std::max(1u, d.send_buffer_bytes / mtu);
  for (const LocalPlane& plane : planes)
    plan.planes.push_back({plane.address, plane.scope_id(), static_cast<std::uint16_t>(d.port), plane.interface,
                           plane.link, d.sockets_per_plane, d.srv6, d.buffer_bytes, d.send_buffer_bytes});
  return plan;
}

}  // namespace softmrc::host
