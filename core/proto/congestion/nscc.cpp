#include "proto/congestion/nscc.h"

#include <algorithm>

namespace softmrc::proto {

Nscc::Nscc(const CcCommon& basis, const Settings& own, std::uint32_t nominal_mtu, std::uint32_t sharers)
    : rate_bytes_per_ps_(static_cast<double>(basis.rate_bps) / 8e12),
      mtu_(nominal_mtu),
      target_(basis.target()),
      own_(own) {
  scale(basis.base_rtt);
  // spec: window-hints
  window_ = std::max(max_window_ / sharers, mtu_);
}

// The constants of the algorithm were tuned for a BDP of 150 000 bytes and a target of 12 us; a and b carry them over.
// spec: nscc-scaling
void Nscc::scale(Duration base_rtt) {
  const double r = static_cast<double>(base_rtt.ps);
  if (r == base_rtt_ps_) return;
  base_rtt_ps_ = r;
  target_ps_ = target_.ps(base_rtt);
  const double bdp = rate_bytes_per_ps_ * r;
  const double a = bdp / 150'000.0;
  const double b = target_ps_ / 12e6;
  max_window_ = std::max(own_.max_window_bdp * bdp, mtu_);
  shared_window_ = own_.shared_window_bdp * bdp;
  alpha_ = 4.0 * mtu_ * a * b / target_ps_;
  fair_increase_ = 5.0 * mtu_ * a;
  eta_ = 0.15 * mtu_ * a;
  fast_scale_ = 0.25 * a;
  // "No queue at all" is 1 us where the base RTT is around ten; networks of sockets are slower in proportion.
  near_zero_ps_ = std::max(1e6, r / 12.0);
  clamp();
}

void Nscc::clamp() { window_ = std::clamp(window_, mtu_, std::max(max_window_, mtu_)); }

void Nscc::update_average(const AckSample& info) {
  double sample = static_cast<double>(info.delay->ps);
  if (!info.marked && sample > target_ps_) sample = 0.25 * base_rtt_ps_;
  average_delay_ps_ += 0.0125 * (sample - average_delay_ps_);
}

// spec: nscc-increase nscc-fast
void Nscc::grow(const AckSample& info) {
  const double n = static_cast<double>(info.new_bytes);
  const double d = static_cast<double>(info.delay->ps);
  if (d >= target_ps_) {
    fast_ = false;
    idle_delay_bytes_ = 0;
    increase_ += fair_increase_ * n;
    return;
  }
  if (d < near_zero_ps_) {
    idle_delay_bytes_ += n;
    if (idle_delay_bytes_ > window_) fast_ = true;
  } else {
    idle_delay_bytes_ = 0;
    fast_ = false;
  }
  if (fast_) window_ += fast_scale_ * n;
  else increase_ += alpha_ * n * (target_ps_ - d);
}

// spec: nscc-decrease
void Nscc::shrink(Time now, const AckSample& info) {
  if (static_cast<double>(info.delay->ps) < target_ps_) return;
  fast_ = false;
  idle_delay_bytes_ = 0;
  if (average_delay_ps_ <= target_ps_) return;
  if (static_cast<double>((now - decreased_at_).ps) < base_rtt_ps_) return;
  window_ *= std::max(1.0 - own_.gamma * (average_delay_ps_ - target_ps_) / average_delay_ps_, own_.max_md_jump);
  decreased_at_ = now;
}

// Once a period of base + target; never at the end of the first, which has nothing to compare with.
// spec: nscc-quick-adapt
bool Nscc::quick_adapt(Time now, bool urgent, std::uint64_t in_flight) {
  bool adapted = false;
  if (urgent) adapt_armed_ = true;
  if (now <= period_ends_) return false;
  if (period_ends_.ps != 0 && adapt_armed_ && achieved_bytes_ < max_window_ / static_cast<double>(1u << own_.qa_gate) &&
      achieved_bytes_ < window_) {
    window_ = std::max(achieved_bytes_, mtu_);
    ignore_bytes_ = static_cast<double>(in_flight);
    increase_ = 0;
    fast_ = false;
    idle_delay_bytes_ = 0;
    adapted = true;
  }
  adapt_armed_ = false;
  achieved_bytes_ = 0;
  period_ends_ = now + Duration{static_cast<std::int64_t>(base_rtt_ps_ + target_ps_)};
  return adapted;
}

void Nscc::pay_out(Time now) {
  const bool period_over = static_cast<double>((now - adjusted_at_).ps) >= base_rtt_ps_;
  if (bytes_since_adjust_ < 8 * mtu_ && !period_over) return;
  window_ += increase_ / window_;
  if (period_over) {
    window_ += eta_;
    adjusted_at_ = now;
  }
  increase_ = 0;
  bytes_since_adjust_ = 0;
}

// spec: nscc-penalty
void Nscc::apply_penalty(const AckSample& info) {
  if (saved_window_ == 0) saved_window_ = window_;
  window_ = std::min(window_, static_cast<double>(info.in_flight)) -
            info.penalty * static_cast<double>(info.new_bytes) / 128.0;
}

void Nscc::on_ack(Time now, const AckSample& info) {
  scale(info.base_rtt);
  const double n = static_cast<double>(info.new_bytes);
  achieved_bytes_ += n;
  bytes_since_adjust_ += n;
  if (info.delay) update_average(info);
  if (info.restore && saved_window_ > 0) {
    window_ = std::max(window_, saved_window_);
    saved_window_ = 0;
  }
  if (info.penalty) {
    apply_penalty(info);
    clamp();
    return;
  }
  const bool late = !target_.trimming && info.delay && static_cast<double>(info.delay->ps) > 4 * target_ps_;
  if (quick_adapt(now, late, info.in_flight)) {
    clamp();
    return;
  }
  const bool ignored = ignore_bytes_ > 0;
  ignore_bytes_ = std::max(0.0, ignore_bytes_ - n);
  if (ignored && info.marked) return;
  if (info.delay) {
    if (info.marked) shrink(now, info);
    else grow(info);
  }
  pay_out(now);
  clamp();
}

// spec: nscc-trim-loss
void Nscc::on_trim(Time now, const LossSample& info) {
  average_delay_ps_ += 0.0125 * (base_rtt_ps_ - average_delay_ps_);
  fast_ = false;
  idle_delay_bytes_ = 0;
  if (quick_adapt(now, true, info.in_flight)) {
    clamp();
    return;
  }
  if (ignore_bytes_ > 0) ignore_bytes_ = std::max(0.0, ignore_bytes_ - static_cast<double>(info.bytes));
  else window_ -= static_cast<double>(info.bytes);
  clamp();
}

void Nscc::on_loss(Time now, const LossSample& info) {
  fast_ = false;
  idle_delay_bytes_ = 0;
  if (!quick_adapt(now, true, info.in_flight)) window_ -= static_cast<double>(info.bytes);
  clamp();
}

// spec: loss-undone
void Nscc::on_loss_undone(std::uint64_t bytes) {
  window_ += static_cast<double>(bytes);
  clamp();
}

}  // namespace softmrc::proto
