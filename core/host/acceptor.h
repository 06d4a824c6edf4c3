// The side that is called. It never waits: `poll` takes what has come for any of its listening sockets and handshakes.
//
// A client that is not authenticated costs a socket and a little memory, for a limited time. Of such clients there is a
// limited number in a process, and from one address: the oldest is dropped when another comes, never the newest, so
// silent clients keep no other client out. As many again may be authenticated and not yet connected. Connections have a
// separate limit.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "host/admission.h"
#include "host/handshake_io.h"

namespace softmrc::host {

// The handshakes and accepted connections of all acceptors of a process.
class AcceptorRegistry {
 public:
  Admission::Counts counts() const;

  // Around a fork: what is being done to acceptors is done first, and a child closes its copies.
  void before_fork() { mutex_.lock(); }
  void after_fork(bool is_child);

 private:
  friend class Acceptor;
  friend class AcceptedSlot;

  mutable std::mutex mutex_;  // also of what acceptors know of their handshakes
  std::set<Acceptor*> acceptors_;
  Admission admission_;
};

// One accepted connection, as long as it lives.
class AcceptedSlot {
 public:
  explicit AcceptedSlot(std::shared_ptr<AcceptorRegistry> registry) : registry_(std::move(registry)) {}
  ~AcceptedSlot();
  AcceptedSlot(const AcceptedSlot&) = delete;
  AcceptedSlot& operator=(const AcceptedSlot&) = delete;

 private:
  friend class Acceptor;

  std::shared_ptr<AcceptorRegistry> registry_;
  std::string origin_;  // empty: it counts as none yet
};

class Acceptor {
 public:
  using Clock = std::chrono::steady_clock;

  struct Event {
    enum class Kind : std::uint8_t {
      identified,  // by its key, in `content`: `allow` it or `refuse` it
      offered,     // `content` is its offer: `answer` or `refuse`
      ready,       // it found that `mtu` gets through: `finish`
      finished,    // it is connected: `take` it
      ended,       // it was refused after it had been identified, or had made an offer: what was made for it can go
      refused      // a client was refused: `words` say which and why
    };
    Kind kind;
    std::uint64_t id = 0;
    std::uint32_t mtu = 0;
    Bytes content = {};
    std::string words = {};
    bool is_busy = false;  // it may try again
  };

  // Clients that were refused, counted before the refusal is sent.
  struct Refusals {
    std::uint64_t count = 0;
    std::uint64_t busy = 0;           // of these, may try again
    std::deque<std::string> reasons;  // the last ones, oldest first
  };

  // What remains of a handshake that has finished.
  struct Accepted {
    UniqueFd socket;
    std::string peer;
    Bytes goodbye, goodbye_of_peer, rest;
    std::unique_ptr<AcceptedSlot> slot;
  };

  // Throws DeviceError.
  Acceptor(std::vector<UniqueFd> listening, const Credentials& own, AcceptorLimits limits,
           std::shared_ptr<AcceptorRegistry> registry);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  // Readable when there is something to do.
  int fd() const { return waits_.fd(); }
  // When there is something to do though nothing comes; the end of time if never.
  Clock::time_point due() const;
  // Throws HostError where a listening socket has failed for good.
  std::vector<Event> poll();
  // Since when descriptors or memory have been short; the end of time if they are not.
  Clock::time_point short_since() const { return short_since_; }

  // Of one that is in the last events. Each may find that it is gone: then nothing happens, and `ended` comes.
  void allow(std::uint64_t id);
  void answer(std::uint64_t id, std::span<const std::uint8_t> offer);
  void finish(std::uint64_t id, bool is_narrowed);
  void refuse(std::uint64_t id, const HandshakeRefused& why);
  // Null where it is gone. One that has offered something stays until the next `poll` or `refuse`.
  const Handshake* handshake(std::uint64_t id) const;
  std::string peer(std::uint64_t id) const;
  std::optional<Accepted> take(std::uint64_t id);
  std::size_t pending() const;
  Refusals refusals() const;
  // Counts one more: a client that could not be served for a reason of this side.
  void count_refusal(const std::string& why);

  // Refuses every pending handshake with a reason, and accepts no more clients.
  void close();
  // In a forked child, whose descriptors are copies: without a word to anybody.
  void close_after_fork();

 private:
  friend class AcceptorRegistry;

  struct Pending {
    Pending(UniqueFd socket, const Credentials& own) : io(std::move(socket), Handshake::Role::listener, own) {}
    HandshakeIo io;
    Clock::time_point until;
    bool is_known = false;    // to the application
    bool is_refused = false;  // and stays until it has read why
    bool is_finished = false;
    std::uint32_t events = 0;  // that are waited for
  };
  using Table = std::map<std::uint64_t, Pending>;  // in the order in which they came

  void admit(UniqueFd& listening);
  void admit_one(UniqueFd socket);
  void attend(std::uint64_t id);
  void advance(Table::iterator at);
  void expire();
  Admission& admission() const { return registry_->admission_; }
  Admission::Key key(std::uint64_t id) { return {this, id}; }
  void make_way_for(std::uint64_t newest);
  bool drop_oldest(bool is_authenticated);
  bool drop(const Admission::Key& one);
  void end(Table::iterator at, const HandshakeRefused& why, bool at_once);
  void erase(Table::iterator at);
  void report(std::string words, bool is_busy);
  void pause_listening();
  void resume_listening();
  void try_listening();

  const Credentials own_;
  const AcceptorLimits limits_;
  const std::shared_ptr<AcceptorRegistry> registry_;
  PollSet waits_;
  UniqueFd wake_;  // readable when another acceptor has dropped a handshake of this one
  std::vector<UniqueFd> listening_;
  Table pending_;
  std::vector<Event> events_;
  Refusals refusals_;
  std::uint64_t next_id_ = 1 << 10;  // numbers below are those of listening sockets
  Clock::time_point resumes_at_ = Clock::time_point::max();
  Clock::time_point short_since_ = Clock::time_point::max();
};

}  // namespace softmrc::host
