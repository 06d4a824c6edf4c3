// The nodes on the other side, and what we and they have told each other about ports. A peer is known as long as somebody
// holds it: whoever added it, a queue pair to it, or the last word of one. Its number is then given to another.
// A change of our ports goes to every peer on every live plane and is repeated until one copy is answered.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/serial.h"
#include "base/time.h"
#include "proto/allowance.h"

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

// Copies of answers that may go to planes of a peer which it has not shown to be its own.
constexpr std::uint32_t strays_per_s = 20;

struct Peer {
  std::uint32_t holders = 0;
  std::uint32_t claims = 0;          // of these, how many added it
  std::uint32_t usable_ports = ~0u;  // as the peer reported them
  std::uint32_t proven_ports = ~0u;  // where it has answered, if that is asked for; see proofs.h
  Allowance strays;                  // answers that go where neither a proof nor the question came from
  RecentUpdates heard;
  Serial<16> heard_ticks;            // when the newest of them was sent, by the peer's clock ...
  Time heard_at = Time::long_ago();  // ... and when it came
  RecentUpdates said;
  bool is_known = false;             // some queue pair has had it for a peer
  std::uint32_t first_qp = 0;        // slot of a queue pair to this peer, for its paths
  bool has_qp = false;
  std::uint32_t told_ports = ~0u;    // of ours: what this peer was last told
  // The port status update under way.
  bool update_pending = false;
  std::uint16_t update_id = 0;
  std::uint32_t update_ports = 0;    // planes that still want a copy in this round
  Time update_at = Time::never();
  Duration update_interval{};
  Time may_repeat_at = Time::long_ago();  // what an unknown answer puts in doubt
  std::uint32_t rounds = 0;          // of updates: each shows the key of another queue pair
  Allowance answers;                 // to its requests, besides what all peers share
};

class Peers {
 public:
  // Held by whoever adds it.
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
    ++peers_[id].holders;
    ++peers_[id].claims;
  }
  // True when nobody holds it any longer: it is gone.
  bool release(std::uint32_t id) {
    if (--peers_[id].holders) return false;
    peers_[id] = Peer{};
    free_.push_back(id);
    refresh();
    return true;
  }
  bool contains(std::uint32_t id) const { return id < peers_.size() && peers_[id].holders; }
  Peer& operator[](std::uint32_t id) { return peers_[id]; }
  const Peer& operator[](std::uint32_t id) const { return peers_[id]; }
  // Numbers given so far; not all of them are somebody's.
  std::uint32_t size() const { return static_cast<std::uint32_t>(peers_.size()); }
  std::uint32_t known() const { return static_cast<std::uint32_t>(peers_.size() - free_.size()); }

  void announce(Time now, std::uint16_t id, std::uint32_t live_ports) {
    for (Peer& peer : peers_)
      if (peer.has_qp) tell(peer, now, id, live_ports);
    refresh();
  }
  // A peer that we had no business with missed what happened before; it is told when there is some.
  void announce_to(Peer& peer, Time now, std::uint16_t id, std::uint32_t live_ports) {
    tell(peer, now, id, live_ports);
    refresh();
  }
  // A round is over: the next one waits twice as long, up to a second.
  void repeat(Peer& peer, Time now, std::uint32_t live_ports) {
    ++peer.rounds;
    peer.update_ports = live_ports;
    peer.update_at = now + peer.update_interval;
    peer.update_interval = std::min(peer.update_interval * 2, seconds(1));
    refresh();
  }
  // There is a new way to say it.
  void hurry_update(Peer& peer, Time now, std::uint32_t live_ports) {
    if (!peer.update_pending) return;
    peer.update_ports = live_ports;
    peer.update_at = now;
    peer.update_interval = first_repeat;
    refresh();
  }
  // What an answer says: that the peer knows, that it may have taken old news for new, or nothing.
  enum class Answer : std::uint8_t { to_newest, to_older, to_nothing };
  Answer on_answer(Peer& peer, std::uint16_t update_id) {
    PortUpdate* update = peer.said.find(update_id);
    if (!update) return Answer::to_nothing;
    if (update_id == peer.update_id) {
      peer.update_pending = false;
      refresh();
    }
    if (update->ports == peer.told_ports) return Answer::to_newest;
    update->ports = peer.told_ports;  // its other copies are answered too, and say no more than this one
    return Answer::to_older;
  }
  // Another process may be at this address now, or the same one after it forgot us: neither side's old news holds.
  void renew(Peer& peer) {
    const Peer old = peer;
    peer = Peer{};
    peer.holders = old.holders;
    peer.claims = old.claims;
    peer.has_qp = old.has_qp;
    peer.first_qp = old.first_qp;
    peer.told_ports = 0;
    refresh();
  }
  void forget_update(Peer& peer) {
    if (peer.update_pending) peer.told_ports = 0;
    peer.update_pending = false;
    refresh();
  }
  Time deadline() const { return deadline_; }

 private:
  static constexpr Duration first_repeat = microseconds(100);

  void tell(Peer& peer, Time now, std::uint16_t id, std::uint32_t live_ports) {
    peer.told_ports = live_ports;
    peer.said.add({id, live_ports});
    peer.update_pending = true;
    peer.update_id = id;
    peer.update_ports = live_ports;
    peer.update_at = now;
    peer.update_interval = first_repeat;
  }

  void refresh() {
    deadline_ = Time::never();
    for (const Peer& peer : peers_)
      if (peer.update_pending) deadline_ = std::min(deadline_, peer.update_at);
  }

  std::vector<Peer> peers_;
  std::vector<std::uint32_t> free_;
  Time deadline_ = Time::never();
};

}  // namespace softmrc::proto
