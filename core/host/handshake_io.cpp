#include "host/handshake_io.h"

#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "udp/device_error.h"
#include "udp/socket.h"

namespace softmrc::host {
namespace {

// A peer whose machine is gone says nothing; TCP asks, and so the connection's end is noticed 75 s later. A network
// that is gone for a while ends it no sooner than the queue pair.
constexpr int keepalive_idle_s = 15, keepalive_interval_s = 5, keepalive_probes = 12;

void set_option(int fd, int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof value); }

bool would_block(int error) { return udp::is_transient(error) || error == EWOULDBLOCK; }

[[noreturn]] void raise_gone() { throw PeerClosed(std::string("is gone: ") + std::strerror(errno)); }

}  // namespace

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) ::close(fd_);
}

// PollSet ----------------------------------------------------------------------------------------------------------

PollSet::PollSet() : fd_(epoll_create1(EPOLL_CLOEXEC)) {
  if (fd_.get() < 0) udp::fail_with_errno("cannot make an epoll descriptor");
}

void PollSet::add(int fd, std::uint32_t events, std::uint64_t number) {
  epoll_event event{events, {.u64 = number}};
  if (epoll_ctl(fd_.get(), EPOLL_CTL_ADD, fd, &event) != 0) udp::fail_with_errno("cannot wait for a socket");
}

void PollSet::change(int fd, std::uint32_t events, std::uint64_t number) {
  epoll_event event{events, {.u64 = number}};
  if (epoll_ctl(fd_.get(), EPOLL_CTL_MOD, fd, &event) != 0) udp::fail_with_errno("cannot wait for a socket");
}

void PollSet::remove(int fd) { epoll_ctl(fd_.get(), EPOLL_CTL_DEL, fd, nullptr); }

std::vector<std::uint64_t> PollSet::ready() const {
  epoll_event events[64];
  const int count = epoll_wait(fd_.get(), events, 64, 0);
  std::vector<std::uint64_t> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(events[i].data.u64);
  return numbers;
}

// HandshakeIo ------------------------------------------------------------------------------------------------------

HandshakeIo::HandshakeIo(UniqueFd socket, Handshake::Role role, const Credentials& own)
    : socket_(std::move(socket)), handshake_(role, own) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  std::uint16_t port = 0;
  if (getpeername(fd(), reinterpret_cast<sockaddr*>(&storage), &size) == 0) {  // else it has left, as a read will tell
    udp::source_of(storage, address_, port);
    peer_ = udp::text_of(address_) + " port " + std::to_string(port);
  }
  set_option(fd(), IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd(), SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd(), IPPROTO_TCP, TCP_KEEPIDLE, keepalive_idle_s);
  set_option(fd(), IPPROTO_TCP, TCP_KEEPINTVL, keepalive_interval_s);
  set_option(fd(), IPPROTO_TCP, TCP_KEEPCNT, keepalive_probes);
}

Handshake::Event HandshakeIo::advance() {
  Handshake::Event event = handshake_.next_event();
  if (event == Handshake::Event::none && handshake_.wants_bytes()) {
    read();
    event = handshake_.next_event();
  }
  write();
  return event;
}

// No more than a frame at a time is taken from the kernel: what a peer sends out of turn stays there.
void HandshakeIo::read() {
  std::uint8_t buffer[4096];
  while (handshake_.wants_bytes()) {
    const std::size_t room = handshake_.is_authenticated() ? sizeof buffer : max_unauthenticated_frame;
    const ssize_t got = recv(fd(), buffer, room, MSG_DONTWAIT);
    if (got < 0 && would_block(errno)) return;
    if (got < 0) raise_gone();
    if (got == 0)
      throw PeerClosed(std::string("closed the connection during the handshake") +
                       (handshake_.has_heard() ? "" : "; is it something else that has this port?"));
    handshake_.on_bytes({buffer, static_cast<std::size_t>(got)});
  }
}

void HandshakeIo::write() {
  const Bytes more = handshake_.take_outgoing();
  outgoing_.insert(outgoing_.end(), more.begin(), more.end());
  while (!outgoing_.empty() && !has_ended_) {
    const ssize_t sent = send(fd(), outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && would_block(errno)) return;
    if (sent < 0) {
      has_ended_ = true;
      const int error = errno;
      read();  // the peer may have said why before it closed
      errno = error;
      raise_gone();
    }
    outgoing_.erase(outgoing_.begin(), outgoing_.begin() + sent);
  }
}

void HandshakeIo::refuse(const HandshakeRefused& why) {
  handshake_.refuse(why);
  try {
    const Bytes more = handshake_.take_outgoing();
    outgoing_.insert(outgoing_.end(), more.begin(), more.end());
    if (!has_ended_ && !outgoing_.empty()) send(fd(), outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  } catch (const std::exception&) {}  // no memory for a sentence
  outgoing_.clear();
  has_ended_ = true;
  shutdown(fd(), SHUT_WR);
}

bool HandshakeIo::has_drained() {
  std::uint8_t buffer[max_unauthenticated_frame];
  const std::size_t most = handshake_.is_authenticated() ? max_frame : 4 * max_unauthenticated_frame;
  while (drained_ < most) {
    const ssize_t got = recv(fd(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (got < 0 && would_block(errno)) return false;
    if (got <= 0) return true;
    drained_ += static_cast<std::size_t>(got);
  }
  return true;
}

std::uint32_t HandshakeIo::events() const {
  return (has_ended_ || handshake_.wants_bytes() ? EPOLLIN : 0u) | (outgoing_.empty() ? 0u : EPOLLOUT);
}

}  // namespace softmrc::host
