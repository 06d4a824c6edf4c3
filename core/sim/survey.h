// Packets that no host's engine sends: a mapper's, whose routes are written uSID by uSID and lead back to a host. What they
// tell (that they came back, when, and whether whole) is kept here until somebody asks.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

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

  // Packets of one shard; what one sends, another may get back.
  struct Count {
    std::int64_t sent = 0, arrived = 0, lost = 0;
  };

  // Its number, until the next `take`.
  std::uint32_t add(const Shot& shot) {
    shots_.push_back(shot);
    return static_cast<std::uint32_t>(shots_.size() - 1);
  }

  void prepare(Count& count, std::uint32_t number, Parcel& parcel) const {
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
    ++count.sent;
  }

  void on_back(Count& count, Time now, const Parcel& parcel) {
    shots_[parcel.peer].back = now;
    shots_[parcel.peer].is_corrupt = parcel.is_corrupt;
    ++count.arrived;
  }

  const std::vector<Shot>& shots() const { return shots_; }
  // All that were added, in that order, to be asked for once none is under way any more.
  std::vector<Shot> take() {
    taken_ += static_cast<std::int64_t>(shots_.size());
    return std::exchange(shots_, {});
  }
  // Ever.
  std::int64_t added() const { return taken_ + static_cast<std::int64_t>(shots_.size()); }

 private:
  std::vector<Shot> shots_;
  std::int64_t taken_ = 0;
};

}  // namespace softmrc::sim
