// The side that calls. It never waits: `poll` does what can be done now. TCP takes one path, and whichever cable is
// dead, some other way is not: the ways are tried side by side, and the first that answers carries the handshake.
#pragma once

#include <chrono>
#include <deque>
#include <map>

#include "host/handshake_io.h"

namespace softmrc::host {

// Where to, and from where: an address of this side, an interface, or whatever the routes say.
struct DialCandidate {
  wire::Address address;
  std::uint16_t port = 0;
  std::uint32_t scope_id = 0;
  std::optional<wire::Address> source = {};
  std::string interface = {};

  bool operator==(const DialCandidate&) const = default;
};

// No way leads to the peer: the `errno` of a refusal, or of the first failure.
struct NotReached : PeerClosed {
  NotReached(int error_number, const std::string& why) : PeerClosed(why), code(error_number) {}
  int code;
};

class Connector {
 public:
  using Clock = std::chrono::steady_clock;
  // How long each path is tried alone before the next one starts in parallel, so that a dead path costs little time.
  static constexpr std::chrono::milliseconds head_start{100};

  // Throws HostError and DeviceError.
  Connector(std::vector<DialCandidate> ways, const Credentials& own);

  // Readable when there is something to do.
  int fd() const { return waits_.fd(); }
  // When there is something to do though nothing comes; the end of time if never.
  Clock::time_point due() const { return io_ || left_.empty() ? Clock::time_point::max() : next_at_; }
  // What has happened. Throws HandshakeRefused; NotReached where no way answers; PeerClosed where the peer hung up.
  Handshake::Event poll();

  // TCP is connected.
  bool is_connected() const { return io_.has_value(); }
  const std::string& peer() const;
  // This side's address, once it is connected.
  wire::Address local_address() const;
  // This and what follows throw HostError where it is not connected, or was closed.
  Handshake& handshake() { return connected().handshake(); }
  const Handshake& handshake() const { return const_cast<Connector*>(this)->handshake(); }
  // Tells the peer why this side ends it.
  void refuse(const HandshakeRefused& why);
  // Everything is sent, and the handshake is done.
  bool is_done() const { return io_ && io_->is_done(); }
  UniqueFd take_socket();
  void close();
  // In a forked child: closes the copies, and leaves the parent's set of descriptors as it is.
  void close_after_fork();

 private:
  struct Attempt {
    UniqueFd socket;
    DialCandidate way;
  };

  HandshakeIo& connected() {
    if (!io_) throw HostError("the connection is closed");
    return *io_;
  }
  void dial();
  void begin(const DialCandidate& way);
  void settle(std::uint64_t number);
  void note(int error);
  void drop_attempts();

  const Credentials own_;
  PollSet waits_;
  std::deque<DialCandidate> left_;
  std::map<std::uint64_t, Attempt> trying_;
  std::uint64_t next_number_ = 1;
  Clock::time_point next_at_ = Clock::time_point::min();
  int error_ = 0;  // the first, or a refusal
  std::optional<HandshakeIo> io_;
  std::uint32_t events_ = 0;
};

}  // namespace softmrc::host
