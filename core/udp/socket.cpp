#include "udp/socket.h"

#include <arpa/inet.h>
#include <linux/errqueue.h>
#include <linux/filter.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/icmp6.h>
#include <netinet/ip_icmp.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstring>

#include "udp/device_error.h"
#include "udp/kernel_compat.h"

namespace softmrc::udp {
namespace {

// False where the system does not have it, or does not let us: the socket does without. Throws DeviceError where it is
// short of something, since for how long the socket does without is not known.
bool set(int fd, int level, int option, const void* value, std::size_t size) {
  if (setsockopt(fd, level, option, value, static_cast<socklen_t>(size)) == 0) return true;
  if (is_transient(errno)) fail_with_errno("cannot set up a UDP socket");
  return false;
}

bool set_int(int fd, int level, int option, int value) { return set(fd, level, option, &value, sizeof value); }

int int_option(int fd, int level, int option) {
  int value = 0;
  socklen_t size = sizeof value;
  getsockopt(fd, level, option, &value, &size);
  return value;
}

std::string described(const SocketConfig& plan) {
  std::string text = text_of(plan.address) + " port " + std::to_string(plan.port);
  if (!plan.interface.empty()) text += " on " + plan.interface;
  return text;
}

}  // namespace

void fail_with_errno(const std::string& what) {
  const int code = errno;
  throw DeviceError(code, what + ": " + std::strerror(code));
}

Destination destination_of(const wire::Address& address, std::uint16_t port, std::uint32_t scope_id) {
  Destination d;
  if (address.is_v4) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(d.storage);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    std::memcpy(&v4.sin_addr, address.bytes.data(), 4);
    d.size = sizeof v4;
  } else {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(d.storage);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    v6.sin6_scope_id = scope_id;
    std::memcpy(&v6.sin6_addr, address.bytes.data(), 16);
    d.size = sizeof v6;
  }
  return d;
}

void source_of(const sockaddr_storage& from, wire::Address& address, std::uint16_t& port) {
  address = wire::Address{};
  if (from.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(from);
    address.is_v4 = true;
    std::memcpy(address.bytes.data(), &v4.sin_addr, 4);
    port = ntohs(v4.sin_port);
  } else {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(from);
    std::memcpy(address.bytes.data(), &v6.sin6_addr, 16);
    port = ntohs(v6.sin6_port);
  }
}

std::string text_of(const wire::Address& address) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(address.is_v4 ? AF_INET : AF_INET6, address.bytes.data(), text, sizeof text);
  return text;
}

Socket::Socket(const SocketConfig& plan) : tos_(plan.tos) {
  fd_ = socket(plan.address.is_v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd_ < 0) fail_with_errno("cannot open a UDP socket");
  try {
    if (!plan.interface.empty() && !bind_interface(plan.interface, plan.address.is_v4))
      fail_with_errno("cannot bind to interface " + plan.interface);
    set_buffers(plan);
    set_options(plan);
    bind_to(plan);
  } catch (...) {
    close(fd_);
    fd_ = -1;
    throw;
  }
}

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

void Socket::bind_to(const SocketConfig& plan) {
  const Destination here = destination_of(plan.address, plan.port, plan.scope_id);
  if (bind(fd_, reinterpret_cast<const sockaddr*>(&here.storage), here.size) != 0)
    fail_with_errno("cannot bind to " + described(plan));
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (getsockname(fd_, reinterpret_cast<sockaddr*>(&bound), &size) != 0) fail_with_errno("getsockname");
  port_ = ntohs(plan.address.is_v4 ? reinterpret_cast<sockaddr_in&>(bound).sin_port
                                   : reinterpret_cast<sockaddr_in6&>(bound).sin6_port);
}

// Two NICs in one subnet: without this both planes would leave by whichever the routes prefer. Where the system does
// not let us bind to a device, naming the outgoing interface does half of the job.
bool Socket::bind_interface(const std::string& name, bool v4) const {
  const unsigned index = if_nametoindex(name.c_str());
  if (index == 0 && is_transient(errno)) fail_with_errno("cannot ask for the number of " + name);
  if (index == 0) return false;
  if (set(fd_, SOL_SOCKET, SO_BINDTODEVICE, name.c_str(), name.size())) return true;
  const int outgoing = static_cast<int>(htonl(index));
  return set_int(fd_, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_UNICAST_IF : IPV6_UNICAST_IF, outgoing);
}

