// Loaded in front of the C library: system calls that fail as often as configured. Each call of the table may
// be refused in every thread or in those of one name, the first time or after so many that go well, once or until it is
// allowed again; and it counts how often that happened. A program that cannot ask this library sets REFUSE to
// "call:errno:thread:skip:times", and REFUSED_REPORT to a file where the numbers are written when it ends.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#define REFUSABLE_CALLS(X) \
  X(accept4)               \
  X(access)                \
  X(bind)                  \
  X(chmod)                 \
  X(connect)               \
  X(epoll_create1)         \
  X(epoll_ctl)             \
  X(epoll_pwait2)          \
  X(epoll_wait)            \
  X(eventfd)               \
  X(fallocate)             \
  X(fcntl)                 \
  X(fstat)                 \
  X(getifaddrs)            \
  X(getpeername)           \
  X(getrandom)             \
  X(getsockname)           \
  X(getsockopt)            \
  X(if_indextoname)        \
  X(if_nametoindex)        \
  X(ioctl)                 \
  X(listen)                \
  X(lstat)                 \
  X(memfd_create)          \
  X(mkdir)                 \
  X(mmap)                  \
  X(open)                  \
  X(opendir)               \
  X(poll)                  \
  X(ppoll)                 \
  X(pthread_create)        \
  X(read)                  \
  X(recv)                  \
  X(recvmmsg)              \
  X(recvmsg)               \
  X(send)                  \
  X(sendmmsg)              \
  X(setsockopt)            \
  X(socket)                \
  X(stat)                  \
  X(train)                 \
  X(unlink)                \
  X(write)

namespace {

enum Number {
#define AS_NUMBER(name) number_##name,
  REFUSABLE_CALLS(AS_NUMBER)
#undef AS_NUMBER
      count_of_calls
};

const char* const names[] = {
#define AS_NAME(name) #name,
    REFUSABLE_CALLS(AS_NAME)
#undef AS_NAME
};

struct Call {
  std::atomic<int> left{0};  // how often it is refused yet; negative: until it is allowed
  std::atomic<int> refused{0};
  std::atomic<int> passed{0};  // of those that the rule is about
  int error = 0, skip = 0;
  char thread[16] = "";
};

Call calls[count_of_calls];
std::mutex deciding;

Call* find(const char* name) {
  for (int i = 0; i < count_of_calls; ++i)
    if (std::strcmp(names[i], name) == 0) return &calls[i];
  return nullptr;
}

// The errno, or 0 where it is let through.
int refusal_of(Number number) {
  Call& call = calls[number];
  if (call.left == 0) return 0;
  const std::lock_guard lock(deciding);
  if (call.left == 0) return 0;
  if (call.thread[0]) {
    char name[16] = "";
    prctl(PR_GET_NAME, name);
    if (std::strcmp(name, call.thread) != 0) return 0;
  }
  if (call.passed < call.skip) {
    ++call.passed;
    return 0;
  }
  if (call.left > 0) --call.left;
  ++call.refused;
  return call.error;
}

template <typename F>
F* next(const char* name, F*) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

// A message that the kernel is to cut into packets.
bool is_train(const msghdr& header) {
  constexpr int udp_level = 17, udp_segment = 103;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c; c = CMSG_NXTHDR(const_cast<msghdr*>(&header), c))
    if (c->cmsg_level == udp_level && c->cmsg_type == udp_segment) return true;
  return false;
}

std::atomic<int> trains{0};

}  // namespace

