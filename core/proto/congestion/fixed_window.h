// A window that never changes: for networks that are provisioned, for measurements, and for tests of everything else.
#pragma once

#include "proto/congestion/samples.h"

namespace softmrc::proto {

class FixedWindow {
 public:
  static constexpr const char* name = "fixed_window";

  struct Settings {
    std::uint64_t window_bytes = 1 << 20;

    void limit_window(const CcCommon&, std::uint64_t bytes) { window_bytes = bytes; }

    static auto settings() {
      return std::tuple{setting("window_bytes", &Settings::window_bytes, 512, 1ull << 40, "fixed_window: the window")};
    }
  };

  FixedWindow() : FixedWindow(CcCommon{}, Settings{}, 0, 1) {}
  FixedWindow(const CcCommon& basis, const Settings& own, std::uint32_t, std::uint32_t)
      : target_(basis.target()), window_(static_cast<double>(own.window_bytes)) {}

  void on_ack(Time, const AckSample&) {}
  void on_trim(Time, const LossSample&) {}
  void on_loss(Time, const LossSample&) {}
  void on_loss_undone(std::uint64_t) {}
  double window(std::uint32_t) const { return window_; }
  Duration target(Duration base_rtt) const { return target_.of(base_rtt); }

 private:
  DelayTarget target_;
  double window_;
};

}  // namespace softmrc::proto
