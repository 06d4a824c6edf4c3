// Weather that people ask for in a variable, so that they can break their own job:
//
//   drop=0.01,reorder=0.05            every plane
//   2:black_hole                      plane 2
//   drop=0.01;2:black_hole;3:delay_us=500
//   @/tmp/weather                     whatever that file says, read again whenever it changes; without it, all is fair
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "udp/foul_line.h"

namespace softmrc::face {

// By plane. Throws Refusal.
std::vector<udp::Faults> parse_faults(std::string_view text, std::size_t planes);

}  // namespace softmrc::face