extern "C" {

int refuse(const char* name, int error, const char* thread, int skip, int times) {
  Call* const call = find(name);
  if (!call) return -1;
  const std::lock_guard lock(deciding);
  call->error = error;
  call->skip = skip;
  call->passed = call->refused = 0;
  std::strncpy(call->thread, thread, sizeof call->thread - 1);
  call->left = times;
  return 0;
}

// Returns how often it was refused.
int allow(const char* name) {
  Call* const call = find(name);
  if (!call) return -1;
  const std::lock_guard lock(deciding);
  call->left = 0;
  return call->refused;
}

int times_refused(const char* name) {
  const Call* const call = find(name);
  return call ? call->refused.load() : -1;
}

int trains_sent() { return trains; }

const char* refusable(int number) { return number < count_of_calls ? names[number] : nullptr; }

__attribute__((constructor)) static void read_environment() {
  const char* const told = std::getenv("REFUSE");
  if (!told) return;
  char name[32] = "", thread[16] = "";
  int error = 0, skip = 0, times = 0;
  if (std::sscanf(told, "%31[^:]:%d:%15[^:]:%d:%d", name, &error, thread, &skip, &times) == 5)
    refuse(name, error, std::strcmp(thread, "*") == 0 ? "" : thread, skip, times);
}

__attribute__((destructor)) static void report() {
  const char* const path = std::getenv("REFUSED_REPORT");
  FILE* const file = path ? std::fopen(path, "a") : nullptr;
  if (!file) return;
  for (int i = 0; i < count_of_calls; ++i)
    if (calls[i].refused) std::fprintf(file, "%s %d\n", names[i], calls[i].refused.load());
  std::fclose(file);
}

// A call that says -1 and errno when it is refused.
#define REFUSABLE(type, name, refused, parameters, ...)                              \
  type name parameters {                                                             \
    static auto* const real = next(#name, static_cast<type(*) parameters>(nullptr)); \
    if (const int error = refusal_of(number_##name)) {                               \
      errno = error;                                                                 \
      return refused;                                                                \
    }                                                                                \
    return real(__VA_ARGS__);                                                        \
  }

REFUSABLE(int, accept4, -1, (int fd, sockaddr* address, socklen_t* size, int flags), fd, address, size, flags)
REFUSABLE(int, access, -1, (const char* path, int mode) noexcept, path, mode)
REFUSABLE(int, bind, -1, (int fd, const sockaddr* address, socklen_t size) noexcept, fd, address, size)
REFUSABLE(int, chmod, -1, (const char* path, mode_t mode) noexcept, path, mode)
REFUSABLE(int, connect, -1, (int fd, const sockaddr* address, socklen_t size), fd, address, size)
REFUSABLE(int, epoll_create1, -1, (int flags) noexcept, flags)
REFUSABLE(int, epoll_ctl, -1, (int set, int what, int fd, epoll_event* event) noexcept, set, what, fd, event)
REFUSABLE(int, epoll_wait, -1, (int set, epoll_event* events, int most, int timeout), set, events, most, timeout)
REFUSABLE(int, eventfd, -1, (unsigned value, int flags) noexcept, value, flags)
REFUSABLE(int, fallocate, -1, (int fd, int mode, off_t at, off_t size), fd, mode, at, size)
REFUSABLE(int, getifaddrs, -1, (ifaddrs * *first) noexcept, first)
REFUSABLE(int, getpeername, -1, (int fd, sockaddr* address, socklen_t* size) noexcept, fd, address, size)
REFUSABLE(ssize_t, getrandom, -1, (void* data, size_t size, unsigned flags), data, size, flags)
REFUSABLE(int, getsockname, -1, (int fd, sockaddr* address, socklen_t* size) noexcept, fd, address, size)
REFUSABLE(int, getsockopt, -1, (int fd, int level, int option, void* value, socklen_t* size) noexcept, fd, level,
          option, value, size)
REFUSABLE(char*, if_indextoname, nullptr, (unsigned index, char* name) noexcept, index, name)
REFUSABLE(unsigned, if_nametoindex, 0, (const char* name) noexcept, name)
REFUSABLE(int, listen, -1, (int fd, int backlog) noexcept, fd, backlog)
REFUSABLE(int, lstat, -1, (const char* path, struct stat* found) noexcept, path, found)
REFUSABLE(int, stat, -1, (const char* path, struct stat* found) noexcept, path, found)
REFUSABLE(int, fstat, -1, (int fd, struct stat* found) noexcept, fd, found)
REFUSABLE(int, memfd_create, -1, (const char* name, unsigned flags) noexcept, name, flags)
REFUSABLE(int, mkdir, -1, (const char* path, mode_t mode) noexcept, path, mode)
REFUSABLE(void*, mmap, MAP_FAILED, (void* at, size_t size, int protection, int flags, int fd, off_t offset) noexcept,
          at, size, protection, flags, fd, offset)
REFUSABLE(DIR*, opendir, nullptr, (const char* path), path)
REFUSABLE(int, poll, -1, (pollfd * set, nfds_t count, int timeout), set, count, timeout)
REFUSABLE(int, ppoll, -1, (pollfd * set, nfds_t count, const timespec* timeout, const sigset_t* mask), set, count,
          timeout, mask)
REFUSABLE(ssize_t, read, -1, (int fd, void* data, size_t size), fd, data, size)
REFUSABLE(ssize_t, recv, -1, (int fd, void* data, size_t size, int flags), fd, data, size, flags)
REFUSABLE(int, recvmmsg, -1, (int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout), fd, messages,
          count, flags, timeout)
REFUSABLE(ssize_t, recvmsg, -1, (int fd, msghdr* message, int flags), fd, message, flags)
REFUSABLE(ssize_t, send, -1, (int fd, const void* data, size_t size, int flags), fd, data, size, flags)
REFUSABLE(int, setsockopt, -1, (int fd, int level, int option, const void* value, socklen_t size) noexcept, fd, level,
          option, value, size)
REFUSABLE(int, socket, -1, (int domain, int type, int protocol) noexcept, domain, type, protocol)
REFUSABLE(int, unlink, -1, (const char* path) noexcept, path)
REFUSABLE(ssize_t, write, -1, (int fd, const void* data, size_t size), fd, data, size)

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) noexcept {
  static auto* const real = next("pthread_create", &pthread_create);
  const int error = refusal_of(number_pthread_create);
  return error ? error : real(thread, attributes, start, argument);
}

int fcntl(int fd, int what, ...) {
  static auto* const real = next("fcntl", &fcntl);
  va_list more;
  va_start(more, what);
  void* const argument = va_arg(more, void*);
  va_end(more);
  if (const int error = refusal_of(number_fcntl)) {
    errno = error;
    return -1;
  }
  return real(fd, what, argument);
}

int ioctl(int fd, unsigned long request, ...) noexcept {
  static auto* const real = next("ioctl", &ioctl);
  va_list more;
  va_start(more, request);
  void* const argument = va_arg(more, void*);
  va_end(more);
  if (const int error = refusal_of(number_ioctl)) {
    errno = error;
    return -1;
  }
  return real(fd, request, argument);
}

int open(const char* path, int flags, ...) {
  static auto* const real = next("open", &open);
  va_list more;
  va_start(more, flags);
  const mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0;
  va_end(more);
  if (const int error = refusal_of(number_open)) {
    errno = error;
    return -1;
  }
  return real(path, flags, mode);
}

// The driver makes one call by its number.
long syscall(long number, ...) noexcept {
  static auto* const real = next("syscall", &syscall);
  constexpr long number_of_epoll_pwait2 = 441;
  va_list more;
  va_start(more, number);
  long a[6];
  for (long& one : a) one = va_arg(more, long);
  va_end(more);
  const int error = number == number_of_epoll_pwait2 ? refusal_of(number_epoll_pwait2) : 0;
  if (error) {
    errno = error;
    return -1;
  }
  return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

// "train" refuses messages that the kernel is to cut, and lets the others before them through.
int sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  static auto* const real = next("sendmmsg", &sendmmsg);
  int error = refusal_of(number_sendmmsg);
  bool has_train = false;
  for (unsigned i = 0; i < count && !error; ++i) {
    if (!is_train(messages[i].msg_hdr)) continue;
    if (i > 0 && calls[number_train].left) return real(fd, messages, i, flags);
    error = refusal_of(number_train);
    has_train = true;
  }
  if (error) {
    errno = error;
    return -1;
  }
  const int sent = real(fd, messages, count, flags);
  if (sent > 0 && has_train) ++trains;
  return sent;
}

}  // extern "C"
