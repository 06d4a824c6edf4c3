// Bursts: requests to one peer that follow each other without a pause. A device that is not told of collectives, as
// NCCL's plugin, shows them instead; the last few are kept for the control socket.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/ring.h"
#include "base/time.h"

namespace softmrc::control {

struct Burst {
  std::uint64_t number = 0;  // of the device, from 1
  std::string peer;
  Time begun{};
  Time ended{};
  std::uint64_t bytes = 0;
  std::uint32_t requests = 0;
  Duration waited{};         // for the peer, which was not ready to receive
  std::uint64_t resent = 0;  // packets
};

class BurstLog {
 public:
  void add(Burst burst) {
    const std::lock_guard lock(mutex_);
    burst.number = next_++;
    if (kept_.size() == most) kept_.pop();
    kept_.push(std::move(burst));
  }
  // Those of this number and later that are still known, oldest first.
  std::vector<Burst> since(std::uint64_t number) const {
    const std::lock_guard lock(mutex_);
    std::vector<Burst> found;
    for (std::size_t i = 0; i < kept_.size(); ++i)
      if (kept_[i].number >= number) found.push_back(kept_[i]);
    return found;
  }

 private:
  static constexpr std::size_t most = 1024;

  mutable std::mutex mutex_;
  Ring<Burst> kept_;
  std::uint64_t next_ = 1;
};

// Finds where bursts begin and end, for one connection and in one thread. Nothing is locked but when a burst is over.
class BurstTracker {
 public:
  // A request is made, or would be if the peer were ready.
  void on_request(BurstLog& bursts, Time now) {
    if (is_open_ && under_way_ == 0 && !is_waiting() && now - burst_.ended > pause) close(bursts);
    if (is_open_) return;
    is_open_ = true;
    resent_before_ = resent_;
    burst_.begun = burst_.ended = now;
  }
  bool is_waiting() const { return waits_from_ != Time::never(); }
  void on_wait(Time now) { waits_from_ = now; }
  void on_posted(Time now, std::size_t size) {
    if (is_waiting()) burst_.waited = burst_.waited + (now - waits_from_);
    waits_from_ = Time::never();
    burst_.bytes += size;
    ++burst_.requests;
    ++under_way_;
  }
  void on_completed(Time now, std::uint64_t resent) {
    --under_way_;
    burst_.ended = now;
    resent_ = resent;
  }
  void set_peer(const std::string& peer) { peer_ = peer; }
  // Records the burst that is under way, as it is.
  void close(BurstLog& bursts) {
    if (!is_open_) return;
    is_open_ = false;
    burst_.peer = peer_;
    burst_.resent = resent_ - resent_before_;
    if (burst_.requests) bursts.add(std::move(burst_));
    burst_ = {};
  }

 private:
  static constexpr Duration pause = milliseconds(1);

  std::string peer_;
  Burst burst_;
  bool is_open_ = false;
  std::uint32_t under_way_ = 0;
  Time waits_from_ = Time::never();
  std::uint64_t resent_ = 0;         // by the connection so far
  std::uint64_t resent_before_ = 0;  // when this burst began
};

}  // namespace softmrc::control
