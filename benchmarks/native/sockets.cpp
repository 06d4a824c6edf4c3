#include "sockets.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <chrono>
#include <vector>

namespace softmrc::benchmarks {
namespace {

constexpr std::uint32_t batch = 64;
struct Batch {
  std::vector<std::uint8_t> memory;
  std::vector<iovec> pieces = std::vector<iovec>(batch);
  std::vector<mmsghdr> messages = std::vector<mmsghdr>(batch);

  explicit Batch(std::size_t bytes) : memory(batch * bytes) {
    for (std::size_t i = 0; i < batch; ++i) {
      pieces[i] = {memory.data() + i * bytes, bytes};
      messages[i] = mmsghdr{};
      messages[i].msg_hdr.msg_iov = &pieces[i];
      messages[i].msg_hdr.msg_iovlen = 1;
    }
  }
};

// Seconds since it was made.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count(); }

 private:
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

bool is_ready(int fd, short what, int timeout_ms) {
  pollfd p{fd, what, 0};
  return poll(&p, 1, timeout_ms) > 0;
}

}  // namespace

std::uint64_t send(int fd, std::uint32_t message_bytes, double seconds) {
  Batch b(message_bytes);
  const Stopwatch watch;
  std::uint64_t sent = 0;
  while (watch.seconds() < seconds) {
    const int count = sendmmsg(fd, b.messages.data(), batch, MSG_DONTWAIT);
    if (count > 0) sent += static_cast<std::uint64_t>(count) * message_bytes;
    else is_ready(fd, POLLOUT, 10);
  }
  return sent;
}

void flood(const std::vector<int>& fds, const std::vector<std::vector<std::uint8_t>>& payloads, double per_s,
           double seconds) {
  const Stopwatch watch;
  std::uint64_t sent = 0;
  while (!fds.empty() && !payloads.empty()) {
    const double elapsed = watch.seconds();
    if (elapsed >= seconds) return;
    for (const auto due = static_cast<std::uint64_t>(elapsed * per_s); sent < due; ++sent) {
      const auto& payload = payloads[sent % payloads.size()];
      [[maybe_unused]] const ssize_t done = ::send(fds[sent % fds.size()], payload.data(), payload.size(),
                                                   MSG_DONTWAIT);
    }
    const timespec nap{0, 500'000};
    nanosleep(&nap, nullptr);
  }
}

double receive(int fd, std::uint32_t message_bytes, double seconds) {
  Batch b(message_bytes);
  const Stopwatch watch;
  std::uint64_t received = 0;
  double first = 0, last = 0;
  while (watch.seconds() < seconds) {
    const int count = recvmmsg(fd, b.messages.data(), batch, MSG_DONTWAIT, nullptr);
    if (count <= 0) {
      if (!is_ready(fd, POLLIN, received ? 100 : 2'000)) break;
      continue;
    }
    last = watch.seconds();
    if (received == 0) first = last;
    for (int i = 0; i < count; ++i) received += b.messages[static_cast<std::size_t>(i)].msg_len;
  }
  const double span = last - first;
  return span > 0 ? static_cast<double>(received) / span : 0;
}

}  // namespace softmrc::benchmarks
