#include "host/handshake_io.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "udp/device_error.h"
#include "udp/socket.h"

namespace softmrc::host {
namespace {

constexpr auto patience_with_one_address = std::chrono::milliseconds(1'000);
constexpr auto pause_between_tries = std::chrono::milliseconds(50);
constexpr auto longest_lull = std::chrono::seconds(10);  // in a row: a connector may have tried its other addresses
constexpr auto pause_between_words = std::chrono::seconds(1);
constexpr int admitted_at_once = 16;

std::string name_of(const sockaddr_storage& storage) {
  wire::Address address;
  std::uint16_t port = 0;
  udp::source_of(storage, address, port);
  return udp::text_of(address) + " port " + std::to_string(port);
}

std::string peer_of(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  return getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &size) == 0 ? name_of(storage) : "an unknown address";
}

int new_socket(bool is_v4) { return socket(is_v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); }

}  // namespace

bool FailureStreak::lasts(std::chrono::milliseconds patience) {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_ > longest_lull) first_ = now;
  last_ = now;
  return now - first_ >= patience;
}

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) ::close(fd_);
}

// HandshakeIo
// -------------------------------------------------------------------------------------------------------------

HandshakeIo::HandshakeIo(UniqueFd socket, Handshake::Role role, const std::string& secret, const Token& token,
                         std::unique_ptr<HandshakeDelegate> delegate, Clock::time_point until)
    : socket_(std::move(socket)),
      name_(peer_of(socket_.get())),
      until_(until),
      delegate_(std::move(delegate)),
      handshake_(role, secret, token, *delegate_) {
  const int on = 1;
  setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

bool HandshakeIo::advance() {
  if (!handshake_.is_done()) read();
  const Bytes more = handshake_.take_outgoing();
  outgoing_.insert(outgoing_.end(), more.begin(), more.end());
  write();
  return handshake_.is_done() && outgoing_.empty();
}

void HandshakeIo::read() {
  std::uint8_t buffer[4096];
  while (!handshake_.is_done()) {
    const ssize_t got = recv(socket_.get(), buffer, sizeof buffer, 0);
    if (got == 0) throw PeerClosed("hung up during the handshake");
    if (got < 0) {
      if (udp::is_transient(errno)) return;
      throw PeerClosed(std::string("is gone: ") + std::strerror(errno));
    }
    has_heard_ = true;
    handshake_.on_bytes({buffer, static_cast<std::size_t>(got)});
  }
}

void HandshakeIo::write() {
  while (!outgoing_.empty()) {
    const ssize_t sent = send(socket_.get(), outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL);
    if (sent < 0) {
      if (udp::is_transient(errno)) return;
      throw PeerClosed(std::string("is gone: ") + std::strerror(errno));
    }
    outgoing_.erase(outgoing_.begin(), outgoing_.begin() + sent);
  }
}

void HandshakeIo::end(const std::string& words) {
  outgoing_ = Handshake::error_frame(words);
  try {
    write();
  } catch (const HostError&) {}
}

// HandshakeListener
// -------------------------------------------------------------------------------------------------------------

HandshakeListener::HandshakeListener(const wire::Address& address, bool is_loopback_only, std::string secret,
                                     const Token& token, MakeDelegate make, std::chrono::milliseconds patience)
    : secret_(std::move(secret)), token_(token), make_(std::move(make)), patience_(patience) {
  wire::Address bound = address;
  if (!is_loopback_only) bound = address.is_v4 ? wire::Address(wire::Ipv4{}) : wire::Address(wire::Ipv6{});
  socket_ = UniqueFd(new_socket(bound.is_v4));
  udp::Destination to = udp::destination_of(bound, 0, 0);
  if (socket_.get() < 0 || bind(socket_.get(), reinterpret_cast<sockaddr*>(&to.storage), to.size) != 0 ||
      listen(socket_.get(), 1024) != 0) {
    const int error = errno;
    const std::string words = "cannot listen on " + udp::text_of(bound) + ": " + std::strerror(error);
    if (udp::is_transient(error)) throw udp::DeviceError(error, words);
    throw HostError(words);
  }
  socklen_t size = sizeof to.storage;
  getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&to.storage), &size);
  wire::Address ignored;
  udp::source_of(to.storage, ignored, port_);
}

// Connections stay in the backlog until the system has what it lacks: this is called again and again.
void HandshakeListener::reject_for_now(const OnRejected& tell, const std::string& why) {
  const auto now = HandshakeIo::Clock::now();
  if (now - rejected_at_ < pause_between_words) return;
  rejected_at_ = now;
  tell("connections wait: " + why);
}

void HandshakeListener::admit(const OnRejected& tell) {
  for (int i = 0; i < admitted_at_once; ++i) {
    UniqueFd socket(accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.get() < 0) {
      const int error = errno;
      const bool is_ours = error == EBADF || error == EINVAL || error == ENOTSOCK || error == EOPNOTSUPP;
      const std::string why = std::string("cannot take a connection in: ") + std::strerror(error);
      if (is_ours) throw HostError(why);
      if (error == EINTR) return;
      const bool is_none_waiting = error == EAGAIN || error == EWOULDBLOCK || error == ECONNABORTED || error == EPROTO;
      if (is_none_waiting || !udp::is_transient(error)) without_accept_ = {};
      else if (without_accept_.lasts(patience_) && pending_.empty()) throw udp::DeviceError(error, why);
      if (!is_none_waiting) reject_for_now(tell, why);
      return;
    }
    without_accept_ = {};
    // Of the unauthenticated the oldest goes: it has had its time, and the newest may be the one that is expected.
    if (pending_.size() >= max_pending_handshakes) {
      const auto oldest = std::ranges::find_if(pending_,
                                               [](const HandshakeIo& one) { return !one.is_authenticated(); });
      pending_.erase(oldest == pending_.end() ? pending_.begin() : oldest);
    }
    try {
      pending_.emplace_back(std::move(socket), Handshake::Role::listener, secret_, token_, make_(),
                            HandshakeIo::Clock::now() + handshake_timeout);
    } catch (const std::exception& why) {  // of who came: the next one may find more
      reject_for_now(tell, why.what());
    }
  }
}

