#include "host/node.h"

#include <algorithm>
#include <iterator>

#include "crypto/cipher_choice.h"
#include "host/denylist.h"
#include "host/fabric_host.h"
#include "host/faults.h"
#include "udp/device_error.h"
#include "udp/gso.h"

namespace softmrc::host {
namespace {

constexpr std::uint64_t max_captured = std::uint64_t{1} << 30;

bool are_here(const std::vector<LocalPlane>& planes) {
  return std::all_of(planes.begin(), planes.end(), [](const LocalPlane& plane) { return is_loopback(plane.address); });
}

// As many of the EVs as fit, the same number for each plane.
std::uint32_t whole_rows(std::size_t evs, std::size_t planes) {
  return static_cast<std::uint32_t>(std::min<std::size_t>(evs, proto::max_evs) / planes * planes);
}

proto::CcProfile congestion_here(const DeviceSettings& settings, const std::vector<LocalPlane>& planes) {
  std::vector<std::uint64_t> speeds_bps;
  for (const LocalPlane& plane : planes) speeds_bps.push_back(plane.speed_bps);
  return congestion_of(settings, speeds_bps, are_here(planes));
}

}  // namespace

void check(const HostSettings& settings, const std::vector<LocalPlane>& planes) {
  if (planes.empty() || planes.size() > max_planes)
    throw HostError("there are " + counted(planes.size(), "plane") + "; allowed: 1 to " + std::to_string(max_planes));
  choose_mtu(planes, settings.device.mtu, settings.device.mtu_limit);
  seals(settings.device, !settings.secret.empty(), are_here(planes));
  raise_if(validate(settings.device));
  raise_if(check_faults(settings.faults, planes.size()));
}

Node::Node(const HostSettings& settings, std::vector<LocalPlane> planes, std::uint32_t lanes)
    : planes_(std::move(planes)),
      settings_(settings.device),
      fabric_(settings.fabric),
      denylist_(settings.denylist),
      is_sealed_(seals(settings_, !settings.secret.empty(), are_here(planes_))),
      mtu_(choose_mtu(planes_, settings_.mtu, settings_.mtu_limit)) {
  if (is_sealed_) mtu_ = sealed_mtu(planes_, mtu_);
  udp::DeviceConfig wanted = device_plan(settings_, planes_, mtu_, lanes);
  raise_if(udp::validate(wanted));
  device_ = std::make_unique<udp::Device>(std::move(wanted));
  profiles_.resize(lanes);
  cq_ = device_->create_cq();
  if (!settings.capture.empty()) device_->start_capture(settings.capture, max_captured);
  set_faults(*device_, settings.faults);
}

bool Node::is_loopback_only() const { return are_here(planes_); }

std::vector<udp::PeerPlane> Node::reachable_at(std::uint32_t number) {
  udp::Lane& lane = device_->lane(number);
  return lane.with_engine([&](proto::Endpoint&, Time) {
    std::vector<udp::PeerPlane> found;
    for (const udp::Plane& plane : lane.planes()) {
      udp::PeerPlane& place = found.emplace_back();
      place.address = plane.plan.address;
      place.port = plane.sockets.empty() ? 0 : plane.sockets[0].port();
      for (const udp::Socket& socket : plane.sockets) place.source_ports.push_back(socket.port());
    }
    return found;
  });
}

proto::EvProfile Node::ev_profile() const {
  proto::EvProfile evs;
  evs.mode = proto::EvMode::explicit_;
  evs.spray_quantum = settings_.quantum ? settings_.quantum : udp::default_quantum(mtu_);
  evs.leaves_slow_ports = settings_.leave_slow_planes;
  return evs;
}

// A path is a socket: its EV is the socket's source port.
const Node::LaneProfiles& Node::profiles_of(std::uint32_t number) {
  LaneProfiles& made = profiles_[number];
  if (made.is_made) return made;
  proto::EvProfile evs = ev_profile();
  const auto planes = reachable_at(number);
  for (std::uint32_t p = 0; p < planes.size(); ++p)
    for (const std::uint16_t port : planes[p].source_ports) evs.entries.push_back({port, static_cast<std::uint8_t>(p)});
  evs.count = whole_rows(evs.entries.size(), planes.size());
  device_->lane(number).with_engine([&](proto::Endpoint& engine, Time) {
    raise_if(engine.add_ev_profile(std::make_shared<proto::EvProfile>(evs), made.evs));
    raise_if(
        engine.add_cc_profile(std::make_shared<proto::CcProfile>(congestion_here(settings_, planes_)), made.control));
    return 0;
  });
  made.is_made = true;
  return made;
}

LocalQp Node::open(std::uint32_t lane, proto::Domain domain) {
  LocalQp end;
  end.lane = lane;
  end.domain = domain;
  end.first_psn = static_cast<std::uint32_t>(random_bits()) & Psn::mask;
  do end.port_key = random_bits();
  while (end.port_key == 0);
  const std::uint32_t lanes = device_->lanes();
  do end.qpn = (4 + static_cast<std::uint32_t>(random_bits() % (0xFFFFFF / lanes - 4))) * lanes + lane;
  while (device_->create_qp(end.qpn));
  return end;
}

// In a fabric the paths are those to this peer: the first one of every plane, then the second, as Python numbers them.
void Node::init(const LocalQp& end, const std::vector<udp::PeerPlane>& peer) {
  const std::lock_guard lock(mutex_);
  const LaneProfiles& profiles = profiles_of(end.lane);
  proto::InitAttributes attributes;
  attributes.ev_profile = profiles.evs;
  attributes.cc_profile = profiles.control;
  attributes.send_cq = attributes.recv_cq = cq_;
  attributes.domain = end.domain;
  if (!fabric_) return raise_if(device_->modify_init(end.qpn, attributes, {0, 0}));
  proto::EvProfile evs = ev_profile();
  evs.format = wire::EvFormat::srv6;
  std::vector<std::vector<wire::Ipv6>> paths;
  for (std::uint32_t p = 0; p < peer.size(); ++p) paths.push_back(fabric_->paths(p, peer[p].address));
  for (std::size_t row = 0; row < paths[0].size(); ++row)
    for (std::uint32_t p = 0; p < paths.size(); ++p) {
      evs.entries.push_back({static_cast<std::uint32_t>(evs.entries.size()), static_cast<std::uint8_t>(p)});
      wire::ev_of_path({paths[p][row], std::nullopt}, evs.evs.emplace_back());
    }
  evs.count = whole_rows(evs.entries.size(), paths.size());
  udp::Lane& lane = device_->lane(end.lane);
  lane.with_engine([&](proto::Endpoint& engine, Time) {
    raise_if(engine.add_ev_profile(std::make_shared<proto::EvProfile>(evs), attributes.ev_profile));
    return 0;
  });
  const auto problem = device_->modify_init(end.qpn, attributes, {std::nullopt, 0});
  lane.with_engine([&](proto::Endpoint& engine, Time) {
    return engine.remove_ev_profile(attributes.ev_profile);
  });  // the queue pair keeps it
  raise_if(problem);
  if (!denylist_) return;
  lane.with_engine([&](proto::Endpoint& engine, Time now) {
    for (const std::uint32_t listed : denylist_->denied(*fabric_, peer[0].address))
      for (const std::uint16_t ev : udp::places_of(engine, end.qpn, evs, listed))
        raise_if(engine.deny_ev(now, end.qpn, ev));
    return 0;
  });
}

Offer Node::offer(std::span<const LocalQp> ends, Bytes more) {
  Offer offer{mtu_,
              settings_.icrc,
              is_sealed_,
              is_sealed_ ? crypto::faster_cipher() : crypto::Cipher{},
              settings_.max_wimm,
              settings_.mpr,
              {},
              {},
              std::move(more)};
  for (const LocalQp& end : ends) offer.qps.push_back({end.qpn, end.first_psn, end.port_key, reachable_at(end.lane)});
  return offer;
}

void Node::check(const Offer& offer) {
  LocalEnd own{planes_, {}, settings_.icrc, is_sealed_};
  for (std::uint32_t lane = 0; lane < device_->lanes(); ++lane)
    std::ranges::copy(reachable_at(lane), std::back_inserter(own.reached_at));
  check_offer(offer, own);
}

void Node::connect(LocalQp& end, const Offer& theirs, std::size_t number, std::uint32_t receives,
                   const std::optional<crypto::Secret>& root, bool is_connector) {
  std::vector<udp::PeerPlane> planes = theirs.qps.at(number).planes;
  for (std::size_t p = 0; p < planes.size(); ++p) planes[p].scope_id = planes_[p].scope_id();
  init(end, planes);
  raise_if(device_->add_peer(std::move(planes), end.peer));
  raise_if(connect_qp(*device_, settings_, end, theirs, number,
                      {mtu_, receives, is_connector, is_sealed_ ? &root.value() : nullptr}));
}

void Node::close(LocalQp& end) {
  if (end.qpn) device_->destroy_qp(end.qpn);
  if (end.peer != ~0u) device_->remove_peer(end.peer);
  end.qpn = 0;
  end.peer = ~0u;
}

std::uint32_t Node::register_memory(void* data, std::size_t size, proto::Domain domain) {
  proto::MemoryRegion region;
  region.data = static_cast<std::uint8_t*>(data);
  region.va = reinterpret_cast<std::uintptr_t>(data);
  region.length = size;
  region.domain = domain;
  if (size == 0 || region.va + (size - 1) < region.va)
    throw HostError("memory of " + std::to_string(size) + " bytes cannot be registered");
  do region.rkey = static_cast<std::uint32_t>(random_bits());
  while (!device_->add_region(region));
  return region.rkey;
}

void Node::close_after_fork() { device_->close_after_fork(); }

}  // namespace softmrc::host
