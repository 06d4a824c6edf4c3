// How many payload bytes of one queue pair were placed in each span of time, from now on: what a measurement of
// failures looks at.
#pragma once

#include <vector>

#include "udp/device.h"

namespace softmrc::benchmarks {

class ThroughputSeries final : public proto::ProgressHandler {
 public:
  ThroughputSeries(udp::Device& device, std::uint32_t qpn, Duration bin, std::uint32_t bins)
      : device_(device), lane_(device.lane_of(qpn)), qpn_(qpn), bin_(bin), bins_(bins) {
    lane_.with_engine([this](proto::Endpoint& engine, Time now) {
      started_at_ = now;
      placed_before_ = placed(engine);
    });
    lane_.add_progress_handler(this);
  }
  ~ThroughputSeries() override { lane_.remove_progress_handler(this); }
  ThroughputSeries(const ThroughputSeries&) = delete;
  ThroughputSeries& operator=(const ThroughputSeries&) = delete;

  bool progress(proto::Endpoint& engine, Time now) override {
    const std::uint64_t placed_now = placed(engine);
    const auto at = static_cast<std::size_t>((now - started_at_).ps / bin_.ps);
    if (at < bins_.size()) bins_[at] += placed_now - placed_before_;
    placed_before_ = placed_now;
    return false;
  }
  Time deadline() const override { return Time::never(); }

  std::vector<std::uint64_t> bins() {
    return lane_.with_engine([this](proto::Endpoint&, Time) { return bins_; });
  }
  std::int64_t started_ns() { return device_.clock().monotonic_ns_of(started_at_); }

 private:
  std::uint64_t placed(proto::Endpoint& engine) const {
    const proto::QueuePair* pair = engine.qp(qpn_);
    return pair ? pair->stats().bytes_placed : placed_before_;
  }

  udp::Device& device_;
  udp::Lane& lane_;
  std::uint32_t qpn_;
  Duration bin_;
  Time started_at_{};
  std::uint64_t placed_before_ = 0;
  std::vector<std::uint64_t> bins_;
};

}  // namespace softmrc::benchmarks