std::unique_ptr<HandshakeDelegate> HandshakeListener::poll(const OnRejected& tell) {
  admit(tell);
  for (auto at = pending_.begin(); at != pending_.end();) {
    const auto pending = at++;
    try {
      if (pending->advance()) {
        std::unique_ptr<HandshakeDelegate> delegate = pending->take_delegate();
        pending_.erase(pending);
        without_means_ = {};
        return delegate;
      }
      if (!pending->is_late()) continue;
      tell(pending->name() + " did not finish the handshake in time");
    } catch (const std::exception& why) {
      if (udp::is_transient(why) && !without_means_.lasts(patience_)) {  // without a word, so that it calls again
        reject_for_now(tell, why.what());
      } else {
        pending->end(why.what());
        tell(pending->name() + " " + why.what());
      }
    }
    pending_.erase(pending);
  }
  return nullptr;
}

// HandshakeConnector
// -------------------------------------------------------------------------------------------------------------

HandshakeConnector::HandshakeConnector(std::vector<wire::Address> addresses, std::uint32_t scope_id, std::uint16_t port,
                                       std::string secret, const Token& token, MakeDelegate make,
                                       std::chrono::milliseconds patience)
    : addresses_(std::move(addresses)),
      scope_id_(scope_id),
      port_(port),
      secret_(std::move(secret)),
      token_(token),
      make_(std::move(make)),
      patience_(patience) {
  if (addresses_.empty() || port_ == 0) throw HostError("the handle names no address");
}

void HandshakeConnector::dial() {
  const wire::Address& address = addresses_[at_];
  name_ = udp::text_of(address) + " port " + std::to_string(port_);
  socket_ = UniqueFd(new_socket(address.is_v4));
  dialled_ = HandshakeIo::Clock::now();
  const udp::Destination to = udp::destination_of(address, port_, scope_id_);
  if (socket_.get() < 0) {
    if (!udp::is_transient(errno)) throw HostError(std::string("cannot make a socket: ") + std::strerror(errno));
    return next(std::string("cannot make a socket: ") + std::strerror(errno));
  }
  if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.size) != 0 && errno != EINPROGRESS &&
      errno != EINTR)
    next(std::strerror(errno));
}

// The next address is tried, and the first again after the last, while there is time.
void HandshakeConnector::next(const std::string& why) {
  socket_ = UniqueFd();
  const auto now = HandshakeIo::Clock::now();
  if (now - answered_at_ >= patience_)
    throw HostError(name_ + " has not answered for " +
                    std::to_string(std::chrono::duration_cast<std::chrono::seconds>(now - answered_at_).count()) +
                    " s, nor has any other address of that host (" + std::to_string(addresses_.size()) +
                    " in all): " + why);
  at_ = (at_ + 1) % addresses_.size();
  rests_until_ = now + pause_between_tries;
}

bool HandshakeConnector::is_connected() {
  pollfd waits{socket_.get(), POLLOUT, 0};
  if (::poll(&waits, 1, 0) <= 0) {
    if (HandshakeIo::Clock::now() - dialled_ > patience_with_one_address) next("nothing comes back");
    return false;
  }
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) return false;
  if (error) next(std::strerror(error));
  else answered_at_ = HandshakeIo::Clock::now();
  return error == 0;
}

// In a handler: what was thrown goes on if it is no shortage, or one that has lasted too long. Else all begins again.
void HandshakeConnector::retry_or_throw(const std::exception& why) {
  if (!udp::is_transient(why) || short_.lasts(patience_)) throw;
  io_.reset();
  socket_ = UniqueFd();
  rests_until_ = HandshakeIo::Clock::now() + pause_between_tries;
}

std::unique_ptr<HandshakeDelegate> HandshakeConnector::poll() {
  try {
    return advance();
  } catch (const std::exception& why) {
    retry_or_throw(why);
    return nullptr;
  }
}

std::unique_ptr<HandshakeDelegate> HandshakeConnector::advance() {
  asked_at_ = HandshakeIo::Clock::now();
  if (!io_) {
    if (asked_at_ < rests_until_) return nullptr;
    if (!delegate_) delegate_ = make_();
    if (socket_.get() < 0) dial();
    if (socket_.get() < 0 || !is_connected()) return nullptr;
    io_.emplace(std::move(socket_), Handshake::Role::connector, secret_, token_, std::move(delegate_),
                asked_at_ + patience_);
  }
  try {
    if (io_->advance()) return io_->take_delegate();
    if (io_->is_late()) throw PeerClosed("did not answer");
    return nullptr;
  } catch (const PeerClosed& why) {
    // A peer that only closes connections is given up in time. One that has sent something, or does not poll yet, may
    // accept a later connection.
    if (io_->has_heard() || io_->is_late()) closed_early_ = {};
    else if (closed_early_.lasts(patience_)) throw HostError(io_->name() + " keeps closing connections: " + why.what());
    answered_at_ = asked_at_;
    io_.reset();
    next(why.what());  // it made room for others, perhaps
    return nullptr;
  } catch (const HostError& why) {
    io_->end(why.what());
    throw HostError(io_->name() + " " + why.what());
  }
}

}  // namespace softmrc::host
