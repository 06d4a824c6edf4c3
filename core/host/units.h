// Quantities as people write them, with their units: rate_bps = "10G", base_rtt_us = "2ms", buffer_bytes = "8MiB",
// timeout = "67ms". Which unit a setting has, its name says.
#pragma once

#include <cstdint>
#include <string_view>

#include "host/host_error.h"
#include "host/toml.h"

namespace softmrc::host {

// A text that is no such quantity. what() completes "must be …"; the hint is a sentence, or empty.
struct UnitError : HostError {
  explicit UnitError(const std::string& expected, std::string advice = "")
      : HostError(expected), hint(std::move(advice)) {}

  std::string hint;
};

// Whole bits per second, from text such as 100G or 20Mbit/s; nanoseconds, from 50ms. Throw UnitError.
std::uint64_t rate_bps(std::string_view text);
std::uint64_t duration_ns(std::string_view text);
// The plain number that a setting of this name holds when a person has written this. Throws UnitError.
TomlValue with_unit(std::string_view name, std::string_view text);

}  // namespace softmrc::host
