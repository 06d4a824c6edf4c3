// So many a second on average, and a burst of a tenth of a second's worth. What is left of it is known by when the last
// one taken will have been earned.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace softmrc::proto {

class TokenBucket {
 public:
  bool take(Time now, std::uint32_t per_s, std::uint32_t count = 1) {
    if (earned_at_ - now > milliseconds(100)) return false;
    earned_at_ = std::max(earned_at_, now) + seconds(1) / std::max(per_s, 1u) * count;
    return true;
  }

 private:
  Time earned_at_ = Time::long_ago();
};

}  // namespace softmrc::proto
