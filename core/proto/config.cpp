#include "proto/config.h"

#include <cstdio>

#include "proto/congestion/controller.h"

namespace softmrc::proto {

std::string in_words(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.12g", value);
  return text;
}

std::string in_words(Duration value) { return in_words(static_cast<double>(value.ps) / 1e6); }

namespace {

MaybeError validate_entries(const EvProfile& profile, std::uint32_t ports) {
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
MaybeError validate_layout(const EvProfile& profile) {
  const wire::EvLayout& layout = profile.layout;
  if (profile.mode == EvMode::automatic) {
    if (profile.is_wide()) return refused("format", "SRV6", "UDP or STEV with mode AUTOMATIC, which knows no paths");
    if (!layout.fields.empty()) return refused("fields", layout.fields.size(), "none with mode AUTOMATIC");
  }
  if (profile.mode == EvMode::generated && layout.fields.empty())
    return refused("fields", 0, "at least one with mode GENERATED, to draw values for");
  if (layout.widths.empty() && layout.fields.empty()) return std::nullopt;
  if (const auto invalid = wire::validate(layout, wire::format_width(profile.format)))
    return Error{Error::Kind::config, invalid->field, invalid->value, invalid->expected};
  return std::nullopt;
}

}  // namespace

MaybeError validate(const EndpointConfig& config) {
  if (auto v = within_bounds(config)) return v;
  return within("probe_interval_max_us", config.probe_interval_max, config.probe_interval, seconds(3600));
}

MaybeError validate(const EvProfile& profile, std::uint32_t ports) {
  if (auto v = within_bounds(profile)) return v;
  if (profile.count % ports)
    return refused("count", profile.count, "a multiple of the " + std::to_string(ports) + " ports");
  if (profile.spares % ports)
    return refused("spares", profile.spares, "a multiple of the " + std::to_string(ports) + " ports");
  if (auto v = within("spares", profile.spares, 0u, max_evs - profile.count)) return v;
  if (auto v = within("min_active", profile.min_active, 0u, profile.count)) return v;
  if (auto v = validate_layout(profile)) return v;
  if (profile.mode == EvMode::explicit_) return validate_entries(profile, ports);
  if (!profile.entries.empty()) return refused("entries", profile.entries.size(), "none unless mode is explicit");
  return std::nullopt;
}

MaybeError validate_value(const EvProfile& profile, const char* field, std::uint32_t value, bool is_bytes) {
  const bool needs_bytes = profile.is_wide() || !profile.layout.fields.empty();
  if (is_bytes && (needs_bytes || profile.mode == EvMode::explicit_)) return std::nullopt;
  if (needs_bytes)
    return refused(field, value, "1 to 32 bytes, which the format and the fields of this profile expand");
  if (is_bytes) return refused(field, "bytes", "a number: this profile has neither fields nor the SRV6 format");
  if (profile.format == wire::EvFormat::udp && value > 0xFFFF)
    return refused(field, value, "0 to 65535, a UDP source port");
  return std::nullopt;
}

MaybeError validate(const CcProfile& profile) {
  std::string names;
  for (const std::string& name : Controllers::names()) {
    if (name == profile.algorithm) return within_bounds(profile);
    names += (names.empty() ? "one of " : ", ") + name;
  }
  return refused("algorithm", profile.algorithm, names);
}

MaybeError validate(const RtrAttributes& a) {
  if (auto v = within_bounds(a)) return v;
  if (a.mtu % 4) return refused("mtu", a.mtu, "a multiple of 4");
  return std::nullopt;
}

MaybeError validate(const RtsAttributes& a) { return within_bounds(a); }

}  // namespace softmrc::proto
