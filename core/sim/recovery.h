// Data packets that faults took: when the last one was taken, when the last one was retransmitted, how many still wait
// for that. What happened is reported window by window; whether a packet has arrived by another copy is looked up.
#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "base/time.h"

namespace softmrc::sim {

class Recovery {
 public:
  // A packet by its queue pair and PSN; a retransmission has the same key.
  static std::uint64_t key(std::uint32_t qpn, std::uint32_t psn) { return static_cast<std::uint64_t>(qpn) << 24 | psn; }

  struct Lost {
    Time at{};
    std::uint64_t key = 0;
    std::uint64_t va = 0;  // where it was to lie
    std::uint32_t host = 0;
    std::uint32_t rkey = 0;
    bool is_flow = true;  // and not of a collective
  };
  struct Resent {
    Time at{};
    std::uint64_t key = 0;
  };

  // All of a window, in any order. A copy of what has arrived already is lost, too, but it is not waited for.
  template <typename IsPlaced>
  void settle(std::vector<Lost>& lost, std::vector<Resent>& resent, IsPlaced is_placed) {
    const auto by_time = [](const auto& a, const auto& b) { return std::tie(a.at, a.key) < std::tie(b.at, b.key); };
    std::sort(lost.begin(), lost.end(), by_time);
    std::sort(resent.begin(), resent.end(), by_time);
    auto next = resent.begin();
    for (const Lost& one : lost) {
      for (; next != resent.end() && next->at <= one.at; ++next) on_resent(*next, is_placed);
      ++lost_;
      last_lost_ = one.at;
      if (!is_placed(one)) waiting_.try_emplace(one.key, one);
    }
    for (; next != resent.end(); ++next) on_resent(*next, is_placed);
    lost.clear();
    resent.clear();
  }

  std::uint64_t lost() const { return lost_; }
  template <typename IsPlaced>
  std::uint64_t unsent(IsPlaced is_placed) const {
    return static_cast<std::uint64_t>(
        std::count_if(waiting_.begin(), waiting_.end(), [&](const auto& one) { return !is_placed(one.second); }));
  }
  Time last_lost() const { return last_lost_; }
  Time last_resent() const { return last_resent_; }

 private:
  template <typename IsPlaced>
  void on_resent(const Resent& resent, IsPlaced& is_placed) {
    const auto found = waiting_.find(resent.key);
    if (found == waiting_.end()) return;
    if (!is_placed(found->second)) last_resent_ = resent.at;
    waiting_.erase(found);
  }

  std::unordered_map<std::uint64_t, Lost> waiting_;
  std::uint64_t lost_ = 0;
  Time last_lost_ = Time::long_ago();
  Time last_resent_ = Time::long_ago();
};

}  // namespace softmrc::sim
