// How the driver tells its descriptors apart.
#pragma once

#include <cstdint>

namespace softmrc::udp {

constexpr std::uint32_t tag_wake = 1u << 31;
constexpr std::uint32_t tag_links = tag_wake + 1;
constexpr std::uint32_t tag_bootstrap = tag_wake + 2;
constexpr std::uint32_t tag_of(std::uint32_t plane, std::uint32_t socket) { return socket << 8 | plane; }
constexpr std::uint32_t plane_of(std::uint32_t mark) { return mark & 0xFF; }

}  // namespace softmrc::udp
