// The congestion controller a queue pair was given: NSCC, or a fixed window for tests and for networks that need none.
// It sees facts (bytes, a mark, a delay), never packets.
#pragma once

#include <variant>

#include "proto/congestion/nscc.h"

namespace softmrc::proto {

class FixedWindow {
 public:
  explicit FixedWindow(std::uint64_t bytes) : window_(static_cast<double>(bytes)) {}
  void on_ack(Time, Duration, const AckFacts&) {}
  void on_trim(Time, std::uint64_t, std::uint64_t) {}
  void on_loss(Time, std::uint64_t, std::uint64_t) {}
  void on_loss_undone(std::uint64_t) {}
  double window() const { return window_; }

 private:
  double window_;
};

class Controller {
 public:
  Controller() : impl_(FixedWindow(1 << 20)) {}
  Controller(const CcProfile& profile, std::uint32_t nominal_mtu)
      : impl_(profile.algorithm == CcAlgorithm::nscc ? Impl(Nscc(profile, nominal_mtu))
                                                     : Impl(FixedWindow(profile.window_bytes))) {}

  void on_ack(Time now, Duration base_rtt, const AckFacts& facts) {
    std::visit([&](auto& c) { c.on_ack(now, base_rtt, facts); }, impl_);
  }
  void on_trim(Time now, std::uint64_t packet_bytes, std::uint64_t in_flight) {
    std::visit([&](auto& c) { c.on_trim(now, packet_bytes, in_flight); }, impl_);
  }
  void on_loss(Time now, std::uint64_t packet_bytes, std::uint64_t in_flight) {
    std::visit([&](auto& c) { c.on_loss(now, packet_bytes, in_flight); }, impl_);
  }
  // The packet was not lost after all.
  void on_loss_undone(std::uint64_t packet_bytes) {
    std::visit([&](auto& c) { c.on_loss_undone(packet_bytes); }, impl_);
  }
  std::uint64_t window() const {
    return static_cast<std::uint64_t>(std::visit([](const auto& c) { return c.window(); }, impl_));
  }

 private:
  using Impl = std::variant<Nscc, FixedWindow>;
  Impl impl_;
};

}  // namespace softmrc::proto
