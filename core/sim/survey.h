// Packets that no host's engine sends: a mapper's, whose routes are written uSID by uSID and lead back to a host. What they
// tell (that they came back, when, and whether whole) is kept here until somebody asks.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/time.h"
#include "sim/parcel.h"

namespace softmrc::sim {

class Survey {
 public:
  struct Shot {
    Time at{};
    std::uint32_t host = 0;
    std::uint32_t plane = 0;
    std::uint32_t bytes = 0;
    Route route{};
    Time back = Time::never();  // never: lost, or still under way
    bool is_corrupt = false;
  };

  // Its number, until the next `take`.
  std::uint32_t add(const Shot& shot) {
    shots_.push_back(shot);
    ++to_send_;
    return static_cast<std::uint32_t>(shots_.size() - 1);
  }

  void prepare(std::uint32_t number, Parcel& parcel) {
    const Shot& shot = shots_[number];
    parcel.route = shot.route;
    parcel.entropy = 0;
    parcel.source = parcel.destination = shot.host;
    parcel.peer = number;
    parcel.bytes = shot.bytes;
    parcel.came_from = no_link;
    parcel.plane = static_cast<std::uint8_t>(shot.plane);
    parcel.is_control = parcel.is_survey = true;
    parcel.is_trimmable = parcel.congestion = parcel.is_corrupt = false;
    parcel.trim = proto::Trim::none;
    --to_send_;
    ++under_way_;
    ++sent_;
  }

  void on_back(Time now, const Parcel& parcel) {
    shots_[parcel.peer].back = now;
    shots_[parcel.peer].is_corrupt = parcel.is_corrupt;
    --under_way_;
    ++arrived_;
  }
  void on_lost() { --under_way_; }

  bool is_over() const { return to_send_ == 0 && under_way_ == 0; }
  std::uint64_t sent() const { return sent_; }
  std::uint64_t arrived() const { return arrived_; }

  // All that were added, in that order, once none is under way any more.
  std::vector<Shot> take() {
    SOFTMRC_CHECK(is_over());
    return std::exchange(shots_, {});
  }

 private:
  std::vector<Shot> shots_;
  std::uint64_t to_send_ = 0;
  std::uint64_t under_way_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t arrived_ = 0;
};

}  // namespace softmrc::sim
