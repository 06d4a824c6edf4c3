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
    const std::size_t bin = bin_.ps ? bin_at(now) : 0;
    bad_evs_now_ += change;
    if (bin_.ps) bad_evs_[bin] = bad_evs_now_;
  }

  // Bytes per bin and plane, bin-major; EVs assumed bad at the end of each bin. Both grow with the run.
  const std::vector<std::uint64_t>& placed() const { return placed_; }
  const std::vector<std::int64_t>& bad_evs() const { return bad_evs_; }

 private:
  static constexpr std::size_t max_bins = 1u << 20;

  // The bin that holds this moment; the series are drawn out to it. A run longer than anyone would plot ends in one bin.
  std::size_t bin_at(Time now) {
    const std::size_t bin = std::min(static_cast<std::size_t>(now.ps / bin_.ps), max_bins - 1);
    if (bad_evs_.size() <= bin) {
      bad_evs_.resize(bin + 1, bad_evs_now_);
      placed_.resize((bin + 1) * planes_, 0);
    }
    return bin;
  }

  std::uint32_t planes_;
  Duration bin_{0};
  std::vector<std::uint64_t> placed_;
  std::vector<std::int64_t> bad_evs_;
  std::int64_t bad_evs_now_ = 0;
};

}  // namespace softmrc::sim
