// Watches the TCP connections over which queue pairs were set up. After the handshake they carry nothing but their end,
// which says that the peer closed its queue pair or that its process ended.
//
// An on-path attacker can end a TCP connection. Where the ends have authenticated each other, only an authenticated
// goodbye counts; anything else makes the state unconfirmed, and the peer is then pinged, under the keys of the queue
// pair where packets are encrypted, until it has not answered several times in a row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/time.h"

namespace softmrc::udp {

// As its bootstrap connection tells.
enum class PeerState : std::uint8_t { present, unconfirmed, gone };

class BootstrapWatch {
 public:
  BootstrapWatch() = default;
  ~BootstrapWatch() { clear(); }
  BootstrapWatch(const BootstrapWatch&) = delete;
  BootstrapWatch& operator=(const BootstrapWatch&) = delete;

  // Throws DeviceError.
  void open();
  // Readable while a socket has something to read; negative before `open`.
  int fd() const { return epoll_fd_; }

  // The descriptor stays the caller's, who removes the queue pair before closing it; where it was closed earlier, its
  // number may be another socket's, which is not touched. `goodbye` is what the peer sends last where it has
  // authenticated itself, else empty; `received` is what came with the last bytes of the handshake. `cqs` are those
  // whose waiters are to be notified. Throws DeviceError.
  void add(Time now, std::uint32_t qpn, int fd, std::string goodbye, std::string received,
           std::vector<std::uint32_t> cqs);
  void remove(std::uint32_t qpn);
  void clear();
  bool is_empty() const { return entries_.empty(); }

  // Reads what has come. Adds the completion queues of those whose peers turned out to be gone.
  void read(Time now, std::vector<std::uint32_t>& cqs);
  // As of the last `read`. Of a queue pair that is not watched nothing is known: its peer is present.
  PeerState state(std::uint32_t qpn) const;
  bool has_unconfirmed() const;
  std::vector<std::uint32_t> gone() const;

  Time deadline() const { return first_due_; }
  // Asks `last_heard(qpn)` when a peer that is unconfirmed was last heard, and calls `ping(qpn)` or finds it
  // gone. Calls `give_up(qpn)` once for each peer that has been gone for so long that it acknowledges nothing more.
  // Adds completion queues as `read` does.
  template <typename LastHeard, typename Ping, typename GiveUp>
  void handle_timeout(Time now, LastHeard last_heard, Ping ping, GiveUp give_up, std::vector<std::uint32_t>& cqs) {
    first_due_ = Time::never();
    for (auto& [qpn, entry] : entries_) {
      if (entry.due <= now && entry.state == PeerState::gone) {
        entry.due = Time::never();
        give_up(qpn);
      } else if (entry.due <= now) {
        if (entry.pinged_at) entry.unanswered = last_heard(qpn) < *entry.pinged_at ? entry.unanswered + 1 : 0;
        if (entry.unanswered < max_unanswered) ping(qpn);
        else cqs.insert(cqs.end(), entry.cqs.begin(), entry.cqs.end());
        entry.state = entry.unanswered < max_unanswered ? PeerState::unconfirmed : PeerState::gone;
        entry.pinged_at = now;
        entry.due = now + (entry.state == PeerState::gone ? grace : ping_interval);
      }
      first_due_ = std::min(first_due_, entry.due);
    }
  }

 private:
  static constexpr Duration ping_interval = milliseconds(250);
  static constexpr std::uint32_t max_unanswered = 5;
  // A peer that closes goes on acknowledging what it took for a while.
  static constexpr Duration grace = seconds(1);

  struct Entry {
    int fd = -1;
    std::uint64_t inode = 0;
    std::string goodbye;
    std::string received;
    std::vector<std::uint32_t> cqs;
    PeerState state = PeerState::present;
    Time due = Time::never();  // the next ping, or the end of the grace
    std::optional<Time> pinged_at;
    std::uint32_t unanswered = 0;
  };

  static PeerState judge(const Entry& entry);
  void stop_reading(Entry& entry);
  void receive(Entry& entry, Time now);

  int epoll_fd_ = -1;
  std::map<std::uint32_t, Entry> entries_;  // by number of the queue pair
  Time first_due_ = Time::never();          // or earlier
};

}  // namespace softmrc::udp
