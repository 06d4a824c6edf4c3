// Weather that people ask for in SOFTMRC_FAULTS, so that they can break their own job:
//
//   drop=0.01,reorder=0.05            every plane
//   2:black_hole                      plane 2
//   drop=0.01;2:black_hole;3:delay_us=500
//   @/tmp/weather                     whatever that file says, read again whenever it changes; without it, all is fair
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "host/settings.h"
#include "udp/fault_injector.h"

namespace softmrc::udp {
class Device;
}

namespace softmrc::host {

// By plane. Throws HostError.
std::vector<udp::Faults> parse_faults(std::string_view text, std::size_t planes);

// What the variable says, which every device of the process is given.
std::string read_faults(const Environment& environment);
// Whether a device with so many planes can be given it.
proto::MaybeError check_faults(const std::string& said, std::size_t planes);
// Gives it, checked before; who watches a file goes with the device.
void set_faults(udp::Device& device, const std::string& said);

}  // namespace softmrc::host
