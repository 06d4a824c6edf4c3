// What newer kernels and C libraries offer, and what to do where they do not. Everything else in this folder is content
// with Linux 4.18 and glibc 2.28.
#pragma once

#include <netinet/udp.h>
#include <sys/epoll.h>

#include <span>

#include "base/time.h"

// Kernels had these before every library's headers did.
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace softmrc::udp {

// The events of an epoll set, for which it waits at most so long, to the nanosecond. Returns how many there are; a
// signal, like the end of the wait, is none.
int epoll_wait_for(int epoll_fd, std::span<epoll_event> events, Duration timeout);

}  // namespace softmrc::udp
