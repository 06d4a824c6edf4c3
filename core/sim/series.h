// A run over time, in bins of one length: bytes placed by plane, and how many EVs are assumed bad.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/time.h"

namespace softmrc::sim {

class Series {
 public:
  explicit Series(std::uint32_t planes) : planes_(planes) {}

  // Nothing is kept before this is called.
  void sample_every(Duration bin) {
    SOFTMRC_CHECK(bin.ps > 0);
    bin_ = bin;
  }

  void on_placed(Time now, std::uint8_t plane, std::uint32_t bytes) {
    if (bin_.ps) placed_[bin_at(now) * planes_ + plane] += bytes;
  }

  void on_bad_evs(Time now, std::int64_t change) {
    if (bin_.ps) bad_evs_[bin_at(now)] += change;
    else bad_evs_before_ += change;
  }

  // What was seen elsewhere at the same times.
  void add(const Series& other) {
    if (other.bad_evs_.size() > bad_evs_.size()) {
      bad_evs_.resize(other.bad_evs_.size(), 0);
      placed_.resize(other.placed_.size(), 0);
    }
    for (std::size_t i = 0; i < other.placed_.size(); ++i) placed_[i] += other.placed_[i];
    for (std::size_t i = 0; i < other.bad_evs_.size(); ++i) bad_evs_[i] += other.bad_evs_[i];
    bad_evs_before_ += other.bad_evs_before_;
  }

  // Bytes per bin and plane, bin-major; EVs assumed bad at the end of each bin. Both grow with the run.
  const std::vector<std::uint64_t>& placed() const { return placed_; }
  std::vector<std::int64_t> bad_evs() const {
    std::vector<std::int64_t> levels = bad_evs_;
    std::int64_t level = bad_evs_before_;
    for (std::int64_t& one : levels) one = level += one;
    return levels;
  }

 private:
  static constexpr std::size_t max_bins = 1u << 20;

  // The bin that holds this moment; the series are drawn out to it. A run longer than anyone would plot ends in one
  // bin.
  std::size_t bin_at(Time now) {
    const std::size_t bin = std::min(static_cast<std::size_t>(now.ps / bin_.ps), max_bins - 1);
    if (bad_evs_.size() <= bin) {
      bad_evs_.resize(bin + 1, 0);
      placed_.resize((bin + 1) * planes_, 0);
    }
    return bin;
  }

  std::uint32_t planes_;
  Duration bin_{0};
  std::vector<std::uint64_t> placed_;
  std::vector<std::int64_t> bad_evs_;  // changes
  std::int64_t bad_evs_before_ = 0;    // anything was kept
};

}  // namespace softmrc::sim
