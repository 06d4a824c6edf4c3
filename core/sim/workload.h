// Flows, and which of them wait for which. Who carries them, and whether their bytes arrived, is left to others.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/time.h"
#include "collectives/types.h"

namespace softmrc::sim {

// A collective that a group of hosts calls.
struct Collective {
  std::uint32_t group = 0;
  collectives::Kind kind = collectives::Kind::barrier;
  std::uint64_t bytes = 0;  // of the whole buffer, on each rank; of an all_to_all, from each rank to each
  std::optional<collectives::Algorithm> forced{};  // wherever it is possible
};

// A flow is one write-with-immediate, one rank's call of a collective, or a time in which a host computes and sends
// nothing. It starts at `start`, or when the last of the flows it waits for was delivered (or acknowledged, where flows
// are chained on that).
struct Flow {
  std::uint32_t source = 0;
  std::uint32_t destination = 0;
  std::uint32_t bytes = 0;
  std::int32_t collective = -1;  // of which it is a rank's call; else a write
  std::uint32_t rank = 0;        // in that
  Duration lasts{-1};            // of one that computes; of others it is the network that decides
  std::uint32_t waits_for = 0;   // flows still to be delivered before this one starts
  Time start = Time::never();
  Time delivered = Time::never();  // the immediate reached the destination's completion queue
  Time completed = Time::never();  // the source saw its completion

  bool is_compute() const { return lasts.ps >= 0; }
  bool is_write() const { return collective < 0 && !is_compute(); }
};

class Workload {
 public:
  explicit Workload(bool chain_on_acknowledgement) : chain_on_acknowledgement_(chain_on_acknowledgement) {}

  std::uint32_t add(const Flow& flow);
  std::uint32_t add(std::uint32_t source, std::uint32_t destination, std::uint32_t bytes, Time start);
  // `later` starts only `think` after `earlier` was delivered.
  void add_dependency(std::uint32_t earlier, std::uint32_t later, Duration think);

  // Every call below calls `start(at, flow)` for the flows whose time is known now. First those that wait for none.
  template <typename Start>
  void begin(Start start) {
    std::stable_sort(dependencies_.begin(), dependencies_.end(),
                     [](const Dependency& a, const Dependency& b) { return a.earlier < b.earlier; });
    for (std::uint32_t i = 0; i < flows_.size(); ++i)
      if (flows_[i].start != Time::never()) start(flows_[i].start, i);
  }
  const Flow& on_started(Time now, std::uint32_t id) {
    flows_[id].start = now;
    return flows_[id];
  }
  template <typename Start>
  void on_delivered(Time now, std::uint32_t id, Start start) {
    SOFTMRC_CHECK(flows_[id].delivered == Time::never());
    flows_[id].delivered = now;
    if (!chain_on_acknowledgement_) release(now, id, start);
  }
  template <typename Start>
  void on_completed(Time now, std::uint32_t id, Start start) {
    SOFTMRC_CHECK(flows_[id].completed == Time::never());
    flows_[id].completed = now;
    if (chain_on_acknowledgement_) release(now, id, start);
  }

  const std::vector<Flow>& flows() const { return flows_; }
  // Whether flows start each other only at hosts that know by themselves: those where the earlier one ends, and of
  // calls, computing and acknowledgements, those where it began.
  bool is_local() const;
  // Flows that are not complete, under way or not.
  std::vector<std::uint32_t> stuck() const;

 private:
  struct Dependency {
    std::uint32_t earlier = 0;
    std::uint32_t later = 0;
    Duration think{0};
  };

  template <typename Start>
  void release(Time now, std::uint32_t id, Start start) {
    const auto by_earlier = [](const Dependency& d, std::uint32_t earlier) { return d.earlier < earlier; };
    for (auto it = std::lower_bound(dependencies_.begin(), dependencies_.end(), id, by_earlier);
         it != dependencies_.end() && it->earlier == id; ++it)
      if (--flows_[it->later].waits_for == 0) start(now + it->think, it->later);
  }

  std::vector<Flow> flows_;
  std::vector<Dependency> dependencies_;  // sorted by `earlier` before the first event
  bool chain_on_acknowledgement_;
};

}  // namespace softmrc::sim
