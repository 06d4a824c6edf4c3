#include "udp/link_watch.h"

#include <ifaddrs.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "udp/device_error.h"
#include "udp/socket.h"

namespace softmrc::udp {
namespace {

bool is_running(unsigned flags) { return (flags & IFF_UP) && (flags & IFF_RUNNING); }

// Calls back with each attribute behind a message's fixed part.
template <typename Fixed, typename F>
void for_each_attribute(nlmsghdr& message, F f) {
  if (message.nlmsg_len < NLMSG_LENGTH(sizeof(Fixed))) return;
  auto left = static_cast<unsigned>(message.nlmsg_len - NLMSG_LENGTH(sizeof(Fixed)));
  auto* a = reinterpret_cast<rtattr*>(static_cast<std::uint8_t*>(NLMSG_DATA(&message)) + NLMSG_ALIGN(sizeof(Fixed)));
  for (; RTA_OK(a, left); a = RTA_NEXT(a, left))
    f(a->rta_type, static_cast<const std::uint8_t*>(RTA_DATA(a)), RTA_PAYLOAD(a));
}

LinkState link_in(nlmsghdr& message) {
  const auto* info = static_cast<const ifinfomsg*>(NLMSG_DATA(&message));
  LinkState found;
  found.index = static_cast<std::uint32_t>(info->ifi_index);
  found.is_up = message.nlmsg_type == RTM_NEWLINK && is_running(info->ifi_flags);
  for_each_attribute<ifinfomsg>(message, [&](unsigned type, const std::uint8_t* bytes, std::size_t size) {
    const char* const text = reinterpret_cast<const char*>(bytes);
    if (type == IFLA_IFNAME) found.name.assign(text, strnlen(text, size));
  });
  return found;
}

// Of IPv4 the local address is a separate attribute, besides that of the other end.
LinkState address_in(nlmsghdr& message) {
  const auto* info = static_cast<const ifaddrmsg*>(NLMSG_DATA(&message));
  const bool v4 = info->ifa_family == AF_INET;
  LinkState found;
  found.index = info->ifa_index;
  for_each_attribute<ifaddrmsg>(message, [&](unsigned type, const std::uint8_t* bytes, std::size_t size) {
    if (type != (v4 ? IFA_LOCAL : IFA_ADDRESS) || size != (v4 ? 4u : 16u)) return;
    wire::Address& address = found.address.emplace();
    address.is_v4 = v4;
    std::memcpy(address.bytes.data(), bytes, size);
  });
  return found;
}

// Asks about links, whose name the question holds, through one socket for all of them.
class Inquiry {
 public:
  Inquiry() : fd_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {}
  ~Inquiry() {
    if (fd_ >= 0) close(fd_);
  }
  Inquiry(const Inquiry&) = delete;
  Inquiry& operator=(const Inquiry&) = delete;

  bool can_ask() const { return fd_ >= 0; }
  // Else errno says why not.
  bool ping(unsigned long request, ifreq& about) const { return ioctl(fd_, request, &about) == 0; }
  bool name(std::uint32_t index, ifreq& out) const {
    out = {};
    out.ifr_ifindex = static_cast<int>(index);
    return ping(SIOCGIFNAME, out);
  }
  std::uint32_t mtu(ifreq& about) const {
    return ping(SIOCGIFMTU, about) ? static_cast<std::uint32_t>(about.ifr_mtu) : 0;
  }

 private:
  int fd_;
};

}  // namespace

LinkWatch::LinkWatch() {
  fd_ = socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_ROUTE);
  if (fd_ < 0 && is_transient(errno)) fail_with_errno("cannot watch links");
  if (fd_ < 0) return;
  sockaddr_nl here{};
  here.nl_family = AF_NETLINK;
  here.nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
  if (bind(fd_, reinterpret_cast<sockaddr*>(&here), sizeof here) == 0) return;
  const int error = errno;
  close(fd_);
  fd_ = -1;
  errno = error;
  if (is_transient(error)) fail_with_errno("cannot watch links");
}

LinkWatch::~LinkWatch() {
  if (fd_ >= 0) close(fd_);
}

