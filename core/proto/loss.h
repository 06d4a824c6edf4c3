// When is a packet lost? The evidence, strongest first:
//   (a) same EV: one path keeps order, so a later packet of the same EV acknowledged while this one is not. A SACK may
//       simply not have had room to mention it, so the packet is a suspect until a SACK no older than that evidence
//       covers its PSN and leaves it out.
//   (b) across EVs: a packet sent more than W later is acknowledged, and a SACK covers this one and leaves it out. W is
//       a quarter round trip plus the spread between paths that was really seen, and never more than the delay target
//       plus that quarter.
//   (c) the flow fell silent: a tail probe makes evidence where there is none.
//   (d) the timer.
// This class holds the evidence for (b) and the clock for (a); the requester asks it and acts.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace softmrc::proto {

enum class LossCause : std::uint8_t {
  same_ev,     // (a)
  across_evs,  // (b)
  with_path,   // in flight on a path that (b) has just withdrawn: what was sent into a black hole is not waited for
  timeout,     // (d)
  nacked,
};

class Loss {
 public:
  // A packet sent at `sent_at` was acknowledged. What one SACK reports together did not overtake itself, so the newest
  // send of this SACK counts only from the next one on.
  void on_acked(Time now, Time sent_at, Duration rtt) {
    newest_of_sack_ = std::max(newest_of_sack_, sent_at);
    if (sent_at < latest_acked_sent_) on_lag(latest_acked_sent_ - sent_at);
    if (now < epoch_ends_) return;
    lag_before_ = lag_now_;
    lag_now_ = Duration{0};
    epoch_ends_ = now + rtt * epoch_rtts;
    if (epochs_ < warm_epochs) ++epochs_;
  }
  void on_sack_done() { latest_acked_sent_ = std::max(latest_acked_sent_, newest_of_sack_); }
  void on_lag(Duration lag) { lag_now_ = std::max(lag_now_, lag); }

  // A probe sent at `sent_at` was answered: as good as a packet for rule (b).
  void on_probe_answered(Time sent_at) { latest_acked_sent_ = std::max(latest_acked_sent_, sent_at); }

  Time latest_acked_sent() const { return latest_acked_sent_; }

  // The driver was held up until now: what it had been given may have left only now.
  void on_stall(Time now) { stalled_until_ = now; }
  // The latest moment at which a packet given away at `sent_at` really left.
  Time left_at(Time sent_at) const { return std::max(sent_at, stalled_until_); }

  // W, at least `least`. Until the spread has been watched for a while it is taken at its worst.
  Duration reorder_window(Duration base_rtt, Duration smoothed_rtt, Duration target, Duration least) const {
    const Duration quarter = base_rtt / 4;
    const Duration most = std::max(target + std::max(base_rtt, smoothed_rtt) / 4, least * 4);
    if (epochs_ < warm_epochs) return most;
    return std::clamp(quarter + std::max(lag_now_, lag_before_), least, most);
  }

 private:
  static constexpr std::int64_t epoch_rtts = 8;
  static constexpr std::uint8_t warm_epochs = 2;

  Time latest_acked_sent_ = Time::long_ago();
  Time newest_of_sack_ = Time::long_ago();
  Time stalled_until_ = Time::long_ago();
  Time epoch_ends_ = Time::long_ago();
  Duration lag_now_{0};
  Duration lag_before_{0};
  std::uint8_t epochs_ = 0;
};

}  // namespace softmrc::proto
