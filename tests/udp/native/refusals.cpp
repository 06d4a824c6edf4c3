// Loaded in front of the C library: calls that the system refuses for as long as it is told to. Whoever loads it sets
// the variables below; each call counts how often it was refused.
#include <dlfcn.h>
#include <pthread.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace {

// A message that the kernel is to cut into packets.
bool is_train(const msghdr& header) {
  constexpr int udp_level = 17, udp_segment = 103;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c; c = CMSG_NXTHDR(const_cast<msghdr*>(&header), c))
    if (c->cmsg_level == udp_level && c->cmsg_type == udp_segment) return true;
  return false;
}

template <typename F>
F* next(const char* name, F*) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

std::atomic<int> refuse_threads{0}, threads_refused{0};
std::atomic<int> refuse_trains{0}, trains_refused{0}, trains_sent{0};

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) noexcept {
  static auto* const real = next("pthread_create", &pthread_create);
  if (!refuse_threads) return real(thread, attributes, start, argument);
  ++threads_refused;
  return EAGAIN;
}

int sendmmsg(int socket, mmsghdr* messages, unsigned count, int flags) {
  static auto* const real = next("sendmmsg", &sendmmsg);
  unsigned trains = 0;
  for (unsigned i = 0; i < count; ++i) {
    if (!is_train(messages[i].msg_hdr)) continue;
    ++trains;
    if (!refuse_trains) continue;
    if (i > 0) return real(socket, messages, i, flags);
    ++trains_refused;
    errno = EINVAL;
    return -1;
  }
  const int sent = real(socket, messages, count, flags);
  if (sent > 0 && trains) ++trains_sent;
  return sent;
}

}  // extern "C"
