// NSCC, "uet-1.0-nscc": one byte window per destination over all of its paths, driven by delay and by ECN marks.
//
// A SACK says how much more arrived (n), whether its packet was marked (m), and how long it waited in queues (d):
//               d < target                      d >= target
//   m = 0       grow in proportion to the slack  grow a little: others are the problem
//   m = 1       nothing: choosing another path   shrink, if the average delay agrees
//               is the answer
// Growth is gathered in `increase_` and paid out every eight packets or base RTT. Quick adapt is the way down in an
// incast: it sets the window to what actually arrived in one period.
//
// All quantities are bytes and picoseconds held as doubles; a 32-bit gathering register overflows at 800 Gb/s.
#pragma once

#include <algorithm>

#include "proto/congestion/samples.h"

namespace softmrc::proto {

class Nscc {
 public:
  static constexpr const char* name = "nscc";

  static constexpr double least_window_bdp = 0.1;

  struct Settings {
    double max_window_bdp = 1.5;
    double shared_window_bdp = 2.0;
    double gamma = 0.8;
    double max_md_jump = 0.5;
    std::uint32_t qa_gate = 3;

    void limit_window(const CcCommon& basis, std::uint64_t bytes) {
      max_window_bdp = std::clamp(static_cast<double>(bytes) / basis.bdp_bytes(), least_window_bdp, max_window_bdp);
    }

    static auto settings() {
      return std::tuple{
          setting("max_window_bdp", &Settings::max_window_bdp, least_window_bdp, 1000,
                  "nscc: the largest window, in bandwidth-delay products"),
          setting("shared_window_bdp", &Settings::shared_window_bdp, 0, 1000,
                  "nscc: in flight from all queue pairs of an endpoint that have something to send; 0: no limit"),
          setting("gamma", &Settings::gamma, 0, 1, "nscc: how much of the excess delay a decrease answers"),
          setting("max_md_jump", &Settings::max_md_jump, 0, 1, "nscc: what a decrease leaves of the window at least"),
          setting("qa_gate", &Settings::qa_gate, 0, 16,
                  "nscc: quick adapt where less than the largest window / 2^qa_gate arrived in a period"),
      };
    }
  };

  Nscc(const CcCommon& basis, const Settings& own, std::uint32_t nominal_mtu, std::uint32_t sharers);

  void on_ack(Time now, const AckSample& info);
  void on_trim(Time now, const LossSample& info);
  void on_loss(Time now, const LossSample& info);
  void on_loss_undone(std::uint64_t bytes);

  Duration target(Duration base_rtt) const { return target_.of(base_rtt); }
  // The window, or this queue pair's share of what all that send may have in flight, where that is less.
  // spec: window-shared
  double window(std::uint32_t senders) const {
    if (senders <= 1 || shared_window_ == 0) return window_;
    return std::min(window_, std::max(shared_window_ / senders, least_share_mtus * mtu_));
  }

 private:
  // Less than this would spend its time waiting for SACKs.
  static constexpr double least_share_mtus = 8;

  void scale(Duration base_rtt);
  void update_average(const AckSample& info);
  void grow(const AckSample& info);
  void shrink(Time now, const AckSample& info);
  bool quick_adapt(Time now, bool urgent, std::uint64_t in_flight);
  void pay_out(Time now);
  void apply_penalty(const AckSample& info);
  void clamp();

  // Set.
  double rate_bytes_per_ps_;
  double mtu_;
  DelayTarget target_;
  Settings own_;

  // Derived from the base RTT, which may shrink.
  double base_rtt_ps_ = 0;
  double target_ps_ = 0;
  double max_window_ = 0;
  double shared_window_ = 0;
  double alpha_ = 0;
  double fair_increase_ = 0;
  double eta_ = 0;
  double fast_scale_ = 0;
  double near_zero_ps_ = 0;

  double window_ = 0;
  double saved_window_ = 0;
  double increase_ = 0;
  double average_delay_ps_ = 0;
  double bytes_since_adjust_ = 0;
  double idle_delay_bytes_ = 0;  // arrived in a row with d near zero
  double achieved_bytes_ = 0;    // arrived in the present quick-adapt period
  double ignore_bytes_ = 0;      // marks of packets sent before a quick adapt say nothing new
  Time adjusted_at_ = Time::long_ago();
  Time decreased_at_ = Time::long_ago();
  Time period_ends_{0};  // zero: the first period has not begun
  bool fast_ = false;
  bool adapt_armed_ = false;
};

}  // namespace softmrc::proto
