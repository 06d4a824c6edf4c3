// How a connection of NCCL comes about: NCCL calls `connect` and `accept` repeatedly, and they must not wait.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "host/acceptor.h"
#include "host/connector.h"
#include "nccl/party.h"

namespace softmrc::nccl {

// How long a connector tries while nothing answers at all, and how long a shortage is borne. A peer whose TCP answers
// but which does not poll yet, because ranks of a job are not equally fast, is waited for as long as this end is
// polled, with a new connection now and then. One that only refuses, and proves nothing, is given up after as long.
constexpr std::chrono::milliseconds connect_timeout{60'000};

// Failures that follow each other closely.
class FailureStreak {
 public:
  // Counts one more; true if they have lasted for so long.
  bool lasts(std::chrono::milliseconds patience);

 private:
  std::chrono::steady_clock::time_point first_{}, last_{};
};

class CommListener {
 public:
  using MakeParty = std::function<std::unique_ptr<Party>()>;
  using Log = std::function<void(const std::string&)>;

  CommListener(std::vector<host::UniqueFd> listening, const host::Credentials& own,
               std::shared_ptr<host::AcceptorRegistry> registry, host::AcceptorLimits limits, MakeParty make,
               std::chrono::milliseconds patience = connect_timeout);
  // The party of a connector that has come through, if there is one; `log` gets the refusals. While
  // the system is short of something, connectors may retry; once that has lasted for longer than a
  // connector waits, that it failed. Throws HostError, and DeviceError where no client was accepted for as long.
  std::unique_ptr<Party> poll(const Log& log);

 private:
  void handle(host::Acceptor::Event& event, const Log& log);
  void answer(const host::Acceptor::Event& event);

  host::Acceptor acceptor_;
  MakeParty make_;
  std::map<std::uint64_t, std::unique_ptr<Party>> pending_;
  std::deque<std::unique_ptr<Party>> accepted_;
  std::chrono::milliseconds patience_;
  FailureStreak short_;
  bool is_short_logged_ = false;
};

class CommConnector {
 public:
  using Clock = std::chrono::steady_clock;
  using MakeParty = CommListener::MakeParty;

  CommConnector(std::vector<host::DialCandidate> ways, const host::Credentials& own, MakeParty make,
                std::chrono::milliseconds patience = connect_timeout);
  // The party, once it is connected. Throws HostError; DeviceError where a shortage here lasts.
  std::unique_ptr<Party> poll();
  // In a forked child: its copies of sockets.
  void close_after_fork() {
    if (connector_) connector_->close_after_fork();
  }
  // It has not been polled for a long time.
  bool is_abandoned() const { return Clock::now() > polled_at_ + 2 * patience_; }

 private:
  std::unique_ptr<Party> advance();
  void try_again();

  const std::vector<host::DialCandidate> ways_;
  const host::Credentials own_;
  const MakeParty make_;
  const std::chrono::milliseconds patience_;
  std::unique_ptr<Party> party_;  // of the next connection
  std::unique_ptr<host::Connector> connector_;
  Clock::time_point polled_at_ = Clock::now();
  Clock::time_point answered_at_ = Clock::now();  // by the TCP of any address
  Clock::time_point began_{};                     // this try
  Clock::time_point rests_until_{};
  // Shortages here; connections that the peer closed before it had sent anything; refusals without proof that the peer
  // knows the secret.
  FailureStreak short_, closed_early_, unproved_;
};

}  // namespace softmrc::nccl
