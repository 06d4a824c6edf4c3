#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "base/prng.h"
#include "portable.h"
#include "sim/mesh.h"
#include "sim/pump.h"

namespace softmrc::native {
namespace {

constexpr std::uint32_t qpn = 0x11, rkey = 7;
constexpr std::size_t memory_bytes = 1 << 18;

void prepare(sim::Mesh& pair, std::uint32_t side, const proto::MemoryRegion& region) {
  proto::Endpoint& endpoint = pair.side(side);
  std::uint32_t id = 0;
  auto evs = std::make_shared<proto::EvProfile>();
  evs->count = 8 * endpoint.config().ports;
  require(!endpoint.add_ev_profile(evs, id) && !endpoint.add_cc_profile(std::make_shared<proto::CcProfile>(), id),
          "profiles");
  const std::uint32_t cq = endpoint.create_cq();
  require(endpoint.add_region(region) && !endpoint.create_qp(qpn), "memory and a queue pair");
  proto::InitAttributes init;
  init.send_cq = init.recv_cq = cq;
  proto::RtrAttributes rtr;
  rtr.dest_qpn = qpn;
  rtr.first_psn = Psn(0xFFFFF0);
  proto::RtsAttributes rts;
  rts.first_psn = Psn(0xFFFFF0);
  require(!endpoint.modify_init(qpn, init) && !endpoint.modify_rtr(pair.now(), qpn, rtr) &&
              !endpoint.modify_rts(pair.now(), qpn, rts),
          "a queue pair is connected");
}

// What the seed says of the network.
void draw_weather(sim::Mesh& pair, std::uint32_t ports, Prng& prng) {
  for (std::uint32_t side = 0; side < 2; ++side) {
    for (std::uint32_t port = 0; port < ports; ++port) {
      sim::MeshFaults& weather = pair.faults(side, 1 - side, port);
      weather.loss = 0.05 * prng.unit();
      weather.duplicate = 0.02 * prng.unit();
      weather.reorder = 0.2 * prng.unit();
      weather.reorder_delay = microseconds(prng.below(30));
      weather.corrupt = 0.01 * prng.unit();
      weather.trim = 0.05 * prng.unit();
      weather.mark = 0.2 * prng.unit();
      weather.path_jitter = microseconds(prng.below(5));
    }
  }
  if (ports > 1 && prng.chance(0.3)) pair.faults(0, 1, prng.below(ports)).black_hole = true;
}

void run(std::uint64_t seed, Hash& hash) {
  Prng prng(seed, "native pairs");
  sim::MeshConfig config;
  config.seed = seed;
  config.ports = 1 + prng.below(4);
  config.port_rate_bps = prng.chance(0.5) ? 100'000'000'000 : 0;
  proto::EndpointConfig endpoint;
  endpoint.ports = config.ports;
  endpoint.seed = seed;
  proto::EndpointConfig other = endpoint;
  other.seed = ~seed;
  sim::Mesh pair(config, {endpoint, other});
  std::vector<std::uint8_t> source(memory_bytes), target(memory_bytes);
  for (auto& byte : source) byte = static_cast<std::uint8_t>(prng.bits());
  prepare(pair, 0, {.data = nullptr, .va = 0, .length = memory_bytes, .rkey = rkey});
  prepare(pair, 1, {.data = target.data(), .va = 0, .length = memory_bytes, .rkey = rkey});
  draw_weather(pair, config.ports, prng);
  sim::PumpPlan plan;
  plan.side = 0;
  plan.qpn = qpn;
  plan.cq = 0;
  plan.source = source.data();
  plan.remote_va = 0;
  plan.rkey = rkey;
  plan.length = 1 + prng.below(60'000);
  plan.region_length = memory_bytes;
  plan.count = 2 * (memory_bytes / plan.length);
  plan.depth = 1 + prng.below(16);
  plan.count = std::min<std::uint64_t>(plan.count, 200);
  const sim::PumpResult result = sim::pump(pair, plan, Time{} + seconds(5));
  require(result.completed == plan.count && result.out_of_order == 0, "every write completes, in order");
  const std::size_t written = std::min<std::size_t>(plan.count, memory_bytes / plan.length) * plan.length;
  require(std::equal(source.begin(), source.begin() + static_cast<std::ptrdiff_t>(written), target.begin()),
          "every byte is in its place");
  hash.add(pair.trace_hash());
  hash.add(pair.packets_delivered());
  hash.add(static_cast<std::uint64_t>(pair.now().ps));
}

}  // namespace

Hash pairs() {
  Hash hash;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) run(seed, hash);
  return hash;
}

}  // namespace softmrc::native
