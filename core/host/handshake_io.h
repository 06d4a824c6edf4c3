// Where the exchange happens: TCP sockets that never block. A door is where connectors come to, and a call is one of
// them from its own side; both get on a little whenever they are asked. Strangers, liars and the silent cost a place
// among a bounded number of visitors, for a bounded time, and hold up nobody.
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
// So long a connector tries while nobody answers at all. Whom it calls may also be there and not look yet, because
// ranks of a job are not all equally fast: then it waits for as long as it is asked to, and calls again every so often.
constexpr std::chrono::milliseconds connect_timeout{60'000};
constexpr std::size_t max_pending_handshakes = 64;

// A row of failures, each of which comes soon after the one before.
class Row {
 public:
  // One more. Whether the row has lasted for so long.
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

// One connection on which an exchange takes place.
class HandshakeIo {
 public:
  using Clock = std::chrono::steady_clock;

  HandshakeIo(UniqueFd socket, Handshake::Role role, const std::string& secret, const Token& token,
              std::unique_ptr<HandshakeDelegate> delegate, Clock::time_point until);
  // True once it is done and all is sent. Throws HostError.
  bool advance();
  // Shows the other side out, with a word.
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
  // Who comes in is given one of these.
  using MakeDelegate = std::function<std::unique_ptr<HandshakeDelegate>()>;
  using OnRejected = std::function<void(const std::string&)>;

  // On loopback if `is_loopback_only`, else on every address. Throws HostError, and DeviceError where the system is
  // short of something.
  HandshakeListener(const wire::Address& address, bool is_loopback_only, std::string secret, const Token& token,
                    MakeDelegate make, std::chrono::milliseconds patience = connect_timeout);
  std::uint16_t port() const { return port_; }
  // The delegate of a connector that has come through, if there is one; `tell` hears of those that were turned away.
  // While the system is short of something, whoever comes has to come again; once it has been for longer than a
  // connector waits, who comes is told so. Throws HostError, and DeviceError where nobody could be let in for as long.
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
  Row without_accept_, without_means_;  // shortages in which nobody can be let in; in which who is in gets no further
  HandshakeIo::Clock::time_point rejected_at_{};  // that nobody can be taken in
};

// A connector's way in: it tries one address after another, and again where it was shown out, while there is time.
class HandshakeConnector {
 public:
  using MakeDelegate = HandshakeListener::MakeDelegate;

  HandshakeConnector(std::vector<wire::Address> addresses, std::uint32_t scope_id, std::uint16_t port,
                     std::string secret, const Token& token, MakeDelegate make,
                     std::chrono::milliseconds patience = connect_timeout);
  // The delegate once it is through; null while it is not, also while the system is short of something. Throws when it
  // will never be: HostError, or what there is too little of for longer than it waits.
  std::unique_ptr<HandshakeDelegate> poll();
  // Nobody asks for it any longer.
  bool is_abandoned() const { return HandshakeIo::Clock::now() > asked_at_ + 2 * patience_; }

 private:
  std::unique_ptr<HandshakeDelegate> advance();
  void bear(const std::exception& why);
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
  std::unique_ptr<HandshakeDelegate> delegate_;  // of the next talk
  UniqueFd socket_;
  std::optional<HandshakeIo> io_;
  std::chrono::milliseconds patience_;
  HandshakeIo::Clock::time_point asked_at_ = HandshakeIo::Clock::now();
  HandshakeIo::Clock::time_point answered_at_ = HandshakeIo::Clock::now();  // by somebody's TCP
  HandshakeIo::Clock::time_point dialled_{};
  HandshakeIo::Clock::time_point rests_until_{};
  Row short_, shown_out_;  // shortages here; who was called hung up before it had said anything
};

}  // namespace softmrc::host
