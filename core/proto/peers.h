// The nodes on the other side, and what we and they have told each other about ports. A peer is known as long as
// it has a holder: those that added it, a queue pair to it, or the TIME-WAIT state of one. Its number is then given
// to another. A change of our ports goes to every peer on every live plane and is repeated until one copy is answered.
// What a peer said of ports that are down is answered again and again while it holds: if it was out of date, that peer
// corrects it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/serial.h"
#include "base/time.h"
#include "proto/reverse_paths.h"
#include "proto/token_bucket.h"

namespace softmrc::proto {

// A port status update: its id, and the ports that it calls usable.
struct PortUpdate {
  std::uint16_t id = 0;
  std::uint32_t ports = 0;
};

// The last few updates. Ids are unique and say nothing of order, so this is how an old one is known.
class RecentUpdates {
 public:
  void add(PortUpdate update) {
    updates_[next_] = update;
    next_ = (next_ + 1) % updates_.size();
    count_ = std::min(count_ + 1, updates_.size());
  }
  bool empty() const { return count_ == 0; }
  PortUpdate* find(std::uint16_t id) {
    for (std::size_t i = 0; i < count_; ++i)
      if (updates_[i].id == id) return &updates_[i];
    return nullptr;
  }

 private:
  std::array<PortUpdate, 8> updates_{};
  std::size_t next_ = 0;
  std::size_t count_ = 0;
};

// Something that is said on every live plane, in rounds that wait twice as long each time, up to a second.
struct RepeatTimer {
  std::uint32_t ports = 0;  // planes that still want a copy in this round
  Time at = Time::never();  // of this round
  Duration interval{};      // to the next
  bool is_again = false;    // the round before was in vain: its paths may be dead, so this one takes others

  bool is_pending() const { return at != Time::never(); }
  void begin(Time first_at, Duration first_interval, std::uint32_t live_ports) {
    *this = {live_ports, first_at, first_interval};
  }
  void end_round(Time now, std::uint32_t live_ports) {
    ports = live_ports;
    is_again = true;
    at = now + interval;
    interval = std::min(interval * 2, seconds(1));
  }
};

// Copies of answers that may go to planes of a peer which it has not shown to be its own.
constexpr std::uint32_t strays_per_s = 20;

struct Peer {
  std::uint32_t refs = 0;
  std::uint32_t claims = 0;             // of these, how many added it
  std::uint32_t usable_ports = ~0u;     // as the peer reported them
  std::uint32_t validated_ports = ~0u;  // where it has answered, if that is required; see path_validation.h
  TokenBucket strays;                   // copies of answers to planes that are not validated
  RecentUpdates received;
  Serial<16> received_ticks;            // when the newest of them was sent, by the peer's clock ...
  Time received_at = Time::long_ago();  // ... and when it came
  std::uint16_t received_id = 0;        // what `usable_ports` rests on ...
  RepeatTimer reminder;                 // ... and is answered again where some are not
  RecentUpdates sent;
  Time pong_at = Time::long_ago();  // when it last answered a ping
  bool is_known = false;            // some queue pair has had it for a peer
  std::uint32_t first_qp = 0;       // slot of a queue pair to this peer, for its paths
  bool has_qp = false;
  std::uint32_t queue_pairs = 0;                 // to this peer
  std::vector<SharedReversePath> reverse_paths;  // by port; empty while one queue pair at most needs them
  std::uint32_t announced_ports = ~0u;           // of ours: as this peer was last sent
  std::uint16_t update_id = 0;
  RepeatTimer update;                     // pending until it is answered
  Time may_repeat_at = Time::long_ago();  // an update that an unknown answer may undo
  std::uint32_t rounds = 0;               // of either: each shows the key of another queue pair
  TokenBucket answers;                    // to its requests, besides what all peers share
  TokenBucket long_answers;               // likewise, of as many bytes as it likes
};

class Peers {
 public:
  // Held by the caller.
  std::uint32_t add() {
    if (free_.empty()) {
      free_.push_back(static_cast<std::uint32_t>(peers_.size()));
      peers_.emplace_back();
    }
    const std::uint32_t id = free_.back();
    free_.pop_back();
    claim(id);
    return id;
  }
  void claim(std::uint32_t id) {
    ++peers_[id].refs;
    ++peers_[id].claims;
  }
  // True when the last holder released it: it is gone.
  bool release(std::uint32_t id) {
    if (--peers_[id].refs) return false;
    peers_[id] = Peer{};
    free_.push_back(id);
    refresh();
    return true;
  }
  bool contains(std::uint32_t id) const { return id < peers_.size() && peers_[id].refs; }
  Peer& operator[](std::uint32_t id) { return peers_[id]; }
  const Peer& operator[](std::uint32_t id) const { return peers_[id]; }
  // Numbers given so far; not all of them are in use.
  std::uint32_t size() const { return static_cast<std::uint32_t>(peers_.size()); }
  std::uint32_t known() const { return static_cast<std::uint32_t>(peers_.size() - free_.size()); }

