#include <array>
#include <memory>
#include <vector>

#include "base/prng.h"
#include "portable.h"
#include "udp/device.h"

namespace softmrc::native {
namespace {

constexpr std::uint32_t planes = 2, lanes = 3, qpn = 0x11, rkey = 7, writes = 64, write_bytes = 40'000, payload = 4096;

struct Node {
  std::unique_ptr<udp::Device> device;
  std::uint32_t cq = 0;

  explicit Node(const proto::MemoryRegion& region) {
    udp::DeviceConfig plan;
    for (std::uint8_t last = 1; last <= planes; ++last) {
      plan.planes.emplace_back();
      plan.planes.back().address = wire::Ipv4{127, 0, 0, last};
      plan.planes.back().sockets = 2;
    }
    plan.engine.ports = planes;
    plan.watches_links = false;
    plan.lanes = lanes;
    device = std::make_unique<udp::Device>(std::move(plan));
    cq = device->create_cq();
    require(device->add_region(region) && !device->create_qp(qpn), "memory and a queue pair");
    device->lane_of(qpn).with_engine([&](proto::Endpoint& engine, Time) {
      std::uint32_t id = 0;
      auto evs = std::make_shared<proto::EvProfile>();
      evs->count = 2 * planes;
      auto cc = std::make_shared<proto::CcProfile>();
      cc->algorithm = "fixed_window";
      require(!engine.add_ev_profile(evs, id) && !engine.add_cc_profile(cc, id), "profiles");
      return true;
    });
  }

  void connect(const Node& other) {
    std::vector<udp::PeerPlane> there;
    for (const udp::Plane& plane : other.device->lane_of(qpn).planes()) {
      there.emplace_back();
      there.back().address = plane.plan.address;
      there.back().port = plane.sockets.front().port();
    }
    std::uint32_t peer = 0;
    require(!device->add_peer(there, peer), "a peer");
    proto::InitAttributes init;
    init.send_cq = init.recv_cq = cq;
    proto::RtrAttributes rtr;
    rtr.peer = peer;
    rtr.dest_qpn = qpn;
    rtr.mtu = payload;
    proto::RtsAttributes rts;
    rts.timeout = 17;
    require(!device->modify_init(qpn, init) && !device->modify_rtr(qpn, rtr), "ready to receive");
    const auto ready = [&](proto::Endpoint& engine, Time now) { return engine.modify_rts(now, qpn, rts); };
    require(!device->lane_of(qpn).with_engine(ready), "and to send");
  }

  // The next completions, which must all be good.
  std::size_t wait() {
    std::array<proto::Completion, 64> found;
    const std::size_t count = device->wait(cq, found, seconds(20));
    require(count > 0, "something completes within twenty seconds");
    for (std::size_t i = 0; i < count; ++i)
      require(found[i].status == proto::CompletionStatus::success, "and does so well");
    return count;
  }
};

}  // namespace

Hash sockets() {
  Prng prng(1, "sockets");
  std::vector<std::uint8_t> source(writes * write_bytes), target(source.size()), unused(1);
  for (auto& byte : source) byte = static_cast<std::uint8_t>(prng.bits());
  Node a({.data = unused.data(), .va = 0, .length = 1, .rkey = rkey});
  Node b({.data = target.data(), .va = 0, .length = target.size(), .rkey = rkey});
  a.connect(b);
  b.connect(a);
  b.device->lane_of(qpn).with_engine([](proto::Endpoint& engine, Time) { return engine.post_receive(qpn, 1); });
  for (std::uint32_t i = 0; i < writes; ++i) {
    proto::WorkRequest request;
    request.data = source.data() + i * write_bytes;
    request.remote_va = i * write_bytes;
    request.rkey = rkey;
    request.length = write_bytes;
    request.has_imm = i + 1 == writes;
    const auto post = [&](proto::Endpoint& engine, Time now) { return engine.post_write(now, qpn, request); };
    require(a.device->lane_of(qpn).with_engine_and_send(post) == proto::PostStatus::ok, "a write is taken");
  }
  for (std::size_t done = 0; done < writes;) done += a.wait();
  b.wait();
  require(source == target, "every byte went over the sockets");
  a.device->close();
  b.device->close();
  Hash hash;
  hash.add(target);
  return hash;
}

}  // namespace softmrc::native
