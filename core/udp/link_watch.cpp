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

// Of IPv4 the local address is an attribute of its own, besides that of the other end.
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
  bool ask(unsigned long request, ifreq& about) const { return ioctl(fd_, request, &about) == 0; }
  // False: there is no such link.
  bool name(std::uint32_t index, ifreq& out) const {
    out = {};
    out.ifr_ifindex = static_cast<int>(index);
    return ask(SIOCGIFNAME, out);
  }
  std::uint32_t mtu(ifreq& about) const { return ask(SIOCGIFMTU, about) ? static_cast<std::uint32_t>(about.ifr_mtu) : 0; }

 private:
  int fd_;
};

}  // namespace

LinkWatch::LinkWatch() {
  fd_ = socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_ROUTE);
  if (fd_ < 0) return;
  sockaddr_nl here{};
  here.nl_family = AF_NETLINK;
  here.nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
  if (bind(fd_, reinterpret_cast<sockaddr*>(&here), sizeof here) == 0) return;
  close(fd_);
  fd_ = -1;
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
  if (getifaddrs(&first) != 0) return found;
  const Inquiry links;
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
      local.mtu = links.mtu(about);
    } else {
      local.mtu = same->mtu;
    }
    found.push_back(local);
  }
  freeifaddrs(first);
  return found;
}

bool is_link_up(std::uint32_t index) {
  const Inquiry links;
  ifreq about;
  if (!links.can_ask()) return true;
  if (!links.name(index, about)) return false;
  return !links.ask(SIOCGIFFLAGS, about) || is_running(static_cast<unsigned short>(about.ifr_flags));
}

std::uint32_t link_mtu(std::uint32_t index) {
  const Inquiry links;
  ifreq about;
  return links.name(index, about) ? links.mtu(about) : 0;
}

}  // namespace softmrc::udp
