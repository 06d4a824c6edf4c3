#include "face/door.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "udp/failure.h"
#include "udp/socket.h"

namespace softmrc::face {
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
  return getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &size) == 0 ? name_of(storage) : "a visitor";
}

int new_socket(bool is_v4) { return socket(is_v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); }

}  // namespace

bool Row::lasts(std::chrono::milliseconds patience) {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_ > longest_lull) first_ = now;
  last_ = now;
  return now - first_ >= patience;
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

// Talk -------------------------------------------------------------------------------------------------------------

Talk::Talk(Descriptor socket, Exchange::Role role, const std::string& secret, const Token& token, std::unique_ptr<Party> party,
           Clock::time_point until)
    : socket_(std::move(socket)), name_(peer_of(socket_.get())), until_(until), party_(std::move(party)), exchange_(role, secret, token, *party_) {
  const int on = 1;
  setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

bool Talk::advance() {
  if (!exchange_.is_done()) read();
  const Bytes more = exchange_.take_outgoing();
  outgoing_.insert(outgoing_.end(), more.begin(), more.end());
  write();
  return exchange_.is_done() && outgoing_.empty();
}

void Talk::read() {
  std::uint8_t buffer[4096];
  while (!exchange_.is_done()) {
    const ssize_t got = recv(socket_.get(), buffer, sizeof buffer, 0);
    if (got == 0) throw HungUp("hung up during the handshake");
    if (got < 0) {
      if (udp::is_shortage(errno)) return;
      throw HungUp(std::string("is gone: ") + std::strerror(errno));
    }
    has_heard_ = true;
    exchange_.hear({buffer, static_cast<std::size_t>(got)});
  }
}

void Talk::write() {
  while (!outgoing_.empty()) {
    const ssize_t sent = send(socket_.get(), outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL);
    if (sent < 0) {
      if (udp::is_shortage(errno)) return;
      throw HungUp(std::string("is gone: ") + std::strerror(errno));
    }
    outgoing_.erase(outgoing_.begin(), outgoing_.begin() + sent);
  }
}

void Talk::end(const std::string& words) {
  outgoing_ = Exchange::farewell(words);
  try {
    write();
  } catch (const Refusal&) {
  }
}

// Door -------------------------------------------------------------------------------------------------------------

Door::Door(const wire::Address& address, bool stays_here, std::string secret, const Token& token, MakeParty make,
           std::chrono::milliseconds patience)
    : secret_(std::move(secret)), token_(token), make_(std::move(make)), patience_(patience) {
  wire::Address bound = address;
  if (!stays_here) bound = address.is_v4 ? wire::Address(wire::Ipv4{}) : wire::Address(wire::Ipv6{});
  socket_ = Descriptor(new_socket(bound.is_v4));
  udp::Destination to = udp::destination_of(bound, 0, 0);
  if (socket_.get() < 0 || bind(socket_.get(), reinterpret_cast<sockaddr*>(&to.storage), to.size) != 0 || listen(socket_.get(), 1024) != 0) {
    const int error = errno;
    const std::string words = "cannot listen on " + udp::text_of(bound) + ": " + std::strerror(error);
    if (udp::is_shortage(error)) throw udp::DeviceFailure(error, words);
    throw Refusal(words);
  }
  socklen_t size = sizeof to.storage;
  getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&to.storage), &size);
  wire::Address ignored;
  udp::source_of(to.storage, ignored, port_);
}

// Who has come stays at the door until the system has what it lacks: this is asked for again and again.
void Door::refuse_for_now(const Tell& tell, const std::string& why) {
  const auto now = Talk::Clock::now();
  if (now - said_at_ < pause_between_words) return;
  said_at_ = now;
  tell("whoever comes, for now: " + why);
}

void Door::admit(const Tell& tell) {
  for (int i = 0; i < admitted_at_once; ++i) {
    Descriptor socket(accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.get() < 0) {
      const int error = errno;
      const bool is_ours = error == EBADF || error == EINVAL || error == ENOTSOCK || error == EOPNOTSUPP;
      const std::string why = std::string("cannot take a connection in: ") + std::strerror(error);
      if (is_ours) throw Refusal(why);
      if (error == EINTR) return;
      const bool is_nobody = error == EAGAIN || error == EWOULDBLOCK || error == ECONNABORTED || error == EPROTO;
      if (is_nobody || !udp::is_shortage(error)) without_accept_ = {};
      else if (without_accept_.lasts(patience_) && visitors_.empty()) throw udp::DeviceFailure(error, why);
      if (!is_nobody) refuse_for_now(tell, why);
      return;
    }
    without_accept_ = {};
    // Of strangers, who came first has had its time; the newest may be who is waited for.
    if (visitors_.size() >= most_visitors) {
      const auto stranger = std::ranges::find_if(visitors_, [](const Talk& one) { return !one.has_proved(); });
      visitors_.erase(stranger == visitors_.end() ? visitors_.begin() : stranger);
    }
    try {
      visitors_.emplace_back(std::move(socket), Exchange::Role::listener, secret_, token_, make_(), Talk::Clock::now() + visitor_time);
    } catch (const std::exception& why) {  // of who came: the next one may find more
      refuse_for_now(tell, why.what());
    }
  }
}

