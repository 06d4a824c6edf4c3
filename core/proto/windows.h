// How much a queue pair may have in flight, and by which ports: one window over all of them, or one for each.
// One is what a fabric wants whose planes are alike and whose switches mark. Where planes are separate links, each
// of some speed, what one of them carries says nothing about another.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "proto/congestion/controller.h"

namespace softmrc::proto {

class Windows {
 public:
  void start(const CcProfile& profile, std::uint32_t nominal_mtu, std::uint32_t sharers, std::uint32_t ports) {
    nominal_mtu_ = nominal_mtu;
    is_each_ = profile.each_port;
    windows_.assign(is_each_ ? ports : 1, One{Controller(profile, nominal_mtu, sharers)});
  }

  void on_sent(std::uint32_t port, std::uint32_t bytes) {
    of(port).in_flight += bytes;
    in_flight_ += bytes;
  }
  // It arrived, or was lost, or is retransmitted.
  void on_gone(std::uint32_t port, std::uint32_t bytes) {
    of(port).in_flight -= bytes;
    in_flight_ -= bytes;
  }
  void on_nothing_left() {
    in_flight_ = 0;
    for (One& one : windows_) one.in_flight = 0;
  }

  // A packet arrived, so long after it was sent by this port.
  void on_arrived(std::uint32_t port, std::uint32_t bytes, Duration took) {
    if (!is_each_) return;
    One& one = windows_[port];
    one.arrived += bytes;
    if (!one.took || took < *one.took) one.took = took;
  }
  // What a SACK tells of all ports together. Where each has a window, what arrived by each since the last counts there;
  // the mark is of the packet that caused it, by `port`.
  void on_sack(Time now, AckSample info, std::uint32_t port) {
    info.in_flight = in_flight_;
    if (!is_each_) return windows_[0].controller.on_ack(now, info);
    const bool marked = info.marked;
    for (std::uint32_t p = 0; p < windows_.size(); ++p) {
      One& one = windows_[p];
      if (one.arrived == 0) continue;
      info.marked = marked && p == port;
      info.new_bytes = one.arrived;
      info.round_trip = one.took;
      info.in_flight = one.in_flight;
      one.latest = *one.took;
      one.round_trip = one.round_trip.ps ? one.round_trip + (one.latest - one.round_trip) / 4 : one.latest;
      one.arrived = 0;
      one.took.reset();
      one.controller.on_ack(now, info);
    }
    shortest_ = longest;
    for (const One& one : windows_)
      if (one.round_trip.ps) shortest_ = std::min({shortest_, one.round_trip, one.latest});
  }
  // spec: port-lag
  // How much later than by the quickest port a packet arrives by this one, which has a separate queue.
  Duration lag_of(std::uint32_t port) const {
    if (!is_each_ || windows_[port].round_trip.ps == 0) return Duration{0};
    return std::max(windows_[port].round_trip, windows_[port].latest) - shortest_;
  }
  void on_trim(Time now, std::uint32_t port, std::uint64_t bytes) {
    of(port).controller.on_trim(now, {bytes, of(port).in_flight});
  }
  void on_loss(Time now, std::uint32_t port, std::uint64_t bytes) {
    of(port).controller.on_loss(now, {bytes, of(port).in_flight});
  }
  void on_loss_undone(std::uint32_t port, std::uint64_t bytes) { of(port).controller.on_loss_undone(bytes); }

  std::uint64_t in_flight() const { return in_flight_; }
  // Of these ports together.
  std::uint64_t window(std::uint32_t senders, std::uint32_t ports = ~0u) const {
    std::uint64_t sum = 0;
    for (std::uint32_t p = 0; p < windows_.size(); ++p)
      if (!is_each_ || ports >> p & 1) sum += window_of(p, senders);
    return sum;
  }
  std::uint64_t window_of(std::uint32_t port, std::uint32_t senders) const {
    return static_cast<std::uint64_t>(windows_[is_each_ ? port : 0].controller.window(senders));
  }
  std::vector<std::uint64_t> of_ports(std::uint32_t senders) const {
    std::vector<std::uint64_t> found;
    for (std::uint32_t p = 0; is_each_ && p < windows_.size(); ++p) found.push_back(window_of(p, senders));
    return found;
  }
  Duration target(Duration base_rtt) const { return windows_[0].controller.target(base_rtt); }
  bool is_each() const { return is_each_; }

  // For so many packets by this port.
  bool has_room(std::uint32_t port, std::uint32_t packets, std::uint32_t senders) const {
    return has_room(windows_[is_each_ ? port : 0], packets, senders);
  }
  // Ports by which another packet may be sent.
  // spec: cwnd-gate port-windows
  std::uint32_t open_ports(std::uint32_t senders) const {
    if (!is_each_) return has_room(windows_[0], 1, senders) ? ~0u : 0;
    std::uint32_t open = 0;
    for (std::uint32_t p = 0; p < windows_.size(); ++p)
      open |= static_cast<std::uint32_t>(has_room(windows_[p], 1, senders)) << p;
    return open;
  }

 private:
  struct One {
    Controller controller;
    std::uint64_t in_flight = 0;
    std::uint64_t arrived = 0;       // since the last SACK
    std::optional<Duration> took{};  // the quickest of them
    Duration round_trip{0};          // smoothed; zero: not known
    Duration latest{0};
  };

  One& of(std::uint32_t port) { return windows_[is_each_ ? port : 0]; }
  bool has_room(const One& one, std::uint32_t packets, std::uint32_t senders) const {
    return one.in_flight == 0 || one.in_flight + std::uint64_t{packets} * nominal_mtu_ <=
                                     static_cast<std::uint64_t>(one.controller.window(senders));
  }

  std::vector<One> windows_ = std::vector<One>(1);
  static constexpr Duration longest = Duration{std::int64_t{1} << 62};
  Duration shortest_ = longest;  // round trip of all ports
  std::uint64_t in_flight_ = 0;
  std::uint32_t nominal_mtu_ = 0;
  bool is_each_ = false;
};

}  // namespace softmrc::proto
