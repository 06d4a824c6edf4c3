// Data packets that faults took: when the last one was taken, when the last one was sent again, how many still wait for that.
#pragma once

#include <cstdint>
#include <unordered_set>

#include "base/time.h"

namespace softmrc::sim {

class Recovery {
 public:
  // A packet by its queue pair and PSN; a retransmission has the same key.
  static std::uint64_t key(std::uint32_t qpn, std::uint32_t psn) { return static_cast<std::uint64_t>(qpn) << 24 | psn; }

  // A copy of what has arrived already is lost, too, but nobody waits for it.
  void on_lost(Time now, std::uint64_t key, bool is_placed) {
    ++lost_;
    last_lost_ = now;
    if (!is_placed) waiting_.insert(key);
  }
  void on_sent(Time now, std::uint64_t key) {
    if (waiting_.erase(key)) last_resent_ = now;
  }
  void on_placed(std::uint64_t key) {
    if (!waiting_.empty()) waiting_.erase(key);
  }

  std::uint64_t lost() const { return lost_; }
  std::uint64_t unsent() const { return waiting_.size(); }
  Time last_lost() const { return last_lost_; }
  Time last_resent() const { return last_resent_; }

 private:
  std::unordered_set<std::uint64_t> waiting_;  // asked, never walked
  std::uint64_t lost_ = 0;
  Time last_lost_ = Time::long_ago();
  Time last_resent_ = Time::long_ago();
};

}  // namespace softmrc::sim
