// Which planes a device has: from what a person writes to addresses, interfaces and packet sizes.
//
//   10.0.0.1          this address, wherever the routes lead
//   10.0.0.1%eth0     this address, and nothing leaves but by eth0
//   eth0              the first address of eth0, bound to it
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "wire/packet.h"
#include "wire/route.h"

namespace softmrc::host {

struct LocalPlane {
  wire::Address address;
  std::string interface;  // bound to it; empty: follow the routes
  std::string link;       // the interface that has the address; empty where none does
  std::uint32_t link_mtu = 0;
  std::uint64_t speed_bps = 0;  // of the link, when it was resolved; 0: not known

  std::uint32_t scope_id() const;
  // The largest payload whose packet fits the link, with so many bytes around what the headers of data take.
  std::uint32_t payload_mtu(std::size_t overhead = wire::icrc_size) const;
};
std::string to_string(const LocalPlane& plane);  // as a person would write it

constexpr std::size_t max_planes = 16;
constexpr std::uint32_t smallest_mtu = 512, largest_mtu = 16'384;
// Full packets carry a multiple of it, so that no word of a message is split between two.
constexpr std::uint32_t payload_unit = 128;

bool is_loopback(const wire::Address& address);
bool is_link_local(const wire::Address& address);

inline const std::string sys_class_net = "/sys/class/net";
// Bits a second; 0 where the kernel does not know, as of loopback and veth, or guesses.
std::uint64_t link_speed(const std::string& link, const std::string& links = sys_class_net);
// `why` says where the name is from. Throws HostError.
LocalPlane resolve(const std::string& name, const std::string& why = "", const std::string& links = sys_class_net);
// Every interface that is up and has an address, those with hardware behind them where there are any; without any, four
// planes on loopback, for which nothing is needed.
std::vector<std::string> discover_planes();
// The payload that fits every plane, with so many bytes around what the headers of data take. Throws HostError.
std::uint32_t payload_mtu(const std::vector<LocalPlane>& planes, std::size_t overhead = wire::icrc_size);
// The payload of full packets: what is wanted, or with 0 what fits every plane, up to a limit. Throws HostError.
std::uint32_t choose_mtu(const std::vector<LocalPlane>& planes, std::uint32_t wanted, std::uint32_t limit);
// The payload of an encrypted packet, where an unencrypted one has `plain` bytes. Throws HostError.
std::uint32_t sealed_mtu(const std::vector<LocalPlane>& planes, std::uint32_t plain);

}  // namespace softmrc::host
