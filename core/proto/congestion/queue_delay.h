// A window for links that give no signals: no marks, no trims, an unknown speed, queues of unknown depth, and
// processes at both ends that wait for their turn. It holds as much in flight as keeps a queue of `target` standing at
// the bottleneck, and no more: that queue hides the turns, and what is beyond it is only lost sooner or later.
//
// Time goes in rounds, in each of which a window's worth is acknowledged. Its shortest round trip, less the shortest
// ever, is the queue that was never empty in that round; a packet that was late for a moment does not show in it.
//   at first             it grows by what is acknowledged, until packets meet a queue of half the target, or are lost
//   queue below target   it grows by a share of itself, the less the nearer, and by a packet
//   above, twice         it shrinks to what would make that queue; if the queue does not, that is how long the way is
//   now marks                it shrinks by half of their share, as DCTCP's trims                a whole window of them:
//   it shrinks to what arrived, at once losses               a few are the network's own. More mean a queue too shallow
//   for the target: the window shrinks to
//                        what arrived, and stays below what was too much for a while, longer each time
#pragma once

#include <algorithm>

#include "proto/congestion/samples.h"

namespace softmrc::proto {

class QueueDelay {
 public:
  static constexpr const char* name = "queue_delay";

  struct Settings {
    std::uint64_t start_bytes = 64 << 10;
    std::uint64_t max_bytes = 2 << 20;

    void limit_window(const CcCommon&, std::uint64_t bytes) {
      max_bytes = bytes;
      start_bytes = std::min(start_bytes, bytes);
    }

    static auto settings() {
      return std::tuple{
          setting("start_bytes", &Settings::start_bytes, 512, 1ull << 40, "queue_delay: the first window"),
          setting("most_bytes", &Settings::max_bytes, 512, 1ull << 40,
                  "queue_delay: the largest, where the distance does not ask for more: what is in flight should stay "
                  "in caches"),
      };
    }
  };

  QueueDelay(const CcCommon& basis, const Settings& own, std::uint32_t nominal_mtu, std::uint32_t sharers)
      : target_(basis.target()),
        mtu_(nominal_mtu),
        least_(2.0 * nominal_mtu),
        most_(static_cast<double>(own.max_bytes)),
        own_most_(most_) {
    window_ = static_cast<double>(own.start_bytes) / sharers;
    clamp();
    allowed_ = window_;
  }

  void on_ack(Time now, const AckSample& info) {
    const double n = static_cast<double>(info.new_bytes);
    if (info.penalty) {
      window_ -= info.penalty * n / 128.0;
      clamp();
    }
    round_.bytes += n;
    if (info.marked) round_.marked += n;
    // A small window may have no room for another packet long before it is nearly full.
    round_.was_full |= static_cast<double>(info.in_flight) + n >= std::min(0.75 * window_, window_ - mtu_);
    if (info.round_trip) {
      base_ = std::min(base_, *info.round_trip);
      round_.fastest = std::min(round_.fastest, *info.round_trip);
      ++round_.samples;
      // Over a distance more of what looks like a queue is chance.
      const double chance = target_.ps(info.base_rtt) / 2 + static_cast<double>(base_.ps) / 16;
      queues_met_ = static_cast<double>((*info.round_trip - base_).ps) > chance ? queues_met_ + 1 : 0;
      if (queues_met_ == enough_queues) end_start();
    }
    // Beyond what caches hold there is a distance, over which too much is noticed late.
    if (is_first_ && round_.was_full) window_ += window_ < own_most_ ? n : n / 4;
    if (round_.bytes >= window_ && round_.samples >= enough_samples) end_round(now, info.base_rtt);
    clamp();
    limit_burst(info);
  }
  // Where all is trimmed nothing is acknowledged, and no round would end: a window's worth of trims ends one, too.
  void on_trim(Time now, const LossSample& info) {
    round_.lost += static_cast<double>(info.bytes);
    if (round_.lost < window_) return;
    end_start();
    retreat(now, round_.lost / (round_.bytes + round_.lost));
    clamp();
    begin_round(now);
  }
  void on_loss(Time, const LossSample& info) {
    round_.lost += static_cast<double>(info.bytes);
    end_start();
  }
  void on_loss_undone(std::uint64_t bytes) { round_.lost = std::max(0.0, round_.lost - static_cast<double>(bytes)); }

  double window(std::uint32_t) const { return std::max(std::min(window_, allowed_), least_); }
  Duration target(Duration base_rtt) const { return target_.of(base_rtt); }

 private:
  static constexpr std::uint32_t enough_samples = 3;
  static constexpr std::uint32_t enough_queues = 2;
  static constexpr double tolerated_loss = 0.025;  // smoothed, of the bytes sent
  static constexpr double smoothing = 1.0 / 8;
  static constexpr Duration longest = Duration{std::int64_t{1} << 62};
  static constexpr Duration first_hold = milliseconds(250), last_hold = seconds(4);

