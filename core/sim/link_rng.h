// Chance on a link. What is drawn follows from the seed, the link, the moment and how often the link drew before; never
// from what others draw, so that it does not matter what else is simulated.
#pragma once

#include <cstdint>

#include "base/prng.h"
#include "base/time.h"

namespace softmrc::sim {

class LinkRng {
 public:
  LinkRng(std::uint64_t seed, std::uint32_t link, Time now, std::uint32_t count)
      : state_(seed + (static_cast<std::uint64_t>(link) << 32 | count) * 0xD1342543DE82EF95u +
               static_cast<std::uint64_t>(now.ps) * 0x2545F4914F6CDD1Du) {}

  bool chance(double probability) {
    return probability > 0 && static_cast<double>(splitmix64(state_) >> 11) * 0x1.0p-53 < probability;
  }

 private:
  std::uint64_t state_;
};

}  // namespace softmrc::sim
