#include "udp/link_watch.h"

#include <ifaddrs.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "udp/socket.h"

namespace softmrc::udp {
namespace {

bool is_running(unsigned flags) { return (flags & IFF_UP) && (flags & IFF_RUNNING); }

// Asks about the link whose name is in `out`.
bool read_named(unsigned long request, ifreq& out) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const bool ok = ioctl(fd, request, &out) == 0;
  close(fd);
  return ok;
}

bool read_interface(std::uint32_t index, unsigned long request, ifreq& out) {
  std::memset(&out, 0, sizeof out);
  return if_indextoname(index, out.ifr_name) && read_named(request, out);
}

std::uint32_t mtu_of(const char* name) {
  ifreq request{};
  std::strncpy(request.ifr_name, name, sizeof request.ifr_name - 1);
  return read_named(SIOCGIFMTU, request) ? static_cast<std::uint32_t>(request.ifr_mtu) : 0;
}

}  // namespace

LinkWatch::LinkWatch() {
  fd_ = socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_ROUTE);
  if (fd_ < 0) return;
  sockaddr_nl here{};
  here.nl_family = AF_NETLINK;
  here.nl_groups = RTMGRP_LINK;
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
      if (m->nlmsg_type != RTM_NEWLINK && m->nlmsg_type != RTM_DELLINK) continue;
      const auto* info = static_cast<const ifinfomsg*>(NLMSG_DATA(m));
      const bool is_up = m->nlmsg_type == RTM_NEWLINK && is_running(info->ifi_flags);
      out.push_back({static_cast<std::uint32_t>(info->ifi_index), is_up});
    }
  }
  return is_whole;
}

std::vector<LocalAddress> local_addresses() {
  std::vector<LocalAddress> found;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return found;
  for (const ifaddrs* a = first; a; a = a->ifa_next) {
    if (!a->ifa_addr || (a->ifa_addr->sa_family != AF_INET && a->ifa_addr->sa_family != AF_INET6)) continue;
    LocalAddress local;
    local.interface = a->ifa_name;
    sockaddr_storage storage{};
    std::memcpy(&storage, a->ifa_addr, a->ifa_addr->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    std::uint16_t port = 0;
    source_of(storage, local.address, port);
    // Addresses of a link often lie side by side.
    local.mtu = !found.empty() && found.back().interface == local.interface ? found.back().mtu : mtu_of(a->ifa_name);
    found.push_back(local);
  }
  freeifaddrs(first);
  return found;
}

bool is_link_up(std::uint32_t index) {
  ifreq request;
  char name[IF_NAMESIZE];
  if (!if_indextoname(index, name)) return false;
  if (!read_interface(index, SIOCGIFFLAGS, request)) return true;
  return is_running(static_cast<unsigned short>(request.ifr_flags));
}

std::uint32_t link_mtu(std::uint32_t index) {
  ifreq request;
  return read_interface(index, SIOCGIFMTU, request) ? static_cast<std::uint32_t>(request.ifr_mtu) : 0;
}

}  // namespace softmrc::udp
