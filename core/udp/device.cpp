#include "udp/device.h"

#include <algorithm>

namespace softmrc::udp {

using proto::Error;
using proto::MaybeError;

namespace {

bool carries_srv6(const DeviceConfig& plan) {
  return std::ranges::all_of(plan.planes, [](const PlaneConfig& plane) { return plane.is_any_local; });
}

}  // namespace

Device::Device(DeviceConfig plan)
    : profiles_(static_cast<std::uint32_t>(plan.planes.size()), carries_srv6(plan)),
      lanes_(std::move(plan), profiles_, [this](Lane& lane) { set_up(lane); }, [this] { on_failure(); }),
      cqs_(lanes_),
      peers_(lanes_),
      memory_(lanes_),
      events_(lanes_, peers_),
      diagnostics_(lanes_) {
  lane(0);
}

Device::~Device() {
  close();
  stop_lingering();
  lanes_.clear();  // while the rest is there, which their threads use
}

// All as the other lanes have become.
void Device::set_up(Lane& lane) {
  memory_.set_up(lane);
  diagnostics_.set_up(lane);
  events_.set_up(lane);
}

Lane& Device::lane(std::uint32_t number) {
  const std::lock_guard lock(lanes_.mutex());
  return lanes_.open(number);
}

void Device::attach(std::unique_ptr<DeviceService> service) {
  const std::lock_guard lock(lanes_.mutex());
  services_.push_back(std::move(service));
}

void Device::close() {
  // They may be asking for something that the mutex is for.
  for (const auto& service : services_) service->close();
  const std::lock_guard lock(lanes_.mutex());
  lanes_.close();
  diagnostics_.close();
  cqs_.wake_all();
}

void Device::close_after_fork() {
  for (const auto& service : services_) service->close_after_fork();
  lanes_.close_after_fork();
}

// The device counts as closed: those that wait return, for whichever lane.
void Device::on_failure() {
  const std::lock_guard lock(lanes_.mutex());
  cqs_.wake_all();
  events_.wake_all();
}

MaybeError Device::create_qp(std::uint32_t qpn) {
  return lane(lanes_.number_of(qpn)).with_engine([&](proto::Endpoint& e, Time) { return e.create_qp(qpn); });
}

MaybeError Device::modify_init(std::uint32_t qpn, proto::InitAttributes attributes, const ProfileChoice& choice) {
  for (std::uint32_t* cq : {&attributes.send_cq, &attributes.recv_cq}) {
    const auto part = cqs_.part_of(*cq, lanes_.number_of(qpn));
    if (!part) return Error{Error::Kind::config, "cq", std::to_string(*cq), "a completion queue of this device"};
    *cq = *part;
  }
  return lane_of(qpn).with_engine(
      [&](proto::Endpoint& e, Time now) { return profiles_.init(e, now, qpn, attributes, choice); });
}

bool Device::destroy_qp(std::uint32_t qpn) {
  const bool was_there = lane_of(qpn).destroy_qp(qpn);
  profiles_.release(qpn);
  return was_there;
}

std::pair<bool, bool> Device::end_gone() {
  std::pair<bool, bool> found;
  lanes_.for_each([&](Lane& lane) {
    const auto [has_ended, has_unconfirmed] = lane.end_gone();
    found.first |= has_ended;
    found.second |= has_unconfirmed;
  });
  return found;
}

std::size_t Device::expected_seals() {
  std::size_t count = 0;
  lanes_.for_each([&](Lane& lane) { count += lane.expected_seals(); });
  return count;
}

std::uint32_t Device::name_of_peer(std::uint32_t lane, std::uint32_t known_as) {
  const std::lock_guard lock(lanes_.mutex());
  return peers_.name_of(lane, known_as);
}

}  // namespace softmrc::udp
