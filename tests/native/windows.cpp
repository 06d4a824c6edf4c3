#include <bit>

#include "base/prng.h"
#include "portable.h"
#include "proto/congestion/controller.h"

namespace softmrc::native {

Hash windows() {
  Hash hash;
  Prng prng(1, "windows");
  for (int run = 0; run < 20; ++run) {
    proto::CcProfile profile;
    profile.trimming = run % 2;
    profile.rate_bps = 1'000'000'000ull * (1 + prng.below(800));
    profile.base_rtt = microseconds(4 + prng.below(40));
    proto::Controller controller(profile, 4096, 1);
    Time now{};
    for (int step = 0; step < 5'000; ++step) {
      now = now + picoseconds(prng.below(2'000'000));
      const std::uint64_t in_flight = prng.below(1 << 22);
      proto::AckSample facts;
      facts.base_rtt = profile.base_rtt;
      facts.new_bytes = prng.below(64 * 1024);
      facts.marked = prng.chance(0.3);
      facts.in_flight = in_flight;
      if (prng.chance(0.9)) facts.delay = picoseconds(prng.below(40'000'000));
      if (prng.chance(0.02)) facts.penalty = static_cast<std::uint8_t>(prng.below(128));
      facts.restore = prng.chance(0.02);
      controller.on_ack(now, facts);
      if (prng.chance(0.01)) controller.on_trim(now, {4096, in_flight});
      if (prng.chance(0.01)) controller.on_loss(now, {4096, in_flight});
      require(controller.window(1) > 0, "a window is never closed");
      hash.add(std::bit_cast<std::uint64_t>(controller.window(1)));  // to its last digit
    }
  }
  return hash;
}

}  // namespace softmrc::native
