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
  double window(std::uint32_t) const { return window_; }

 private:
  double window_;
};

class Controller {
 public:
  Controller() : impl_(FixedWindow(1 << 20)) {}
  // The first window is for so many queue pairs.
  Controller(const CcProfile& profile, std::uint32_t nominal_mtu, std::uint32_t sharers)
      : impl_(profile.algorithm == CcAlgorithm::nscc ? Impl(Nscc(profile, nominal_mtu, sharers))
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
  // While so many queue pairs of this endpoint send.
  std::uint64_t window(std::uint32_t senders) const {
    return static_cast<std::uint64_t>(std::visit([senders](const auto& c) { return c.window(senders); }, impl_));
  }

 private:
  using Impl = std::variant<Nscc, FixedWindow>;
  Impl impl_;
};

}  // namespace softmrc::proto