void Socket::set_buffers(const SocketConfig& plan) {
  const int wanted = static_cast<int>(plan.buffer_bytes);
  // The forced form ignores the system's limit and needs a privilege; the plain one takes what the limit allows.
  if (plan.receives && !set_int(fd_, SOL_SOCKET, SO_RCVBUFFORCE, wanted)) set_int(fd_, SOL_SOCKET, SO_RCVBUF, wanted);
  const int sending = plan.send_buffer_bytes ? static_cast<int>(plan.send_buffer_bytes) : wanted / 8;
  if (!set_int(fd_, SOL_SOCKET, SO_SNDBUFFORCE, sending)) set_int(fd_, SOL_SOCKET, SO_SNDBUF, sending);
  receive_buffer_bytes_ = static_cast<std::uint32_t>(int_option(fd_, SOL_SOCKET, SO_RCVBUF));
  send_buffer_bytes_ = static_cast<std::uint32_t>(int_option(fd_, SOL_SOCKET, SO_SNDBUF));
}

void Socket::set_options(const SocketConfig& plan) {
  const bool v4 = plan.address.is_v4;
  if (plan.is_any_local) set_int(fd_, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_FREEBIND : IPV6_FREEBIND, 1);
  if (!v4) set_int(fd_, IPPROTO_IPV6, IPV6_V6ONLY, 1);
  set_int(fd_, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_TOS : IPV6_TCLASS, plan.tos);
  // Never a fragment: the packet size was chosen to fit, and a fragment lost would cost the whole packet.
  set_int(fd_, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_MTU_DISCOVER : IPV6_MTU_DISCOVER,
          v4 ? IP_PMTUDISC_PROBE : IPV6_PMTUDISC_PROBE);
  // Without this, port-unreachable errors of the other end would not reach us.
  set_int(fd_, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_RECVERR : IPV6_RECVERR, 1);
  if (!plan.receives) {
    sock_filter drop_all{BPF_RET | BPF_K, 0, 0, 0};
    sock_fprog program{1, &drop_all};
    set(fd_, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
    return;
  }
  set_int(fd_, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_RECVTOS : IPV6_RECVTCLASS, 1);
  has_gro_ = set_int(fd_, SOL_UDP, UDP_GRO, 1);
  // Trimmed packets carry no UDP checksum, which IPv6 refuses unless set otherwise.
  constexpr int udp_no_check6_rx = 102;
  if (!v4) set_int(fd_, SOL_UDP, udp_no_check6_rx, 1);
}

bool Socket::next_error(SendError& out) const {
  alignas(cmsghdr) std::uint8_t control[512];
  out = SendError{};
  msghdr header{};
  header.msg_name = &out.to;
  header.msg_namelen = sizeof out.to;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  if (recvmsg(fd_, &header, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
    int_option(fd_, SOL_SOCKET,
               SO_ERROR);  // of a report that found no room in the queue; unread, it would wake us for ever
    return false;
  }
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c; c = CMSG_NXTHDR(&header, c)) {
    const bool v4 = c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_RECVERR;
    if (!v4 && !(c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_RECVERR)) continue;
    sock_extended_err error;
    std::memcpy(&error, CMSG_DATA(c), sizeof error);
    out.is_port_unreachable = v4 ? error.ee_origin == SO_EE_ORIGIN_ICMP && error.ee_type == ICMP_DEST_UNREACH &&
                                       error.ee_code == ICMP_PORT_UNREACH
                                 : error.ee_origin == SO_EE_ORIGIN_ICMP6 && error.ee_type == ICMP6_DST_UNREACH &&
                                       error.ee_code == ICMP6_DST_UNREACH_NOPORT;
  }
  return true;
}

std::uint32_t Socket::queued_bytes() const {
  int value = 0;
  return ioctl(fd_, SIOCOUTQ, &value) == 0 ? static_cast<std::uint32_t>(value) : 0;
}

}  // namespace softmrc::udp
