// How the driver tells its descriptors apart: the first numbers are planes.
#pragma once

#include <cstdint>

namespace softmrc::udp {

constexpr std::uint32_t mark_kick = 1000;
constexpr std::uint32_t mark_links = 1001;

}  // namespace softmrc::udp
