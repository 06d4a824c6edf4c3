// The lanes of a device, which open one after the other as queue pairs come to live in them, and their ports: a port is
// up when it is enabled and its link is up.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "udp/clock.h"
#include "udp/lane.h"

namespace softmrc::udp {

constexpr std::uint32_t max_lanes = 64;

struct DeviceConfig : LaneConfig {
  std::uint32_t lanes = 1;
  bool watches_links = true;
};
proto::MaybeError validate(const DeviceConfig& plan);

class LaneSet final : private LaneOwner {
 public:
  // No lane is open yet. `set_up` gives one what the others have, before its thread starts and with the mutex held;
  // `on_failed` says that one has ended by a failure, from its thread.
  LaneSet(DeviceConfig plan, Profiles& profiles, std::function<void(Lane&)> set_up, std::function<void()> on_failed);

  // For what the parts of a device keep about its lanes. Not to be taken under an engine's lock.
  std::mutex& mutex() { return mutex_; }

  const DeviceConfig& plan() const { return plan_; }
  std::uint32_t planes() const { return static_cast<std::uint32_t>(plan_.planes.size()); }
  Clock& clock() { return clock_; }
  std::uint32_t size() const { return plan_.lanes; }
  std::uint32_t open_lanes() const { return open_; }
  // One that is open.
  Lane& operator[](std::uint32_t number) { return *lanes_[number]; }
  // Opens it if need be. With the mutex held. Throws DeviceError.
  Lane& open(std::uint32_t number);
  std::uint32_t number_of(std::uint32_t qpn) const { return qpn % plan_.lanes; }
  // Where this queue pair is, if there is one of that number.
  Lane& lane_of(std::uint32_t qpn) { return *lanes_[number_of(qpn) < open_ ? number_of(qpn) : 0]; }
  // The one with the fewest queue pairs, now or to come, which is opened; if that fails, of those that are open.
  std::uint32_t least_loaded();
  template <typename F>
  void for_each(F f) {
    for (std::uint32_t i = 0; i < open_; ++i) f(*lanes_[i]);
  }
  // The sum of what `f` says of each engine.
  template <typename F>
  std::size_t sum(F f) {
    std::size_t count = 0;
    for_each([&](Lane& lane) { count += lane.with_engine([&](proto::Endpoint& e, Time) { return f(e); }); });
    return count;
  }

  // See Lane. With the mutex held.
  void close();
  bool is_closed() const;
  bool is_over() const;
  bool wait_until_over(Duration timeout);
  void stop_lingering();
  void close_after_fork();
  std::string failure();
  // Ends their threads.
  void clear();

  void set_port(std::uint32_t plane, bool is_up);
  // One bit a plane.
  std::uint32_t admin_up() const { return admin_up_; }
  std::uint32_t link_up() const { return link_up_; }

 private:
  std::uint32_t up_ports() const override { return admin_up_ & link_up_; }
  void on_links(std::uint32_t up) override;
  void on_failure() override { on_failed_(); }
  std::uint32_t least_loaded_of(std::uint32_t count);

  const DeviceConfig plan_;
  Profiles& profiles_;
  const std::function<void(Lane&)> set_up_;
  const std::function<void()> on_failed_;
  Clock clock_;
  std::mutex mutex_;
  std::atomic<std::uint32_t> admin_up_{~0u};
  std::atomic<std::uint32_t> link_up_{~0u};
  std::atomic<std::uint32_t> open_{0};
  std::array<std::unique_ptr<Lane>, max_lanes> lanes_;
  bool is_closed_ = false;
  std::unique_ptr<LinkWatch> links_;  // until the first lane reads it
};

}  // namespace softmrc::udp
