// A run of the simulator without Python: prints its trace hash, so that builds of different compilers and optimisation
// levels can be compared. Everything that draws or computes is in it: loss, marks, trims, a fault, both transports.
//
//   trace roce|mrc|ranks SEED PLANES HOSTS HOSTS_PER_LEAF SPINES GBPS MESSAGE_BYTES EVS [faults|-] [CORES]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "sim/network.h"

namespace {

using namespace softmrc;

sim::NetworkConfig config_of(char** words) {
  const auto number = [&](int i) { return static_cast<std::uint32_t>(std::strtoul(words[i], nullptr, 10)); };
  sim::NetworkConfig c;
  c.transport = std::strcmp(words[1], "roce") ? sim::Transport::mrc : sim::Transport::roce;
  c.seed = number(2);
  c.fabric.planes = number(3);
  c.fabric.hosts = number(4);
  c.fabric.hosts_per_leaf = number(5);
  c.fabric.spines = number(6);
  c.fabric.host_link_bps = c.fabric.fabric_link_bps = 1'000'000'000ull * number(7);
  c.forwarding = c.transport == sim::Transport::roce ? sim::Forwarding::ecmp : sim::Forwarding::srv6;
  const double base_rtt_us = 8 + 8.0 * 4 * 4328 / (1e3 * number(7));
  const double bdp = static_cast<double>(c.fabric.host_link_bps) * base_rtt_us / 8e6;
  c.queue.data_bytes = static_cast<std::uint32_t>(5 * bdp);
  c.queue.control_bytes = static_cast<std::uint32_t>(2 * bdp);
  c.queue.ecn_low_bytes = static_cast<std::uint32_t>(0.2 * bdp);
  c.queue.ecn_high_bytes = static_cast<std::uint32_t>(0.8 * bdp);
  if (c.transport == sim::Transport::mrc) c.queue.trim_bytes = static_cast<std::uint32_t>(bdp);
  c.roce.line_rate_bps = c.fabric.host_link_bps;
  c.endpoint.ports = c.fabric.planes;
  auto evs = std::make_shared<proto::EvProfile>();
  evs->count = number(9);
  auto cc = std::make_shared<proto::CcProfile>();
  cc->rate_bps = c.fabric.host_link_bps * c.fabric.planes;
  cc->base_rtt = picoseconds(static_cast<std::int64_t>(base_rtt_us * 1e6));
  c.ev_profile = evs;
  c.cc_profile = cc;
  return c;
}

// Everyone sends to one other.
void add_permutation(sim::Network& network, const sim::NetworkConfig& c, std::uint32_t bytes) {
  std::vector<std::uint32_t> to(c.fabric.hosts);
  std::iota(to.begin(), to.end(), 0u);
  Prng prng(c.seed, "permutation");
  for (std::uint32_t i = c.fabric.hosts - 1; i > 0; --i) std::swap(to[i], to[prng.below(i)]);
  for (std::uint32_t host = 0; host < c.fabric.hosts; ++host) network.add_flow(host, to[host], bytes, Time{});
}

// Everyone is a rank, and they sum.
void add_all_reduce(sim::Network& network, const sim::NetworkConfig& c, std::uint32_t bytes) {
  std::vector<std::uint32_t> ranks(c.fabric.hosts);
  std::iota(ranks.begin(), ranks.end(), 0u);
  network.add_group(ranks);
  const std::int32_t sum = network.add_collective({0, collectives::Kind::all_reduce, bytes});
  for (const std::uint32_t host : ranks) {
    sim::Flow call;
    call.source = host;
    call.destination = (host + 1) % c.fabric.hosts;
    call.bytes = bytes;
    call.start = Time{};
    network.add_call(sum, host, call);
  }
}

}  // namespace

int main(int count, char** words) {
  if (count < 10) return 2;
  sim::NetworkConfig config = config_of(words);
  if (count > 11) config.cores = static_cast<std::uint32_t>(std::strtoul(words[11], nullptr, 10));
  sim::Network network(config);
  const auto bytes = static_cast<std::uint32_t>(std::strtoul(words[8], nullptr, 10));
  if (std::strcmp(words[1], "ranks")) add_permutation(network, config, bytes);
  else add_all_reduce(network, config, bytes);
  if (count > 10 && std::strcmp(words[10], "-")) {
    const auto at = [](std::int64_t us) { return Time{} + microseconds(us); };
    network.add_fault({at(5), sim::FaultKind::loss, network.fabric().leaf_up(0, 0, 0), 0.05});
    network.add_fault({at(10), sim::FaultKind::black_hole, network.fabric().leaf_down(0, 1, 1), 0});
    network.add_fault({at(2000), sim::FaultKind::heal, network.fabric().leaf_down(0, 1, 1), 0});
    network.sample_every(microseconds(10));
  }
  const auto started = std::chrono::steady_clock::now();
  while (network.run(Time{} + seconds(1), 1'000'000)) {}
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - started;
  std::printf("%016llx %u of %zu flows, %llu data packets\n", static_cast<unsigned long long>(network.trace_hash()),
              network.completed(), network.workload().flows().size(),
              static_cast<unsigned long long>(network.host_counters().data_packets));
  std::fprintf(stderr, "%.3f s, %.0f hops/s\n", wall.count(),
               static_cast<double>(network.link_counters().hops) / wall.count());
}
