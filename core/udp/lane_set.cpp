#include "udp/lane_set.h"

#include <algorithm>
#include <cerrno>
#include <map>

#include "base/prng.h"
#include "udp/device_error.h"

namespace softmrc::udp {

using proto::Error;
using proto::MaybeError;

namespace {

const std::string& link_of(const PlaneConfig& plane) { return plane.interface.empty() ? plane.link : plane.interface; }

// One bit a plane. A link without a name is up.
std::uint32_t links_up(const DeviceConfig& plan) {
  std::uint32_t up = ~0u;
  if (!plan.watches_links) return up;
  std::map<std::string, bool> known;
  for (std::uint32_t p = 0; p < plan.planes.size(); ++p) {
    const std::string& link = link_of(plan.planes[p]);
    const auto [here, is_new] = known.try_emplace(link, true);
    if (is_new && !link.empty()) {
      const std::optional<std::uint32_t> index = link_of_name(link);
      const std::optional<bool> is_up = index && *index ? is_link_up(*index) : true;
      if (!index || !is_up) fail_with_errno("cannot ask whether " + link + " is up");
      here->second = *is_up;
    }
    if (!here->second) up &= ~(1u << p);
  }
  return up;
}

}  // namespace

MaybeError validate(const DeviceConfig& plan) {
  const auto config = [](const char* what, std::size_t value, std::string expected) {
    return Error{Error::Kind::config, what, std::to_string(value), std::move(expected)};
  };
  if (auto v = proto::validate(plan.engine)) return v;
  if (plan.planes.size() != plan.engine.ports) return config("planes", plan.planes.size(), "as many as engine.ports");
  if (plan.lanes < 1 || plan.lanes > max_lanes) return config("lanes", plan.lanes, "1 to " + std::to_string(max_lanes));
  for (const PlaneConfig& plane : plan.planes)
    if (plane.port && plane.port + plan.lanes - 1 > 0xFFFF)
      return config("port", plane.port,
                    "at most " + std::to_string(0xFFFF + 1 - plan.lanes) + ": every lane has one, from this on");
  return std::nullopt;
}

LaneSet::LaneSet(DeviceConfig plan, Profiles& profiles, std::function<void(Lane&)> set_up,
                 std::function<void()> on_failed)
    : plan_(std::move(plan)), profiles_(profiles), set_up_(std::move(set_up)), on_failed_(std::move(on_failed)) {
  // First the watch, then a look: what changes in between is then seen at least once.
  if (plan_.watches_links) links_ = std::make_unique<LinkWatch>();
  link_up_ = links_up(plan_);
}

// All up to this one.
Lane& LaneSet::open(std::uint32_t number) {
  while (open_ <= number) {
    if (is_closed_) throw DeviceError(ESHUTDOWN, "the device is closed");
    const std::uint32_t next = open_;
    LaneConfig plan = plan_;
    plan.engine.seed = Prng(plan_.engine.seed, "lane", next).bits();
    for (PlaneConfig& plane : plan.planes)
      if (plane.port) plane.port = static_cast<std::uint16_t>(plane.port + next);
    LaneOwner& owner = *this;
    // One that cannot begin goes at once: it holds ports that the next attempt needs.
    auto opened = std::make_unique<Lane>(std::move(plan), clock_, owner, profiles_, link_up_, std::move(links_));
    Lane& lane = *opened;
    set_up_(lane);
    lane.begin();
    lanes_[next] = std::move(opened);
    ++open_;
    lane.apply_port_state_soon();  // changes since then were applied to the others only
  }
  return *lanes_[number];
}

std::uint32_t LaneSet::least_loaded() {
  const std::lock_guard lock(mutex_);
  const std::uint32_t best = least_loaded_of(plan_.lanes);
  try {
    open(best);
    return best;
  } catch (const DeviceError&) {
    return least_loaded_of(open_);
  }
}

std::uint32_t LaneSet::least_loaded_of(std::uint32_t count) {
  std::uint32_t best = 0;
  std::size_t fewest = ~std::size_t{0};
  for (std::uint32_t i = 0; i < count && fewest > 0; ++i) {
    const auto load = [](proto::Endpoint& e, Time) { return e.queue_pairs() + e.reserves(); };
    const std::size_t here = i < open_ ? lanes_[i]->with_engine(load) : 0;
    if (here >= fewest) continue;
    fewest = here;
    best = i;
  }
  return best;
}

void LaneSet::close() {
  is_closed_ = true;
  for_each([](Lane& lane) { lane.close(); });
}

bool LaneSet::is_closed() const {
  for (std::uint32_t i = 0; i < open_; ++i)
    if (lanes_[i]->is_closed()) return true;
  return false;
}

bool LaneSet::is_over() const {
  for (std::uint32_t i = 0; i < open_; ++i)
    if (!lanes_[i]->is_over()) return false;
  return true;
}

bool LaneSet::wait_until_over(Duration timeout) {
  const Time until = clock_.now() + timeout;
  bool is_over = true;
  for_each([&](Lane& lane) { is_over &= lane.wait_until_over(std::max(until - clock_.now(), Duration{0})); });
  return is_over;
}

void LaneSet::stop_lingering() {
  for_each([](Lane& lane) { lane.stop_lingering(); });
}

void LaneSet::close_after_fork() {
  for_each([](Lane& lane) { lane.close_after_fork(); });
}

std::string LaneSet::failure() {
  std::string first;
  for_each([&](Lane& lane) {
    if (first.empty()) first = lane.failure();
  });
  return first;
}

void LaneSet::clear() {
  for (auto& lane : lanes_) lane.reset();
}

void LaneSet::set_port(std::uint32_t plane, bool is_up) {
  const std::lock_guard lock(mutex_);
  const std::uint32_t bit = 1u << plane;
  admin_up_ = is_up ? admin_up_ | bit : admin_up_ & ~bit;
  for_each([](Lane& lane) { lane.apply_port_state(); });
}

void LaneSet::on_links(std::uint32_t up) {
  link_up_ = up;
  for_each([](Lane& lane) { lane.apply_port_state_soon(); });
}

}  // namespace softmrc::udp
