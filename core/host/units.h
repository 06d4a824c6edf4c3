// Settings as people write them, with their units, and as Python's `softmrc.config.text` reads them: rate_bps = "10G",
// base_rtt_us = "2ms", buffer_bytes = "8MiB", timeout = "67ms". Which unit a setting has, its name says.
#pragma once

#include <string>
#include <string_view>

#include "host/toml.h"

namespace softmrc::host {

// The plain number that a setting of this name holds when a person has written this. Throws HostError, whose words are
// what would be right.
TomlValue with_unit(std::string_view name, std::string_view text);

}  // namespace softmrc::host
