// TCP sockets that listen.
#pragma once

#include <vector>

#include "host/handshake_io.h"

namespace softmrc::host {

// TCP sockets that listen at the same port of these addresses; at the first of them without fail. Throws HostError, and
// DeviceError where the system is short of something.
std::vector<UniqueFd> listen_at(const std::vector<wire::Address>& addresses, std::uint32_t scope_id,
                                std::uint16_t& port);

}  // namespace softmrc::host