std::unique_ptr<Party> Door::poll(const Tell& tell) {
  admit(tell);
  for (auto at = visitors_.begin(); at != visitors_.end();) {
    const auto visitor = at++;
    try {
      if (visitor->advance()) {
        std::unique_ptr<Party> party = visitor->take_party();
        visitors_.erase(visitor);
        without_means_ = {};
        return party;
      }
      if (!visitor->is_late()) continue;
      tell(visitor->name() + " did not finish the handshake in time");
    } catch (const std::exception& why) {
      if (udp::is_shortage(why) && !without_means_.lasts(patience_)) {  // without a word, so that it calls again
        refuse_for_now(tell, why.what());
      } else {
        visitor->end(why.what());
        tell(visitor->name() + " " + why.what());
      }
    }
    visitors_.erase(visitor);
  }
  return nullptr;
}

// Call -------------------------------------------------------------------------------------------------------------

Call::Call(std::vector<wire::Address> addresses, std::uint32_t scope_id, std::uint16_t port, std::string secret, const Token& token, MakeParty make,
           std::chrono::milliseconds patience)
    : addresses_(std::move(addresses)), scope_id_(scope_id), port_(port), secret_(std::move(secret)), token_(token), make_(std::move(make)), patience_(patience) {
  if (addresses_.empty() || port_ == 0) throw Refusal("the handle names no address");
}

void Call::dial() {
  const wire::Address& address = addresses_[at_];
  name_ = udp::text_of(address) + " port " + std::to_string(port_);
  socket_ = Descriptor(new_socket(address.is_v4));
  dialled_ = Talk::Clock::now();
  const udp::Destination to = udp::destination_of(address, port_, scope_id_);
  if (socket_.get() < 0) {
    if (!udp::is_shortage(errno)) throw Refusal(std::string("cannot make a socket: ") + std::strerror(errno));
    return next(std::string("cannot make a socket: ") + std::strerror(errno));
  }
  if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.size) != 0 && errno != EINPROGRESS && errno != EINTR) next(std::strerror(errno));
}

// The next address is tried, and the first again after the last, while there is time.
void Call::next(const std::string& why) {
  socket_ = Descriptor();
  const auto now = Talk::Clock::now();
  if (now - answered_at_ >= patience_)
    throw Refusal(name_ + " has not answered for " + std::to_string(std::chrono::duration_cast<std::chrono::seconds>(now - answered_at_).count()) +
                  " s, nor has any other address of that host (" + std::to_string(addresses_.size()) + " in all): " + why);
  at_ = (at_ + 1) % addresses_.size();
  rests_until_ = now + pause_between_tries;
}

bool Call::is_connected() {
  pollfd waits{socket_.get(), POLLOUT, 0};
  if (::poll(&waits, 1, 0) <= 0) {
    if (Talk::Clock::now() - dialled_ > patience_with_one_address) next("nothing comes back");
    return false;
  }
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) return false;
  if (error) next(std::strerror(error));
  else answered_at_ = Talk::Clock::now();
  return error == 0;
}

// In a handler: what was thrown goes on if it is no shortage, or one that has lasted too long. Else all begins again.
void Call::bear(const std::exception& why) {
  if (!udp::is_shortage(why) || short_.lasts(patience_)) throw;
  talk_.reset();
  socket_ = Descriptor();
  rests_until_ = Talk::Clock::now() + pause_between_tries;
}

std::unique_ptr<Party> Call::poll() {
  try {
    return advance();
  } catch (const std::exception& why) {
    bear(why);
    return nullptr;
  }
}

std::unique_ptr<Party> Call::advance() {
  asked_at_ = Talk::Clock::now();
  if (!talk_) {
    if (asked_at_ < rests_until_) return nullptr;
    if (!party_) party_ = make_();
    if (socket_.get() < 0) dial();
    if (socket_.get() < 0 || !is_connected()) return nullptr;
    talk_.emplace(std::move(socket_), Exchange::Role::connector, secret_, token_, std::move(party_), asked_at_ + patience_);
  }
  try {
    if (talk_->advance()) return talk_->take_party();
    if (talk_->is_late()) throw HungUp("has not looked at who calls");
    return nullptr;
  } catch (const HungUp& why) {
    // To be shut out is no answer if it goes on. Who said something, or does not look yet, may let it in later.
    if (talk_->has_heard() || talk_->is_late()) shown_out_ = {};
    else if (shown_out_.lasts(patience_)) throw Refusal(talk_->name() + " lets nobody in: " + why.what());
    answered_at_ = asked_at_;
    talk_.reset();
    next(why.what());  // it made room for others, perhaps
    return nullptr;
  } catch (const Refusal& why) {
    talk_->end(why.what());
    throw Refusal(talk_->name() + " " + why.what());
  }
}

}  // namespace softmrc::face
