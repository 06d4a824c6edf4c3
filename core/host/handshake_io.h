// The handshake over TCP sockets that never block. The listener accepts connectors; both make progress whenever they
// are polled. Connections that are not authenticated take one of a bounded number of slots, for a bounded time, and do
// not delay others.
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/handshake.h"
#include "wire/route.h"

namespace softmrc::host {

constexpr std::chrono::seconds handshake_timeout{10};
// How long a connector tries while nothing answers at all. A peer whose TCP answers but which does not poll yet,
// because ranks of a job are not equally fast, is waited for as long as this end is polled, with a new connection now
// and then.
constexpr std::chrono::milliseconds connect_timeout{60'000};
constexpr std::size_t max_pending_handshakes = 64;

// Failures that follow each other closely.
class FailureStreak {
 public:
  // Counts one more; true if they have lasted for so long.
  bool lasts(std::chrono::milliseconds patience);

 private:
  std::chrono::steady_clock::time_point first_{}, last_{};
};

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

 private:
  int fd_;
};

// One TCP connection with its handshake.
class HandshakeIo {
 public:
  using Clock = std::chrono::steady_clock;

  HandshakeIo(UniqueFd socket, Handshake::Role role, const std::string& secret, const Token& token,
              std::unique_ptr<HandshakeDelegate> delegate, Clock::time_point until);
  // True once it is done and all is sent. Throws HostError.
  bool advance();
  // Sends an error frame and ends the connection.
  void end(const std::string& words);
  bool is_late() const { return Clock::now() >= until_ && !is_authenticated(); }
  bool is_authenticated() const { return handshake_.is_authenticated(); }
  bool has_heard() const { return has_heard_; }
  const std::string& name() const { return name_; }
  std::unique_ptr<HandshakeDelegate> take_delegate() { return std::move(delegate_); }

 private:
  void read();
  void write();

  UniqueFd socket_;
  std::string name_;
  Clock::time_point until_;
  std::unique_ptr<HandshakeDelegate> delegate_;
  Handshake handshake_;
  Bytes outgoing_;
  bool has_heard_ = false;
};

class HandshakeListener {
 public:
  // Makes the delegate of each accepted connection.
  using MakeDelegate = std::function<std::unique_ptr<HandshakeDelegate>()>;
  using OnRejected = std::function<void(const std::string&)>;

  // On loopback if `is_loopback_only`, else on every address. Throws HostError, and DeviceError where the system is
  // short of something.
  HandshakeListener(const wire::Address& address, bool is_loopback_only, std::string secret, const Token& token,
                    MakeDelegate make, std::chrono::milliseconds patience = connect_timeout);
  std::uint16_t port() const { return port_; }
  // The delegate of a connector whose handshake is complete, if there is one; `tell` is called for those that were
  // rejected. While the system is short of something, connectors have to retry; once that has lasted for longer than a
  // connector waits, they are sent an error. Throws HostError, and DeviceError where nothing was accepted for as long.
  std::unique_ptr<HandshakeDelegate> poll(const OnRejected& tell);

 private:
  void admit(const OnRejected& tell);
  void reject_for_now(const OnRejected& tell, const std::string& why);

  std::string secret_;
  Token token_;
  MakeDelegate make_;
  UniqueFd socket_;
  std::uint16_t port_ = 0;
  std::list<HandshakeIo> pending_;
  std::chrono::milliseconds patience_;
  FailureStreak without_accept_,
      without_means_;  // shortages in which accept fails; in which accepted ones make no progress
  HandshakeIo::Clock::time_point rejected_at_{};  // when a connector was last sent an error for that
};

// A connector: it tries one address after another, and again where it was rejected, until the timeout.
class HandshakeConnector {
 public:
  using MakeDelegate = HandshakeListener::MakeDelegate;

  HandshakeConnector(std::vector<wire::Address> addresses, std::uint32_t scope_id, std::uint16_t port,
                     std::string secret, const Token& token, MakeDelegate make,
                     std::chrono::milliseconds patience = connect_timeout);
  // The delegate once the handshake is complete; null before, also while the system is short of something. Throws when
  // it has failed: HostError, or the system's error that has lasted for longer than it waits.
  std::unique_ptr<HandshakeDelegate> poll();
  // It has not been polled for a long time.
  bool is_abandoned() const { return HandshakeIo::Clock::now() > asked_at_ + 2 * patience_; }

 private:
  std::unique_ptr<HandshakeDelegate> advance();
  void retry_or_throw(const std::exception& why);
  void dial();
  bool is_connected();
  void next(const std::string& why);

  std::vector<wire::Address> addresses_;
  std::uint32_t scope_id_;
  std::uint16_t port_;
  std::string secret_;
  Token token_;
  MakeDelegate make_;
  std::size_t at_ = 0;
  std::string name_;
  std::unique_ptr<HandshakeDelegate> delegate_;  // of the next connection
  UniqueFd socket_;
  std::optional<HandshakeIo> io_;
  std::chrono::milliseconds patience_;
  HandshakeIo::Clock::time_point asked_at_ = HandshakeIo::Clock::now();
  HandshakeIo::Clock::time_point answered_at_ = HandshakeIo::Clock::now();  // by the TCP of any address
  HandshakeIo::Clock::time_point dialled_{};
  HandshakeIo::Clock::time_point rests_until_{};
  FailureStreak short_, closed_early_;  // shortages here; connections that the peer closed before it had sent anything
};

}  // namespace softmrc::host
