#include "host/connector.h"

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "udp/device_error.h"
#include "udp/socket.h"

namespace softmrc::host {
namespace {

constexpr std::uint64_t of_handshake = 0;  // other numbers are of attempts

const sockaddr* raw(const udp::Destination& to) { return reinterpret_cast<const sockaddr*>(&to.storage); }

}  // namespace

Connector::Connector(std::vector<DialCandidate> ways, const Credentials& own)
    : own_(own), left_(std::make_move_iterator(ways.begin()), std::make_move_iterator(ways.end())) {
  if (left_.empty()) throw HostError("there is no address to connect to");
}

const std::string& Connector::peer() const {
  static const std::string unknown = "the peer";
  return io_ ? io_->peer() : unknown;
}

wire::Address Connector::local_address() const {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  wire::Address address;
  std::uint16_t port = 0;
  if (io_ && getsockname(io_->fd(), reinterpret_cast<sockaddr*>(&storage), &size) == 0)
    udp::source_of(storage, address, port);
  return address;
}

Handshake::Event Connector::poll() {
  if (!io_) dial();
  if (!io_) return Handshake::Event::none;
  const Handshake::Event event = io_->advance();
  if (const std::uint32_t events = io_->events(); events != events_) {
    waits_.change(io_->fd(), events, of_handshake);
    events_ = events;
  }
  return event;
}

void Connector::refuse(const HandshakeRefused& why) {
  if (io_) io_->refuse(why);
}

// A socket that is closed leaves the set by itself only where no forked child has a copy.
void Connector::drop_attempts() {
  for (const auto& [number, attempt] : trying_) waits_.remove(attempt.socket.get());
  trying_.clear();
  left_.clear();
}

void Connector::close() {
  drop_attempts();
  if (io_) waits_.remove(io_->fd());
  io_.reset();
}

void Connector::close_after_fork() {
  waits_.close();
  trying_.clear();
  left_.clear();
  io_.reset();
}

UniqueFd Connector::take_socket() {
  waits_.remove(connected().fd());
  return io_->take_socket();
}

// A refusal says more than silence.
void Connector::note(int error) {
  if (error_ == 0 || error == ECONNREFUSED) error_ = error;
}

void Connector::dial() {
  for (const std::uint64_t number : waits_.ready()) {
    settle(number);
    if (io_) return;
  }
  while (!left_.empty() && Clock::now() >= next_at_) {
    const DialCandidate way = std::move(left_.front());
    left_.pop_front();
    begin(way);
  }
  if (left_.empty() && trying_.empty()) throw NotReached(error_, std::strerror(error_));
}

void Connector::begin(const DialCandidate& way) {
  UniqueFd made(socket(way.address.is_v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (made.get() < 0) {
    if (udp::is_transient(errno)) udp::fail_with_errno("cannot make a socket");
    return note(errno);
  }
  if (!way.interface.empty())  // before Linux 5.7 that took root; the source may do
    setsockopt(made.get(), SOL_SOCKET, SO_BINDTODEVICE, way.interface.data(),
               static_cast<socklen_t>(way.interface.size()));
  if (way.source) {
    const int on = 1;
    if (!way.source->is_v4) setsockopt(made.get(), IPPROTO_IPV6, IPV6_FREEBIND, &on, sizeof on);
    const udp::Destination from = udp::destination_of(*way.source, 0, way.scope_id);
    if (bind(made.get(), raw(from), from.size) != 0) return note(errno);
  }
  const udp::Destination to = udp::destination_of(way.address, way.port, way.scope_id);
  if (connect(made.get(), raw(to), to.size) != 0 && errno != EINPROGRESS && errno != EINTR) return note(errno);
  const std::uint64_t number = next_number_++;
  waits_.add(made.get(), EPOLLOUT, number);
  trying_.emplace(number, Attempt{std::move(made), way});
  next_at_ = Clock::now() + head_start;
}

// The way that has an answer: it is taken, or all ways to an address that refuses are given up.
void Connector::settle(std::uint64_t number) {
  const auto at = trying_.find(number);
  if (at == trying_.end()) return;
  Attempt attempt = std::move(at->second);
  trying_.erase(at);
  waits_.remove(attempt.socket.get());
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(attempt.socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error == 0) {
    drop_attempts();
    io_.emplace(std::move(attempt.socket), Handshake::Role::connector, own_);
    events_ = io_->events() | EPOLLOUT;
    waits_.add(io_->fd(), events_, of_handshake);
    return;
  }
  note(error);
  next_at_ = Clock::time_point::min();
  if (error == ECONNREFUSED)
    std::erase_if(left_, [&](const DialCandidate& other) {
      return other.address == attempt.way.address && other.port == attempt.way.port;
    });
}

}  // namespace softmrc::host
