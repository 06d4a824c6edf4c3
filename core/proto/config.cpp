#include "proto/config.h"

#include <cmath>

namespace softmrc::proto {
namespace {

template <typename T>
Verdict within(const char* field, T value, T low, T high) {
  if (value >= low && value <= high) return std::nullopt;
  return Problem{Problem::Kind::config, field, std::to_string(value), std::to_string(low) + " to " + std::to_string(high)};
}

std::string in_us(std::int64_t ps) {
  std::string text = std::to_string(static_cast<double>(ps) / 1e6);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

// Durations are spoken of in microseconds.
Verdict within_us(const char* field, Duration value, Duration low, Duration high) {
  if (value >= low && value <= high) return std::nullopt;
  return Problem{Problem::Kind::config, field, in_us(value.ps), in_us(low.ps) + " to " + in_us(high.ps)};
}

Verdict refused(const char* field, std::uint64_t value, std::string allowed) {
  return Problem{Problem::Kind::config, field, std::to_string(value), std::move(allowed)};
}

Verdict validate_entries(const EvProfile& profile, std::uint32_t ports) {
  std::vector<std::uint32_t> per_port(ports, 0);
  for (const EvEntry& entry : profile.entries) {
    if (entry.port >= ports) return refused("entries.port", entry.port, "0 to " + std::to_string(ports - 1));
    if (auto v = validate_value(profile, "entries.value", entry.value, !profile.evs.empty())) return v;
    ++per_port[entry.port];
  }
  if (!profile.evs.empty() && profile.evs.size() != profile.entries.size())
    return refused("entries", profile.evs.size(), "all of them bytes, or all of them numbers");
  const std::uint32_t wanted = (profile.count + profile.spares) / ports;
  for (std::uint32_t port = 0; port < ports; ++port)
    if (per_port[port] < wanted)
      return refused("entries", per_port[port],
                     "at least (count + spares) / ports = " + std::to_string(wanted) + " entries on every port; port " +
                         std::to_string(port) + " has too few");
  return std::nullopt;
}

// spec: ev-modes
Verdict validate_layout(const EvProfile& profile) {
  const wire::EvLayout& layout = profile.layout;
  if (profile.mode == EvMode::automatic) {
    if (profile.is_wide())
      return Problem{Problem::Kind::config, "format", "SRV6", "UDP or STEV with mode AUTOMATIC, which knows no paths"};
    if (!layout.fields.empty()) return refused("fields", layout.fields.size(), "none with mode AUTOMATIC");
  }
  if (profile.mode == EvMode::generated && layout.fields.empty())
    return refused("fields", 0, "at least one with mode GENERATED, to draw values for");
  if (layout.widths.empty() && layout.fields.empty()) return std::nullopt;
  if (const auto invalid = wire::validate(layout, wire::format_width(profile.format)))
    return Problem{Problem::Kind::config, invalid->field, invalid->value, invalid->allowed};
  return std::nullopt;
}

}  // namespace

Verdict validate(const EndpointConfig& config) {
  if (auto v = within<std::uint32_t>("ports", config.ports, 1, max_ports)) return v;
  if (auto v = within<std::uint32_t>("sack_threshold_bytes", config.sack_threshold_bytes, 1, 1 << 24)) return v;
  if (auto v = within_us("probe_interval_us", config.probe_interval, microseconds(1), seconds(60))) return v;
  if (auto v = within_us("probe_interval_max_us", config.probe_interval_max, config.probe_interval, seconds(3600)))
    return v;
  if (auto v = within<std::uint32_t>("revival_answers", config.revival_answers, 1, 100)) return v;
  if (auto v = within<std::uint32_t>("answers_per_s", config.answers_per_s, 0, 10'000'000)) return v;
  return within<std::uint32_t>("max_events", config.max_events, 1, 1 << 20);
}

Verdict validate(const EvProfile& profile, std::uint32_t ports) {
  if (auto v = within<std::uint32_t>("count", profile.count, 1, max_evs)) return v;
  if (profile.count % ports) return refused("count", profile.count, "a multiple of the " + std::to_string(ports) + " ports");
  if (profile.spares % ports) return refused("spares", profile.spares, "a multiple of the " + std::to_string(ports) + " ports");
  if (auto v = within<std::uint32_t>("spares", profile.spares, 0, max_evs - profile.count)) return v;
  if (auto v = within<std::uint32_t>("min_active", profile.min_active, 0, profile.count)) return v;
  if (auto v = within<std::uint32_t>("value_bits", profile.value_bits, 1, 32)) return v;
  if (auto v = within<std::uint32_t>("spray_quantum", profile.spray_quantum, 1, 64)) return v;
  if (auto v = validate_layout(profile)) return v;
  if (profile.mode == EvMode::explicit_) return validate_entries(profile, ports);
  if (!profile.entries.empty()) return refused("entries", profile.entries.size(), "none unless mode is explicit");
  return std::nullopt;
}

Verdict validate_value(const EvProfile& profile, const char* field, std::uint32_t value, bool is_bytes) {
  const bool needs_bytes = profile.is_wide() || !profile.layout.fields.empty();
  if (is_bytes && (needs_bytes || profile.mode == EvMode::explicit_)) return std::nullopt;
  if (needs_bytes) return refused(field, value, "1 to 32 bytes, which the format and the fields of this profile expand");
  if (is_bytes) return Problem{Problem::Kind::config, field, "bytes", "a number: this profile has neither fields nor the SRV6 format"};
  if (profile.format == wire::EvFormat::udp && value > 0xFFFF) return refused(field, value, "0 to 65535, a UDP source port");
  return std::nullopt;
}

Verdict validate(const CcProfile& profile) {
  if (auto v = within<std::uint64_t>("rate_bps", profile.rate_bps, 1'000'000, 100'000'000'000'000)) return v;
  if (auto v = within_us("base_rtt_us", profile.base_rtt, nanoseconds(100), seconds(10))) return v;
  if (auto v = within_us("min_base_rtt_us", profile.min_base_rtt, Duration{0}, seconds(10))) return v;
  if (auto v = within_us("min_reorder_window_us", profile.min_reorder_window, Duration{0}, seconds(10))) return v;
  if (auto v = within_us("target_delay_us", profile.target_delay, Duration{0}, seconds(10))) return v;
  if (auto v = within<std::uint64_t>("window_bytes", profile.window_bytes, 512, 1ull << 40)) return v;
  if (auto v = within<double>("max_window_bdp", profile.max_window_bdp, 0.1, 1000)) return v;
  if (auto v = within<double>("shared_window_bdp", profile.shared_window_bdp, 0, 1000)) return v;
  if (auto v = within<double>("gamma", profile.gamma, 0, 1)) return v;
  if (auto v = within<double>("max_md_jump", profile.max_md_jump, 0, 1)) return v;
  return within<std::uint32_t>("qa_gate", profile.qa_gate, 0, 16);
}

Verdict validate(const RtrAttributes& a) {
  if (auto v = within<std::uint32_t>("dest_qpn", a.dest_qpn, 3, 0xFFFFFF)) return v;
  if (auto v = within<std::uint32_t>("mtu", a.mtu, 512, 16384)) return v;
  if (a.mtu % 4) return refused("mtu", a.mtu, "a multiple of 4");
  if (auto v = within<std::uint32_t>("max_wimm_dest", a.max_wimm_dest, 1, 16384)) return v;
  return within<std::uint32_t>("mpr_dest", a.mpr_dest, smallest_mpr, 255);
}

Verdict validate(const RtsAttributes& a) {
  if (auto v = within<std::uint32_t>("max_wimm", a.max_wimm, 1, 16384)) return v;
  if (auto v = within<std::uint32_t>("mpr", a.mpr, smallest_mpr, 255)) return v;
  if (auto v = within<std::uint32_t>("timeout", a.timeout, 0, 24)) return v;
  if (auto v = within<std::uint32_t>("retry_linear", a.retry_linear, 0, 7)) return v;
  if (auto v = within<std::uint32_t>("retry_exponential", a.retry_exponential, 0, retry_forever)) return v;
  return within<std::uint32_t>("max_send_wr", a.max_send_wr, 1, 32000);
}

}  // namespace softmrc::proto