  struct Round {
    Time began = Time::long_ago();
    double bytes = 0;
    double lost = 0;
    double marked = 0;
    Duration fastest = longest;
    std::uint32_t samples = 0;
    bool was_full = false;  // the window was what held us back
  };

  // spec: queue-delay
  void end_round(Time now, Duration base_rtt) {
    const double target = target_.ps(base_rtt);
    const double base = static_cast<double>(base_.ps);
    const double queue = static_cast<double>(round_.fastest.ps) - base;
    const double lost = round_.lost / (round_.bytes + round_.lost);
    loss_ += smoothing * (lost - loss_);
    widen_most(now, base, target);
    if (loss_ > tolerated_loss) {
      retreat(now, lost);
    } else if (round_.marked > 0) {
      end_start();
      window_ *= 1.0 - 0.5 * round_.marked / round_.bytes;
    } else if (queue > target) {
      const double standing = std::min(queue, last_queue_);
      if (standing > target) window_ *= std::max(1.0 - 0.8 * (standing - target) / (base + standing), 0.5);
    } else if (round_.was_full) {
      grow(now, queue, target);
    }
    doubt_base(queue > target);
    last_queue_ = queue;
    clamp();
    begin_round(now);
  }

  void begin_round(Time now) {
    round_ = Round{};
    round_.began = now;
  }

  void grow(Time now, double queue, double target) {
    if (!is_first_) window_ += (window_ / 8) * (1 - queue / target) + mtu_;
    if (now < backoff_until_) window_ = std::min(window_, too_much_ * 0.85);
  }

  // What was in flight was too much for a queue that is full before the delay shows it.
  void retreat(Time now, double lost) {
    const bool is_again = now < backoff_until_ + hold_ * 2 && window_ > 0.75 * too_much_ && window_ < 1.25 * too_much_;
    hold_ = is_again ? std::min(hold_ * 2, last_hold) : first_hold;
    backoff_until_ = now + hold_;
    too_much_ = window_;
    window_ *= 0.9 * (1 - std::max(lost, loss_));
    loss_ = 0;
  }

  // A queue has formed, or has overflown, of what was sent a round trip ago.
  void end_start() {
    if (is_first_) window_ = std::max(window_ / 2, least_);
    is_first_ = false;
  }

  // A window that fills a distance is no burst that a queue could take. After a pause, whatever its reason, a target's
  // worth is sent at once, and then for every packet that arrives two; for a short one, too, of which a full one
  // follows, or two would be one for ever, in a window that looks as if nothing ever filled it.
  // spec: queue-burst
  void limit_burst(const AckSample& info) {
    const double target = target_.ps(info.base_rtt);
    const double at_once = window_ * target / (static_cast<double>(base_ == longest ? 0 : base_.ps) + target);
    const double arrived = static_cast<double>(info.new_bytes);
    allowed_ = std::max(static_cast<double>(info.in_flight) + arrived + std::max(arrived, mtu_), at_once);
  }

  // Over a distance more is needed than caches hold: twice what the round brought in a round trip of the empty network.
  void widen_most(Time now, double base, double target) {
    if (round_.began == Time::long_ago()) return;
    const double took = std::max(1.0, static_cast<double>((now - round_.began).ps));
    most_ = std::max({own_most_, own_most_ + 2 * round_.bytes / took * (base - 2 * target), 0.9 * most_});
  }

  // A queue that is as long with an eighth in flight is not ours, or none at all: the way has become longer.
  void doubt_base(bool is_late) {
    if (!is_late) {
      shrinks_from_ = 0;
    } else if (shrinks_from_ == 0) {
      shrinks_from_ = window_;
      first_late_ = round_.fastest;
    } else if (window_ <= std::max(shrinks_from_ / 8, least_) && round_.fastest > first_late_ * 3 / 4) {
      base_ = round_.fastest;
      shrinks_from_ = 0;
      is_first_ = true;
    }
  }

  void clamp() { window_ = std::clamp(window_, least_, std::max(most_, least_)); }

  DelayTarget target_;
  double mtu_;
  double least_;
  double most_;
  double own_most_;

  double window_ = 0;
  Duration base_ = longest;
  Round round_;
  double last_queue_ = 0;  // in picoseconds
  double loss_ = 0;
  double too_much_ = 0;  // was in flight when a queue overflowed
  double allowed_ = 0;   // of the window, for the moment
  Time backoff_until_ = Time::long_ago();
  Duration hold_ = first_hold;
  double shrinks_from_ = 0;       // the window when the queue became too long; 0: it is not
  Duration first_late_{0};        // and the round trip
  std::uint32_t queues_met_ = 0;  // in a row
  bool is_first_ = true;
};

}  // namespace softmrc::proto