  void announce(Time now, std::uint16_t id, std::uint32_t live_ports) {
    for (Peer& peer : peers_)
      if (peer.has_qp) tell(peer, now, id, live_ports);
    refresh();
  }
  // A peer without connections missed what happened before; it is sent that when there is one.
  void announce_to(Peer& peer, Time now, std::uint16_t id, std::uint32_t live_ports) {
    tell(peer, now, id, live_ports);
    refresh();
  }
  void end_round(Peer& peer, RepeatTimer& timer, Time now, std::uint32_t live_ports) {
    ++peer.rounds;
    timer.end_round(now, live_ports);
    refresh();
  }
  // There is a new path to send it by.
  void resend_update_now(Peer& peer, Time now, std::uint32_t live_ports) {
    if (!peer.update.is_pending()) return;
    peer.update.begin(now, first_repeat, live_ports);
    refresh();
  }
  // The peer has sent something new.
  void on_update(Peer& peer, Time now, PortUpdate update, Serial<16> ticks, std::uint32_t all_ports) {
    peer.received.add(update);
    peer.received_id = update.id;
    peer.received_ticks = ticks;
    peer.received_at = now;
    peer.usable_ports = update.ports;
    if (update.ports != all_ports) peer.reminder.begin(now + first_reminder, first_reminder, all_ports);
    else peer.reminder = {};
    refresh();
  }
  // What an answer says: that the peer knows, that it may have taken old news for new, or nothing.
  enum class Answer : std::uint8_t { to_newest, to_older, to_nothing };
  Answer on_answer(Peer& peer, std::uint16_t update_id) {
    PortUpdate* update = peer.sent.find(update_id);
    if (!update) return Answer::to_nothing;
    if (update_id == peer.update_id) {
      peer.update = {};
      refresh();
    }
    if (update->ports == peer.announced_ports) return Answer::to_newest;
    update->ports = peer.announced_ports;  // its other copies are answered too, and say no more than this one
    return Answer::to_older;
  }
  // Another process may be at this address now, or the same one after it forgot us: neither side's old news holds.
  void reset(Peer& peer) {
    const Peer old = peer;
    peer = Peer{};
    peer.refs = old.refs;
    peer.claims = old.claims;
    peer.has_qp = old.has_qp;
    peer.first_qp = old.first_qp;
    peer.queue_pairs = old.queue_pairs;
    peer.announced_ports = 0;
    refresh();
  }
  // No queue pair here is connected to it.
  void stop_announcing(Peer& peer) {
    if (peer.update.is_pending()) peer.announced_ports = 0;
    peer.update = {};
    peer.reminder = {};
    refresh();
  }
  Time deadline() const { return deadline_; }

 private:
  static constexpr Duration first_repeat = microseconds(100);
  static constexpr Duration first_reminder = milliseconds(1);

  void tell(Peer& peer, Time now, std::uint16_t id, std::uint32_t live_ports) {
    peer.announced_ports = live_ports;
    peer.sent.add({id, live_ports});
    peer.update_id = id;
    peer.update.begin(now, first_repeat, live_ports);
  }

  void refresh() {
    deadline_ = Time::never();
    for (const Peer& peer : peers_) deadline_ = std::min({deadline_, peer.update.at, peer.reminder.at});
  }

  std::vector<Peer> peers_;
  std::vector<std::uint32_t> free_;
  Time deadline_ = Time::never();
};

}  // namespace softmrc::proto
