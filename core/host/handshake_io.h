// A handshake over one TCP socket that never blocks.
#pragma once

#include <string>

#include "host/handshake.h"
#include "wire/route.h"

namespace softmrc::host {

// An open descriptor.
class UniqueFd {
 public:
  explicit UniqueFd(int fd = -1) : fd_(fd) {}
  ~UniqueFd();
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// A set of descriptors to wait for: an epoll descriptor, which may be waited for itself.
class PollSet {
 public:
  // Throws DeviceError.
  PollSet();
  int fd() const { return fd_.get(); }
  // Readiness for `events` (EPOLLIN, EPOLLOUT) comes back with this number. Throws DeviceError.
  void add(int fd, std::uint32_t events, std::uint64_t number);
  void change(int fd, std::uint32_t events, std::uint64_t number);
  void remove(int fd);
  // The numbers of those that are ready now, some of them if there are many.
  std::vector<std::uint64_t> ready() const;
  // Nothing is ready any longer.
  void close() { fd_ = UniqueFd(); }

 private:
  UniqueFd fd_;
};

class HandshakeIo {
 public:
  HandshakeIo(UniqueFd socket, Handshake::Role role, const Credentials& own);

  // Sends and receives what it can without waiting, and says what has happened. Throws HandshakeRefused; PeerClosed
  // where the connection has ended.
  Handshake::Event advance();
  // Tells the peer why, as far as it can without waiting, and sends nothing more.
  void refuse(const HandshakeRefused& why);
  // After `refuse`: throws away what the peer has sent. True when it has closed the connection too, to close it sooner
  // could lose the refusal on its way; or when it has sent more than it may.
  bool has_drained();
  // What to wait for: EPOLLIN, EPOLLOUT or both.
  std::uint32_t events() const;
  bool is_done() const { return handshake_.is_done() && outgoing_.empty(); }

  Handshake& handshake() { return handshake_; }
  const Handshake& handshake() const { return handshake_; }
  int fd() const { return socket_.get(); }
  UniqueFd take_socket() { return std::move(socket_); }
  // "10.0.0.2 port 4711"
  const std::string& peer() const { return peer_; }
  const wire::Address& address() const { return address_; }

 private:
  void read();
  void write();

  UniqueFd socket_;
  wire::Address address_;
  std::string peer_ = "the peer";
  Handshake handshake_;
  Bytes outgoing_;
  bool has_ended_ = false;
  std::size_t drained_ = 0;
};

}  // namespace softmrc::host
