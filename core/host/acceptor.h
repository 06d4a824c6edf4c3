// The side that is called. It never waits: `poll` takes what has come for any of its listening sockets and handshakes.
//
// A client that is not authenticated costs a socket and a little memory, for a limited time. Of such clients there is a
// limited number in a process, and from one address: the oldest is dropped when another comes, never the newest, so
// clients that fall silent keep nobody out. Of those that are authenticated and not yet connected there are as many
// again, and connections have a limit of their own.
#pragma once

#include <chrono>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "host/handshake_io.h"
#include "host/settings.h"

namespace softmrc::host {

struct AcceptorLimits {
  std::chrono::milliseconds handshake{10'000};  // for all of one, from the first byte to the last
  std::uint32_t pending = 256;                  // handshakes of those who are not authenticated; as many of others
  std::uint32_t pending_per_address = 64;       // likewise
  std::uint32_t connections = 8192;             // that were accepted and are not closed
  std::uint32_t connections_per_address = 2048;
};

AcceptorLimits limits_of(const DeviceSettings& settings);

class Acceptor;

// The handshakes and accepted connections of all acceptors of a process.
class AcceptorRegistry {
 public:
  struct Counts {
    std::size_t pending = 0, authenticated = 0, connections = 0;
  };
  Counts counts() const;

  // Around a fork: what is being done to acceptors is done first, and a child closes its copies.
  void before_fork() { mutex_.lock(); }
  void after_fork(bool is_child);

 private:
  friend class Acceptor;
  friend class AcceptedSlot;

  mutable std::mutex mutex_;  // also of what acceptors know of their handshakes
  std::set<Acceptor*> acceptors_;
  std::map<std::string, std::uint32_t> connections_;  // by address
};

// One accepted connection, as long as it lives.
class AcceptedSlot {
 public:
  AcceptedSlot(std::shared_ptr<AcceptorRegistry> registry, std::string origin);
  ~AcceptedSlot();
  AcceptedSlot(const AcceptedSlot&) = delete;
  AcceptedSlot& operator=(const AcceptedSlot&) = delete;

 private:
  std::shared_ptr<AcceptorRegistry> registry_;
  std::string origin_;
};

// TCP sockets that listen at the same port of these addresses; at the first of them without fail. Throws HostError, and
// DeviceError where the system is short of something.
std::vector<UniqueFd> listen_at(const std::vector<wire::Address>& addresses, std::uint32_t scope_id,
                                std::uint16_t& port);

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
      refused      // somebody was turned away: `words` say who and why
    };
    Kind kind;
    std::uint64_t id = 0;
    std::uint32_t mtu = 0;
    Bytes content = {};
    std::string words = {};
    bool is_busy = false;  // it was told to try again
  };

  // Clients that were turned away, counted before they are told.
  struct Refusals {
    std::uint64_t count = 0;
    std::uint64_t busy = 0;           // of these, told to try again
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
  Acceptor(std::vector<UniqueFd> listening, Credentials own, AcceptorLimits limits,
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

  // Tells everybody whose handshake is under way, and receives nobody any longer.
  void close();
  // In a forked child, whose descriptors are copies: without a word to anybody.
  void close_after_fork();

 private:
  friend class AcceptorRegistry;

  struct Pending {
    Pending(UniqueFd socket, const Credentials& own) : io(std::move(socket), Handshake::Role::listener, own) {}
    HandshakeIo io;
    std::string origin;
    Clock::time_point since, until;  // of this step; of the handshake
    bool is_known = false;           // the application has been told of it
    bool is_offered = false;         // it has made an offer
    bool is_ready = false;           // it takes itself for connected
    bool is_refused = false;         // and stays until it has heard why
    bool is_finished = false;
    std::uint32_t events = 0;  // that are waited for
  };
  using Table = std::map<std::uint64_t, Pending>;  // in the order in which they came

  void admit(UniqueFd& listening);
  void admit_one(UniqueFd socket);
  void attend(std::uint64_t id);
  void advance(Table::iterator at);
  void expire();
  void make_room(const Table::value_type& newest);
  bool evict_oldest(bool is_offered, const std::string* origin = nullptr, std::uint64_t newest = 0);
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
  std::vector<UniqueFd> listening_;
  Table pending_;
  std::vector<Event> events_;
  Refusals refusals_;
  std::uint64_t next_id_ = 1 << 10;  // numbers below are those of listening sockets
  Clock::time_point resumes_at_ = Clock::time_point::max();
  Clock::time_point short_since_ = Clock::time_point::max();
};

}  // namespace softmrc::host
