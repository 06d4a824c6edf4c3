// Look once more, or sleep? Looking at idle sockets saves the time it takes to fall asleep and wake up, and costs a
// processor that others may want. So it is done for a moment only, where work has been coming often enough, and not for
// a while after another process took the processor during it.
#pragma once

#include <algorithm>

#include "base/time.h"

namespace softmrc::udp {

class Spin {
 public:
  explicit Spin(Duration longest) : longest_(longest) {}

  void set_longest(Duration longest) { longest_ = longest; }
  Duration longest() const { return longest_; }

  // A thread begins to drive.
  void begin(Time now) { busy_at_ = now; }
  void on_work(Time now) {
    usual_gap_.ps += ((now - busy_at_).ps - usual_gap_.ps) / 8;
    busy_at_ = now;
  }
  // There is nothing to do: whether to look again at once.
  bool wants_more(Time now) {
    const bool is_worth_it = now - busy_at_ < longest_ && usual_gap_ < longest_ && now >= rests_until_;
    if (!is_worth_it) usual_gap_ = std::min(usual_gap_ + Duration{(now - busy_at_).ps / 8}, longest_ * 4);
    return is_worth_it;
  }
  void on_slept(Time now) { busy_at_ = now; }
  // A look that took from `before` to `after`. If that is long, another process wanted the processor: it is left to it
  // for a while, or it will take it when it is needed here.
  void on_looked(Time before, Time after) {
    if (after - before > preempted_after) rests_until_ = after + rest;
  }

 private:
  static constexpr Duration preempted_after = microseconds(300);
  static constexpr Duration rest = milliseconds(100);

  Duration longest_;
  Duration usual_gap_{0};  // between two pieces of work, smoothed
  Time busy_at_{};
  Time rests_until_{};
};

}  // namespace softmrc::udp
