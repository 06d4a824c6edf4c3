#include "host/planes.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <set>
#include <utility>

#include "host/host_error.h"
#include "proto/transmit.h"
#include "udp/link_watch.h"
#include "udp/socket.h"
#include "wire/packet.h"
#include "wire/sealed.h"

namespace softmrc::host {
namespace {

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

std::optional<wire::Address> parse(const std::string& text) {
  if (text.find('\0') != text.npos) return std::nullopt;
  wire::Ipv4 v4;
  if (inet_pton(AF_INET, text.c_str(), v4.data()) == 1) return v4;
  wire::Ipv6 v6;
  if (inet_pton(AF_INET6, text.c_str(), v6.data()) == 1) return v6;
  return std::nullopt;
}

// Where a wrong name was, and which ones would be right.
std::string hint_of(const std::string& why) {
  std::set<std::string> names;
  struct if_nameindex* const all = if_nameindex();
  for (const auto* one = all; one && one->if_index; ++one) names.insert(one->if_name);
  if (all) if_freenameindex(all);
  std::string text = why.empty() ? "" : ", " + why;
  const char* gap = "; there is ";
  for (const std::string& one : names) text += std::exchange(gap, ", ") + one;
  return text;
}

LocalPlane of_interface(const std::string& name, const std::string& why, std::vector<udp::LocalAddress> local) {
  if (if_nametoindex(name.c_str()) == 0)
    throw HostError("no interface " + name + ", and '" + name + "' is no address either" + hint_of(why));
  std::erase_if(local, [&](const udp::LocalAddress& one) { return one.interface != name; });
  if (local.empty()) throw HostError("interface " + name + " has no address" + (why.empty() ? "" : ", " + why));
  const auto rank = [](const udp::LocalAddress& one) { return 2 * is_link_local(one.address) + !one.address.is_v4; };
  const auto& first = *std::min_element(local.begin(), local.end(),
                                        [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  return {first.address, name, name, first.mtu};
}

LocalPlane find(const std::string& name, const std::string& why) {
  const std::vector<udp::LocalAddress> local = udp::local_addresses();
  const std::size_t percent = name.find('%');
  const std::string interface = percent == std::string::npos ? "" : name.substr(percent + 1);
  const std::optional<wire::Address> address = parse(name.substr(0, percent));
  if (!address) return of_interface(name, why, local);
  if (!interface.empty() && if_nametoindex(interface.c_str()) == 0)
    throw HostError("no interface " + interface + " (plane " + name + ")" + hint_of(why));
  for (const udp::LocalAddress& one : local)
    if (one.address == *address && (interface.empty() || interface == one.interface))
      return {*address, interface, one.interface, one.mtu};
  for (const udp::LocalAddress& one : local)
    if (is_loopback(*address) ? is_loopback(one.address) : one.interface == interface)
      return {*address, interface, one.interface, one.mtu};
  return {*address, interface, interface, 0};
}

bool is_usable(const std::string& link) {
  const std::string folder = sys_class_net + "/" + link;
  unsigned flags = 0;
  int carrier = 0;
  if (!(std::ifstream(folder + "/flags") >> std::hex >> flags) || flags & IFF_LOOPBACK) return false;
  return std::ifstream(folder + "/carrier") >> carrier && carrier == 1;  // a link that is down has none to read
}

}  // namespace

bool is_loopback(const wire::Address& address) {
  if (address.is_v4) return address.bytes[0] == 127;
  wire::Ipv6 one{};
  one[15] = 1;
  return address.bytes == one;
}

bool is_link_local(const wire::Address& address) {
  if (address.is_v4) return address.bytes[0] == 169 && address.bytes[1] == 254;
  return address.bytes[0] == 0xFE && (address.bytes[1] & 0xC0) == 0x80;
}

std::uint32_t LocalPlane::scope_id() const {
  if (address.is_v4 || !is_link_local(address)) return 0;
  return if_nametoindex((interface.empty() ? link : interface).c_str());
}

std::uint32_t LocalPlane::payload_mtu(std::size_t overhead) const {
  if (link_mtu == 0) return 1024;
  const std::uint32_t headers = (address.is_v4 ? 20 : 40) + 8 + proto::longest_data_headers +
                                static_cast<std::uint32_t>(overhead);
  return link_mtu <= headers ? 0 : std::min(link_mtu - headers, largest_mtu) / payload_unit * payload_unit;
}

std::string to_string(const LocalPlane& plane) {
  return udp::text_of(plane.address) + (plane.interface.empty() ? "" : "%" + plane.interface);
}

std::uint64_t link_speed(const std::string& link, const std::string& links) {
  const std::string folder = links + "/" + link;
  if (link.empty() || exists(folder + "/tun_flags") || !exists(folder + "/device")) return 0;
  std::int64_t mbps = 0;
  std::ifstream(folder + "/speed") >> mbps;
  return mbps > 0 ? static_cast<std::uint64_t>(mbps) * 1'000'000 : 0;
}

LocalPlane resolve(const std::string& name, const std::string& why, const std::string& links) {
  LocalPlane plane = find(name, why);
  plane.speed_bps = link_speed(plane.link, links);
  return plane;
}

std::vector<std::string> discover_planes() {
  std::set<std::string> up;
  for (const udp::LocalAddress& one : udp::local_addresses())
    if (is_usable(one.interface)) up.insert(one.interface);
  std::vector<std::string> found;
  std::copy_if(up.begin(), up.end(), std::back_inserter(found),
               [](const std::string& link) { return exists(sys_class_net + "/" + link + "/device"); });
  if (found.empty()) found.assign(up.begin(), up.end());
  if (found.empty()) found = {"127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"};
  if (found.size() > max_planes) found.resize(max_planes);
  return found;
}

std::uint32_t payload_mtu(const std::vector<LocalPlane>& planes, std::size_t overhead) {
  std::uint32_t largest = largest_mtu;
  std::string names;
  for (const LocalPlane& plane : planes) {
    largest = std::min(largest, plane.payload_mtu(overhead));
    names += (names.empty() ? "" : ", ") + to_string(plane);
  }
  if (largest < smallest_mtu)
    raise_if(proto::refused("planes", names, "links that carry " + std::to_string(smallest_mtu) + " bytes of payload"));
  return largest;
}

std::uint32_t choose_mtu(const std::vector<LocalPlane>& planes, std::uint32_t wanted, std::uint32_t limit) {
  const std::uint32_t largest = payload_mtu(planes);
  if (wanted == 0) return std::min(largest, limit) / payload_unit * payload_unit;
  const std::uint32_t nearest = std::clamp(wanted, smallest_mtu, largest) / payload_unit * payload_unit;
  if (wanted != nearest)
    raise_if(proto::refused(
        "mtu", wanted,
        "a multiple of " + std::to_string(payload_unit) + ", such as " + std::to_string(nearest) + "; at least " +
            std::to_string(smallest_mtu) + ", and at most " + std::to_string(largest) + ", " +
            (largest < largest_mtu ? "which is what the links carry" : "the most that a packet holds")));
  return wanted;
}

std::uint32_t sealed_mtu(const std::vector<LocalPlane>& planes, std::uint32_t plain) {
  return std::min(plain, payload_mtu(planes, wire::sealed_data_overhead));
}

}  // namespace softmrc::host
