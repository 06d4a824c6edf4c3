// Faults that SOFTMRC_FAULTS injects into the planes of this process, to test a job under them:
//
//   drop=0.01,reorder=0.05            every plane
//   2:black_hole                      plane 2
//   drop=0.01;2:black_hole;3:delay_us=500
//   @/tmp/faults                      the same from a file, read again whenever it changes; without the file, no faults
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

// The value of the variable, which applies to every device of the process.
std::string read_faults(const Environment& environment);
// Whether it makes sense for a device with so many planes.
proto::MaybeError check_faults(const std::string& said, std::size_t planes);
// Applies it, checked before; the watcher of a file ends with the device.
void set_faults(udp::Device& device, const std::string& said);

}  // namespace softmrc::host