bool LinkWatch::read(std::vector<LinkState>& out) {
  alignas(nlmsghdr) std::array<std::uint8_t, 16'384> buffer;
  bool is_whole = true;
  for (int rounds = 0; rounds < 16; ++rounds) {
    const ssize_t got = recv(fd_, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && errno == ENOBUFS) {
      is_whole = false;
      continue;
    }
    if (got <= 0) break;
    auto left = static_cast<unsigned>(got);
    for (auto* m = reinterpret_cast<nlmsghdr*>(buffer.data()); NLMSG_OK(m, left); m = NLMSG_NEXT(m, left)) {
      if (m->nlmsg_type == RTM_NEWLINK || m->nlmsg_type == RTM_DELLINK) out.push_back(link_in(*m));
      if (m->nlmsg_type == RTM_NEWADDR) out.push_back(address_in(*m));
    }
  }
  return is_whole;
}

std::vector<LocalAddress> local_addresses() {
  std::vector<LocalAddress> found;
  ifaddrs* first = nullptr;
  const bool is_said = getifaddrs(&first) == 0;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> all(is_said ? first : nullptr, &freeifaddrs);
  if (!is_said && is_transient(errno)) fail_with_errno("cannot list this machine's addresses");
  if (!is_said) return found;
  const Inquiry links;
  if (!links.can_ask() && is_transient(errno)) fail_with_errno("cannot ask for the MTU of links");
  for (const ifaddrs* a = first; a; a = a->ifa_next) {
    if (!a->ifa_addr || (a->ifa_addr->sa_family != AF_INET && a->ifa_addr->sa_family != AF_INET6)) continue;
    LocalAddress local;
    local.interface = a->ifa_name;
    sockaddr_storage storage{};
    std::memcpy(&storage, a->ifa_addr, a->ifa_addr->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    std::uint16_t port = 0;
    source_of(storage, local.address, port);
    const auto same = std::ranges::find(found, local.interface, &LocalAddress::interface);
    if (same == found.end()) {
      ifreq about{};
      std::strncpy(about.ifr_name, a->ifa_name, sizeof about.ifr_name - 1);
      errno = 0;
      local.mtu = links.mtu(about);
      if (local.mtu == 0 && is_transient(errno)) fail_with_errno("cannot ask for the MTU of " + local.interface);
    } else {
      local.mtu = same->mtu;
    }
    found.push_back(local);
  }
  return found;
}

namespace {

// Of a question that failed.
std::optional<bool> or_unknown(bool otherwise) { return is_transient(errno) ? std::nullopt : std::optional(otherwise); }

}  // namespace

std::optional<bool> is_link_up(std::uint32_t index) {
  const Inquiry links;
  ifreq about;
  if (!links.can_ask()) return or_unknown(true);
  if (!links.name(index, about)) return or_unknown(false);
  if (!links.ping(SIOCGIFFLAGS, about)) return or_unknown(true);
  return is_running(static_cast<unsigned short>(about.ifr_flags));
}

std::optional<bool> is_link(std::uint32_t index) {
  char name[IF_NAMESIZE];
  return if_indextoname(index, name) ? std::optional(true) : or_unknown(false);
}

std::optional<bool> has_address(std::uint32_t index, const wire::Address& address) {
  char name[IF_NAMESIZE];
  if (!if_indextoname(index, name)) return or_unknown(false);
  try {
    return std::ranges::any_of(
        local_addresses(), [&](const LocalAddress& one) { return one.interface == name && one.address == address; });
  } catch (const DeviceError&) {
    return std::nullopt;
  }
}

std::optional<std::uint32_t> link_of_name(const std::string& name) {
  if (const std::uint32_t index = if_nametoindex(name.c_str())) return index;
  return is_transient(errno) ? std::nullopt : std::optional<std::uint32_t>(0);
}

std::uint32_t link_mtu(std::uint32_t index) {
  const Inquiry links;
  ifreq about;
  return links.name(index, about) ? links.mtu(about) : 0;
}

}  // namespace softmrc::udp
