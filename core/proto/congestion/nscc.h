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
#include <cstdint>
#include <optional>

#include "base/time.h"
#include "proto/config.h"

namespace softmrc::proto {

// What one SACK tells a controller.
struct AckFacts {
  std::uint64_t new_bytes = 0;      // arrived since the last SACK, nominal
  bool marked = false;
  std::optional<Duration> delay;    // queueing delay, when the sample is valid
  std::uint64_t in_flight = 0;
  std::uint8_t penalty = 0;         // the receiver asks for less: 0..127
  bool restore = false;             // the receiver takes its penalty back
};

class Nscc {
 public:
  Nscc(const CcProfile& profile, std::uint32_t nominal_mtu, std::uint32_t sharers = 1);

  void on_ack(Time now, Duration base_rtt, const AckFacts& facts);
  void on_trim(Time now, std::uint64_t packet_bytes, std::uint64_t in_flight);
  void on_loss(Time now, std::uint64_t packet_bytes, std::uint64_t in_flight);
  void on_loss_undone(std::uint64_t packet_bytes);

  double window() const { return window_; }
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
  void update_average(const AckFacts& facts);
  void grow(const AckFacts& facts);
  void shrink(Time now, const AckFacts& facts);
  bool quick_adapt(Time now, bool urgent, std::uint64_t in_flight);
  void pay_out(Time now);
  void apply_penalty(const AckFacts& facts);
  void clamp();

  // Fixed by the profile.
  double rate_bytes_per_ps_;
  double mtu_;
  double target_setting_ps_;
  double max_window_bdp_;
  double shared_window_bdp_;
  double gamma_;
  double max_md_jump_;
  std::uint32_t qa_gate_;
  bool trimming_;

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
  double idle_delay_bytes_ = 0;   // arrived in a row with d near zero
  double achieved_bytes_ = 0;     // arrived in the present quick-adapt period
  double ignore_bytes_ = 0;       // marks of packets sent before a quick adapt say nothing new
  Time adjusted_at_ = Time::long_ago();
  Time decreased_at_ = Time::long_ago();
  Time period_ends_{0};           // zero: the first period has not begun
  bool fast_ = false;
  bool adapt_armed_ = false;
};

}  // namespace softmrc::proto
