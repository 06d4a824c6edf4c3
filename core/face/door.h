// Where the exchange happens: TCP sockets that never block. A door is where connectors come to, and a call is one of them
// from its own side; both get on a little whenever they are asked. Strangers, liars and the silent cost a place among a
// bounded number of visitors, for a bounded time, and hold up nobody.
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "face/exchange.h"
#include "wire/route.h"

namespace softmrc::face {

constexpr std::chrono::seconds visitor_time{10};
// So long a connector tries while nobody answers at all. Whom it calls may also be there and not look yet, because ranks of
// a job are not all equally fast: then it waits for as long as it is asked to, and calls again every so often.
constexpr std::chrono::milliseconds caller_patience{60'000};
constexpr std::size_t most_visitors = 64;

// A row of failures, each of which comes soon after the one before.
class Row {
 public:
  // One more. Whether the row has lasted for so long.
  bool lasts(std::chrono::milliseconds patience);

 private:
  std::chrono::steady_clock::time_point first_{}, last_{};
};

// An open descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

// One connection on which an exchange takes place.
class Talk {
 public:
  using Clock = std::chrono::steady_clock;

  Talk(Descriptor socket, Exchange::Role role, const std::string& secret, const Token& token, std::unique_ptr<Party> party,
       Clock::time_point until);
  // True once it is done and all is sent. Throws Refusal.
  bool advance();
  // Shows the other side out, with a word.
  void end(const std::string& words);
  bool is_late() const { return Clock::now() >= until_ && !has_proved(); }
  bool has_proved() const { return exchange_.has_proved(); }
  bool has_heard() const { return has_heard_; }
  const std::string& name() const { return name_; }
  std::unique_ptr<Party> take_party() { return std::move(party_); }

 private:
  void read();
  void write();

  Descriptor socket_;
  std::string name_;
  Clock::time_point until_;
  std::unique_ptr<Party> party_;
  Exchange exchange_;
  Bytes outgoing_;
  bool has_heard_ = false;
};

class Door {
 public:
  // Who comes in is given one of these.
  using MakeParty = std::function<std::unique_ptr<Party>()>;
  using Tell = std::function<void(const std::string&)>;

  // On loopback if `stays_here`, else on every address. Throws Refusal, and DeviceFailure where the system is short of
  // something.
  Door(const wire::Address& address, bool stays_here, std::string secret, const Token& token, MakeParty make,
       std::chrono::milliseconds patience = caller_patience);
  std::uint16_t port() const { return port_; }
  // The party of a connector that has come through, if there is one; `tell` hears of those that were turned away.
  // While the system is short of something, whoever comes has to come again; once it has been for longer than a connector
  // waits, who comes is told so. Throws Refusal, and DeviceFailure where nobody could be let in for as long.
  std::unique_ptr<Party> poll(const Tell& tell);

 private:
  void admit(const Tell& tell);
  void refuse_for_now(const Tell& tell, const std::string& why);

  std::string secret_;
  Token token_;
  MakeParty make_;
  Descriptor socket_;
  std::uint16_t port_ = 0;
  std::list<Talk> visitors_;
  std::chrono::milliseconds patience_;
  Row without_accept_, without_means_;  // shortages in which nobody can be let in; in which who is in gets no further
  Talk::Clock::time_point said_at_{};  // that nobody can be taken in
};

// A connector's way in: it tries one address after another, and again where it was shown out, while there is time.
class Call {
 public:
  using MakeParty = Door::MakeParty;

  Call(std::vector<wire::Address> addresses, std::uint32_t scope_id, std::uint16_t port, std::string secret, const Token& token, MakeParty make,
       std::chrono::milliseconds patience = caller_patience);
  // The party once it is through; null while it is not, also while the system is short of something. Throws when it will
  // never be: Refusal, or what there is too little of for longer than it waits.
  std::unique_ptr<Party> poll();
  // Nobody asks for it any longer.
  bool is_forgotten() const { return Talk::Clock::now() > asked_at_ + 2 * patience_; }

 private:
  std::unique_ptr<Party> advance();
  void bear(const std::exception& why);
  void dial();
  bool is_connected();
  void next(const std::string& why);

  std::vector<wire::Address> addresses_;
  std::uint32_t scope_id_;
  std::uint16_t port_;
  std::string secret_;
  Token token_;
  MakeParty make_;
  std::size_t at_ = 0;
  std::string name_;
  std::unique_ptr<Party> party_;  // of the next talk
  Descriptor socket_;
  std::optional<Talk> talk_;
  std::chrono::milliseconds patience_;
  Talk::Clock::time_point asked_at_ = Talk::Clock::now();
  Talk::Clock::time_point answered_at_ = Talk::Clock::now();  // by somebody's TCP
  Talk::Clock::time_point dialled_{};
  Talk::Clock::time_point rests_until_{};
  Row short_, shown_out_;  // shortages here; who was called hung up before it had said anything
};

}  // namespace softmrc::face
