// Descriptors that are readable while there may be something to take: for callers that wait in poll or epoll.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

#include "udp/device_error.h"

namespace softmrc::udp {

// Throws DeviceError.
inline int new_event_fd(bool is_readable) {
  const int fd = eventfd(is_readable, EFD_NONBLOCK | EFD_CLOEXEC);
  if (fd < 0) fail_with_errno("cannot make a descriptor to wait for");
  return fd;
}

// Below 0: there is none.
inline void make_readable(int fd) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = fd < 0 ? 0 : write(fd, &one, sizeof one);
}

inline void make_unreadable(int fd) {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = fd < 0 ? 0 : read(fd, &count, sizeof count);
}

}  // namespace softmrc::udp
