// What a device on sockets is made of, from its settings and its planes; the same for C++ and Python.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "host/planes.h"
#include "host/settings.h"
#include "udp/device.h"

namespace softmrc::host {

// Numbers of the system's randomness.
std::uint64_t random_bits();

// Congestion control for links of these speeds; 0 where one is not known. What stays on this machine has no link to
// overrun: round trips tell of processors only, and the window is whole from the start.
proto::CcProfile congestion_of(const DeviceSettings& settings, std::span<const std::uint64_t> speeds_bps,
                               bool stays_here);

udp::DeviceConfig device_plan(const DeviceSettings& settings, const std::vector<LocalPlane>& planes, std::uint32_t mtu,
                              std::uint32_t lanes);

}  // namespace softmrc::host
