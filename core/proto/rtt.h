// Round-trip time: the base (an empty network), the smoothed value and its deviation.
#pragma once

#include <algorithm>

#include "base/time.h"

namespace softmrc::proto {

class Rtt {
 public:
  Rtt() = default;
  // With `learn`, the first sample replaces the configured base even when it is longer; otherwise the base only
  // shrinks. `least` is how short the base may become.
  Rtt(Duration configured, bool learn, Duration least)
      : base_(std::max(configured, least)),
        fastest_(configured),
        smoothed_(configured),
        deviation_(configured / 4),
        least_(least),
        learn_(learn) {}

  // A packet sent twice inside one tick of its timestamp is uncertain by that tick: such a sample may smooth, but not
  // lower the base.
  void on_sample(Duration sample, bool is_certain = true) {
    if (sample <= Duration{0}) return;
    if (samples_ == 0) {
      if (learn_) base_ = std::max(sample, least_);
      if (learn_) fastest_ = sample;
      smoothed_ = sample;
      deviation_ = sample / 4;
    } else {
      const Duration error = sample - smoothed_;
      smoothed_ = smoothed_ + error / 8;
      deviation_ = deviation_ + ((error < Duration{0} ? -error : error) - deviation_) / 4;
    }
    if (is_certain) {
      base_ = std::max(std::min(base_, sample), least_);
      fastest_ = std::min(fastest_, sample);
    }
    if (samples_ < 255) ++samples_;
  }

  Duration base() const { return base_; }
  // The shortest ever seen: no answer can come sooner.
  Duration fastest() const { return fastest_; }
  Duration smoothed() const { return smoothed_; }
  bool has_sample() const { return samples_ > 0; }

  // How long nothing may come in before that means something. A base that is held up tells of scheduling and not of
  // when answers come: by how much those vary is seen, and a part of it is enough.
  Duration silence() const { return smoothed_ + std::max({deviation_ * 4, fastest_ / 2, least_ / 8}); }

 private:
  Duration base_{};
  Duration fastest_{};
  Duration smoothed_{};
  Duration deviation_{};
  Duration least_{};
  std::uint8_t samples_ = 0;
  bool learn_ = false;
};

}  // namespace softmrc::proto
