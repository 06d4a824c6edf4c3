#include "udp/kernel_compat.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441  // on every architecture
#endif

namespace softmrc::udp {
namespace {

// Called by number: glibc has a name for it since 2.35 only, and a program that asks for the name does not start on
// older ones.
int epoll_pwait2_by_number(int epoll_fd, std::span<epoll_event> events, const timespec* span) {
  return static_cast<int>(
      syscall(SYS_epoll_pwait2, epoll_fd, events.data(), static_cast<int>(events.size()), span, nullptr, 0));
}

// Linux has it since 5.11. Before that it is unknown, and what a container's filter does not know it may call
// forbidden.
bool has_epoll_pwait2() {
  epoll_event none{};
  const timespec span{};
  return epoll_pwait2_by_number(-1, {&none, 1}, &span) < 0 && errno == EBADF;
}

}  // namespace

int epoll_wait_for(int epoll_fd, std::span<epoll_event> events, Duration timeout) {
  static const bool is_new = has_epoll_pwait2();
  const timespec span{timeout.ps / 1'000'000'000'000, timeout.ps % 1'000'000'000'000 / 1'000};
  if (timeout.ps > 0 && is_new) return std::max(0, epoll_pwait2_by_number(epoll_fd, events, &span));
  if (timeout.ps > 0) {
    // epoll_wait knows only milliseconds; but the set is a descriptor that can itself be waited for.
    pollfd set{epoll_fd, POLLIN, 0};
    if (ppoll(&set, 1, &span, nullptr) <= 0) return 0;
  }
  return std::max(0, epoll_wait(epoll_fd, events.data(), static_cast<int>(events.size()), 0));
}

}  // namespace softmrc::udp
