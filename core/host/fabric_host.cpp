#include "host/fabric_host.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

#include "host/host_error.h"
#include "host/toml.h"
#include "host/units.h"
#include "udp/socket.h"
#include "wire/srv6.h"

namespace softmrc::host {
namespace {

// As in softmrc/fabric/address.py, which has the rest of the address plan.
constexpr std::uint32_t t0_usid = 0x0100, t1_usid = 0x0300, t2_usid = 0x0500, downlink_usid = 0x1000;
constexpr std::uint32_t max_hosts = 1 << 20, most_t0 = 0x200, most_t1 = 0x200, most_t2 = 0x400, most_downlinks = 0x800;
constexpr std::uint64_t lab_rate_bps = 1'000'000'000;

const TomlValue* found_in(const TomlDocument& tables, const char* section, const char* key) {
  const auto table = tables.find(section);
  if (table == tables.end()) return nullptr;
  const auto value = table->second.find(key);
  return value == table->second.end() ? nullptr : &value->second;
}

[[noreturn]] void refuse(const std::string& key, const std::string& value, const std::string& expected,
                         const std::string& hint = "") {
  throw HostError("SOFTMRC_FABRIC: " + message(key, "must be " + expected, value, hint));
}

void read(const TomlDocument& tables, const char* key, std::uint32_t least, std::uint32_t most, std::uint32_t& into) {
  const TomlValue* value = found_in(tables, "fabric", key);
  if (!value) return;
  const auto* whole = std::get_if<std::int64_t>(value);
  if (!whole || *whole < least || *whole > most)
    refuse(std::string("fabric.") + key, to_string(*value),
           "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  into = static_cast<std::uint32_t>(*whole);
}

// 100G, 51.2T, 20Mbit/s, or whole bits per second.
std::uint64_t rate_of(const TomlValue& value) {
  std::uint64_t rate = 0;
  std::string expected = "a rate, as 100G, 51.2T, 20M, or whole bits per second", hint;
  try {
    if (const auto* whole = std::get_if<std::int64_t>(&value)) rate = static_cast<std::uint64_t>(*whole);
    if (const auto* text = std::get_if<std::string>(&value)) rate = rate_bps(*text);
  } catch (const UnitError& refusal) {
    expected = refusal.what();
    hint = refusal.hint;
  }
  if (rate < 1'000'000 || rate > 1'000'000'000'000'000)
    refuse("fabric.host_link_bps", to_string(value), expected, hint);
  return rate;
}

std::uint32_t prefix_of(const char* key, const TomlValue& value) {
  const auto* text = std::get_if<std::string>(&value);
  wire::Ipv6 address{};
  const std::size_t slash = text ? text->find('/') : std::string::npos;
  const bool is_prefix = slash != std::string::npos && text->substr(slash) == "/32" &&
                         inet_pton(AF_INET6, text->substr(0, slash).c_str(), address.data()) == 1 &&
                         std::all_of(address.begin() + 4, address.end(), [](std::uint8_t byte) { return byte == 0; });
  if (!is_prefix) refuse(std::string("addressing.") + key, to_string(value), "an IPv6 prefix of 32 bits");
  return static_cast<std::uint32_t>(address[0]) << 24 | static_cast<std::uint32_t>(address[1]) << 16 |
         static_cast<std::uint32_t>(address[2]) << 8 | address[3];
}

}  // namespace

FabricHost::FabricHost(std::string_view text, const std::string& name, const std::string& host) : name_(name) {
  const TomlDocument tables = parse_toml(text, name);
  if (!tables.contains("fabric"))
    throw HostError(
        name + ": " +
        message("fabric", "is missing", "", "Add a section [fabric] with planes, hosts, hosts_per_leaf and spines."));
  read(tables, "planes", 1, 16, planes_);
  read(tables, "hosts", 2, max_hosts, hosts_);
  read(tables, "hosts_per_leaf", 1, most_downlinks, hosts_per_leaf_);
  read(tables, "spines", 1, most_t1, spines_);
  read(tables, "pods", 0, most_t1, pods_);
  read(tables, "cores_per_spine", 0, most_t2, cores_per_spine_);
  if (hosts_ % hosts_per_leaf_)
    refuse("fabric.hosts", std::to_string(hosts_), "a multiple of hosts_per_leaf = " + std::to_string(hosts_per_leaf_));
  if (leaves() > most_t0)
    refuse("fabric.hosts", std::to_string(hosts_), "at most " + std::to_string(most_t0) + " leaves");
  if (pods_ &&
      (leaves() % pods_ || cores_per_spine_ == 0 || pods_ * spines_ > most_t1 || spines_ * cores_per_spine_ > most_t2))
    refuse("fabric.pods", std::to_string(pods_), "a divisor of the leaves, with cores, and not too many of either");
  if (const TomlValue* rate = found_in(tables, "fabric", "host_link_bps")) host_link_bps_ = rate_of(*rate);
  if (const TomlValue* block = found_in(tables, "addressing", "block")) block_ = prefix_of("block", *block);
  if (const TomlValue* inner = found_in(tables, "addressing", "inner")) inner_ = prefix_of("inner", *inner);
  if ((block_ & 0xFF) + planes_ > 0x100)
    refuse("addressing.block", "no room for the planes",
           "one whose last byte leaves room for as many, as fcbb:bb00::/32");
  if (const TomlValue* place = found_in(tables, "addressing", "plane_in");
      place && *place != TomlValue(std::string("block")))
    refuse("addressing.plane_in", to_string(*place), "'block', for checksum-neutral carriers");
  if (const TomlValue* trims = found_in(tables, "switch", "trim")) {
    if (!std::holds_alternative<bool>(*trims)) refuse("switch.trim", to_string(*trims), "true or false");
    trims_ = std::get<bool>(*trims);
  }
  const auto [to, error] = std::from_chars(host.data(), host.data() + host.size(), host_);
  if (error != std::errc{} || to != host.data() + host.size() || host_ >= hosts_)
    throw HostError(message("SOFTMRC_HOST",
                            "must be the number of a host of " + name + ", 0 to " + std::to_string(hosts_ - 1),
                            shown(host)));
}

std::vector<std::string> FabricHost::planes() const {
  std::vector<std::string> names;
  for (std::uint32_t plane = 0; plane < planes_; ++plane) names.push_back("p" + std::to_string(plane));
  return names;
}

wire::Ipv6 FabricHost::host_address() const {
  wire::Ipv6 address{};
  const auto put = [&](std::size_t at, std::uint32_t bits) {
    for (std::size_t i = 0; i < 4; ++i) address[at + i] = static_cast<std::uint8_t>(bits >> (24 - 8 * i));
  };
  put(0, inner_);
  put(4, host_);
  put(8, 0xFFFFFFFF);
  put(12, 1);
  return address;
}

DeviceSettings FabricHost::settings() const {
  DeviceSettings found;
  found.srv6 = true;
  found.sockets_per_plane = 1;
  found.trimming = trims_;
  found.rate_bps = planes_ * host_link_bps_;
  if (host_link_bps_ > lab_rate_bps) return found;
  // Links so slow that a packet takes a millisecond, and hosts that share a machine's cores with every switch.
  found.quantum = 1;
  found.gso = false;
  found.spin_us = 0;
  found.base_rtt_us = 10'000;
  found.reorder_us = 25'000;
  found.send_buffer_bytes = 8 << 10;
  found.sack_threshold_bytes = 4096;
  return found;
}

wire::Ipv6 FabricHost::carrier(std::uint32_t plane, std::vector<std::uint32_t> usids) const {
  const std::vector<std::uint16_t> parts(usids.begin(), usids.end());
  wire::Ipv6 address{};
  wire::build_carrier(block_ + plane, parts, address);
  return address;
}

std::vector<std::uint32_t> FabricHost::tail(std::uint32_t host) const {
  return {downlink_usid + host % hosts_per_leaf_, t0_usid + leaf_of(host)};
}

wire::Ipv6 FabricHost::nic_address(std::uint32_t host, std::uint32_t plane) const { return carrier(plane, tail(host)); }

std::vector<std::uint32_t> FabricHost::named(std::uint32_t to, std::uint32_t path) const {
  const std::uint32_t from_leaf = leaf_of(host_), to_leaf = leaf_of(to);
  if (from_leaf == to_leaf) return {};
  if (pod_of(from_leaf) == pod_of(to_leaf)) return {t1_usid + pod_of(from_leaf) * spines_ + path, t0_usid + to_leaf};
  const std::uint32_t uplink = path / cores_per_spine_;
  return {t1_usid + pod_of(from_leaf) * spines_ + uplink, t2_usid + path,
          t0_usid + to_leaf};  // cores are numbered as the paths through them
}

std::uint32_t FabricHost::host_at(std::uint32_t plane, const wire::Address& address) const {
  // The address says which host it is: what a carrier ends with.
  const auto number = [&](std::size_t at) {
    return static_cast<std::uint32_t>(address.bytes[at]) << 8 | address.bytes[at + 1];
  };
  const std::uint32_t to = (number(6) - t0_usid) * hosts_per_leaf_ + (number(4) - downlink_usid);
  if (address.is_v4 || number(6) < t0_usid || number(4) < downlink_usid ||
      number(4) - downlink_usid >= hosts_per_leaf_ || to >= hosts_ || to == host_ ||
      wire::Address(nic_address(to, plane)) != address)
    throw HostError(udp::text_of(address) + " is not the address of another host in plane " + std::to_string(plane) +
                    " of " + name_);
  return to;
}

std::uint32_t FabricHost::path_count(std::uint32_t to) const {
  const std::uint32_t from_leaf = leaf_of(host_), to_leaf = leaf_of(to);
  return from_leaf == to_leaf ? 1 : pod_of(from_leaf) == pod_of(to_leaf) ? spines_ : spines_ * cores_per_spine_;
}

std::vector<wire::Ipv6> FabricHost::paths(std::uint32_t plane, const wire::Address& address) const {
  const std::uint32_t to = host_at(plane, address), count = path_count(to);
  std::vector<wire::Ipv6> found;
  for (std::uint32_t path = 0; path < count; ++path) {
    std::vector<std::uint32_t> usids = named(to, path);
    std::uint32_t sum = 0;
    for (const std::uint32_t usid : usids) sum += usid;
    usids.insert(usids.begin(), 0xFFFF - sum % 0xFFFF);
    for (const std::uint32_t usid : tail(to)) usids.push_back(usid);
    found.push_back(carrier(plane, usids));
  }
  return found;
}

// Links by name ----------------------------------------------------------------------------------------------------

std::string FabricHost::word(Tier tier) const {
  const char* const words[] = {"host", "leaf", pods_ ? "agg" : "spine", "core"};
  return words[static_cast<std::size_t>(tier)];
}

std::string FabricHost::link_name(std::uint32_t plane, const SwitchId& from, const SwitchId& to) const {
  return "p" + std::to_string(plane) + "." + word(from.tier) + std::to_string(from.number) + ">" + word(to.tier) +
         std::to_string(to.number);
}

std::vector<std::string> FabricHost::links(std::uint32_t plane, std::uint32_t to, std::uint32_t path) const {
  const std::uint32_t from_leaf = leaf_of(host_), to_leaf = leaf_of(to);
  std::vector<SwitchId> way{{Tier::host, host_}, {Tier::leaf, from_leaf}};
  if (from_leaf != to_leaf) {
    const bool is_far = pod_of(from_leaf) != pod_of(to_leaf);
    const std::uint32_t uplink = is_far ? path / cores_per_spine_ : path;
    way.push_back({Tier::t1, pod_of(from_leaf) * spines_ + uplink});
    if (is_far) way.insert(way.end(), {{Tier::t2, path}, {Tier::t1, pod_of(to_leaf) * spines_ + uplink}});
    way.push_back({Tier::leaf, to_leaf});
  }
  way.push_back({Tier::host, to});
  std::vector<std::string> found;
  for (std::size_t i = 1; i < way.size(); ++i) found.push_back(link_name(plane, way[i - 1], way[i]));
  return found;
}

bool FabricHost::are_joined(const SwitchId& lower, const SwitchId& upper) const {
  const std::uint32_t t1 = std::max(pods_, 1u) * spines_;
  if (lower.tier == Tier::host && upper.tier == Tier::leaf)
    return lower.number < hosts_ && leaf_of(lower.number) == upper.number;
  if (lower.tier == Tier::leaf && upper.tier == Tier::t1)
    return lower.number < leaves() && upper.number < t1 && upper.number / spines_ == pod_of(lower.number);
  return lower.tier == Tier::t1 && upper.tier == Tier::t2 && pods_ && lower.number < t1 &&
         upper.number / cores_per_spine_ == lower.number % spines_;
}

std::string FabricHost::link(const std::string& written) const {
  const auto refuse = [&]() {
    throw HostError(message("link", "must be a directed link of " + name_ + ", as p0.leaf0>" + word(Tier::t1) + "1",
                            shown(written)));
  };
  std::string_view rest = written;
  const auto number = [&] {
    std::uint32_t value = 0;
    const auto [to, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (error != std::errc{}) refuse();
    rest.remove_prefix(static_cast<std::size_t>(to - rest.data()));
    return value;
  };
  std::uint32_t plane = 0;
  const auto place = [&](bool is_first) {
    if (rest.starts_with("p") && rest.size() > 1 && rest[1] >= '0' && rest[1] <= '9') {
      rest.remove_prefix(1);
      const std::uint32_t said = number();
      if (is_first) plane = said;
      if (!rest.starts_with(".")) refuse();
      rest.remove_prefix(1);
    }
    for (const Tier tier : {Tier::host, Tier::leaf, Tier::t1, Tier::t2})
      if (const std::string name = word(tier); rest.starts_with(name)) {
        rest.remove_prefix(name.size());
        return SwitchId{tier, number()};
      }
    refuse();
    return SwitchId{};
  };
  const SwitchId from = place(true);
  if (!rest.starts_with(">")) refuse();
  rest.remove_prefix(1);
  const SwitchId to = place(false);
  if (!rest.empty() || plane >= planes_ || !(from.tier < to.tier ? are_joined(from, to) : are_joined(to, from)))
    refuse();
  return link_name(plane, from, to);
}

}  // namespace softmrc::host
