// The entropy values (EVs, paths) of one queue pair, and which of them the next packet may take.
//
// state         usable  enters on                              leaves on
// good          yes     start, recovery                        feedback
// skip          no      one congestion mark                    the rotation reaches it: good again, for the next packet
//   suspended      no      a trim, or a packet given up too soon  the same, once its time is over
// assumed_bad   no      a real loss, or an always-skip mark    enough probes answered
// denied        no      the controller                         the controller
//
// The rotation is a random permutation of the good and skipped EVs, drawn again every round. Each port keeps its own
// count of rounds, so that an EV whose port is busy does not miss its turn: a port that is always busy still gets
// through all of its paths once a round. Every port starts with the same number of EVs, and a withdrawn EV is replaced
// only by a spare of the same port, so ports stay equally loaded. Ports themselves have a memory: when several packets
// in a row are lost on one port and nothing sent since has been acknowledged there, all of its EVs are withdrawn
// together instead of one loss at a time.
//
// Sees facts (this EV was used, acknowledged, lost), never packets.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/prefetch.h"
#include "base/prng.h"
#include "base/ring.h"
#include "base/time.h"
#include "proto/config.h"

namespace softmrc::proto {

// spec: ev-states
enum class EvState : std::uint8_t { good, skip, assumed_bad, denied };

constexpr std::uint16_t no_ev = 0xFFFF;

struct Ev {
  Time unacked_since = Time::never();       // first use since its last acknowledgement
  Time suspended_until = Time::long_ago();  // until then a suspended EV is passed over, however often its turn comes
  std::uint32_t value = 0;
  std::uint32_t drops = 0;
  std::uint16_t place = no_ev;  // in the rotation; no_ev when not in it
  std::uint8_t port = 0;
  EvState state = EvState::good;
  std::uint8_t damping = 0;    // relapses: each one doubles the wait before it is trusted again
  std::uint8_t carried = 255;  // acknowledged packets since its last revival, saturating
  std::uint8_t relapses = 0;   // suspended again soon after: each one doubles the next bar
  bool is_spare : 1 = false;
  bool is_suspended : 1 = false;         // skipped for longer than once
  bool withdrawn_with_port : 1 = false;  // withdrawn because its whole port fell silent
};
static_assert(sizeof(Ev) == 32);

// One packet's search for a path. However often it looks, it restores one skipped path at most, for the next packet.
struct EvSearch {
  Time now{};
  std::uint16_t avoid = no_ev;  // taken only when nothing else is left
  std::uint16_t restored = no_ev;
};

class EvSet {
 public:
  bool is_built() const { return !evs_.empty(); }
  void build(const EvProfile& profile, std::uint32_t ports, Prng prng);

  // The EV for the next packet: good, and on one of `ports`.
  std::uint16_t pick(EvSearch& search, std::uint32_t ports);
  // Another good EV of that one's port by chance, in its turn: the port sends no more for it. no_ev: found none.
  std::uint16_t pick_instead(const EvSearch& search, std::uint16_t ev);

  // Any EV of these ports that is not denied, whatever was thought of it; no_ev when there is none.
  std::uint16_t pick_any(std::uint32_t ports);

  void on_sent(std::uint16_t ev, Time now) {
    Ev& e = evs_[ev];
    if (e.unacked_since == Time::never()) e.unacked_since = now;
  }
  void on_acked(std::uint16_t ev, Time sent_at) {
    Ev& e = evs_[ev];
    e.unacked_since = Time::never();
    if (e.carried < 255) ++e.carried;
    PortState& port = ports_[e.port];
    if (sent_at > port.acked_sent_at) port.acked_sent_at = sent_at;
    if (port.strikes) [[unlikely]]
      clear_strikes(e.port);
  }
  // A congestion mark: step over it once. A spare has no turn to miss.
  void on_congestion(std::uint16_t ev) {
    if (!skips_congested_ || is_retired(ev)) return;
    ports_[evs_[ev].port].is_congested = true;
    if (evs_[ev].state == EvState::good && evs_[ev].place != no_ev) evs_[ev].state = EvState::skip;
  }
  // A trim, or a packet that came after it was given up: step over it for that long, and longer if it soon happens
  // again.
  void suspend(std::uint16_t ev, Time now, Duration span);
  void unskip(std::uint16_t ev) {
    if (evs_[ev].state == EvState::skip) end_skip(evs_[ev]);
  }
  // The peer says never to use it again: as bad as a loss.
  void on_always_skip(std::uint16_t ev);

  // A packet sent on it at `sent_at` is lost. The floor shields it, unless packets sent three round trips after its
  // first unacknowledged use have been acknowledged on other paths: then it is silent, not unlucky.
  void on_loss(std::uint16_t ev, Time sent_at, Time latest_acked_sent, Duration three_rtt);
  // All of its EVs are withdrawn, although it answers; their wait is doubled so many times.
  void leave_port(std::uint8_t port, std::uint8_t wait);
  bool is_left(std::uint8_t port) const { return ports_[port].slow_wait; }
  // How many times the wait before its first probe is doubled.
  std::uint8_t wait_of(std::uint16_t ev) const { return std::max(evs_[ev].damping, ports_[evs_[ev].port].slow_wait); }
  // A packet that was sent on it at `sent_at` and given up has arrived. The verdict behind its withdrawal was wrong,
  // unless its port fell by packets sent after that one. True where it returns to service.
  bool on_spurious(std::uint16_t ev, Time sent_at);
  // Its probes were answered; it must be assumed_bad.
  void revive(std::uint16_t ev);

  // The controller's commands.
  void deny(std::uint16_t ev);
  void allow(std::uint16_t ev);
  // Another path takes this one's place; DENIED it stays, if it was. What is still in flight on the old one has to be
  // entered under retired_on its port from now on.
  void replace(std::uint16_t ev, const EvPath& path);
  // A number for a path that replaces one, where packets carry numbers.
  std::uint32_t next_number() { return next_number_++; }
  // A place that no packet ever takes: what is reported of it is forgotten, but for the news that its port answers.
  std::uint16_t retired_on(std::uint8_t port) const { return static_cast<std::uint16_t>(size() + port); }
  bool is_retired(std::uint16_t ev) const { return ev >= size(); }

  // Ports that may carry anything at all: up here, and up at the peer.
  void set_live_ports(std::uint32_t mask) {
    live_ports_ = mask;
    count_usable();
  }
  std::uint32_t live_ports() const { return live_ports_; }

  void prefetch_state() const {
    prefetch_bytes(order_.data(), order_.size() * sizeof(std::uint16_t));
    prefetch(ports_.data());
  }

  const Ev& operator[](std::uint16_t ev) const { return evs_[ev]; }
  std::uint16_t size() const { return static_cast<std::uint16_t>(order_.size()); }
  // In the SRV6 format, the value that this EV is the number of; otherwise null.
  const wire::EvBytes* wide(std::uint16_t ev) const { return wide_.empty() ? nullptr : &wide_[ev]; }
  std::uint32_t usable() const { return usable_; }  // good or skip, on live ports
  std::uint32_t usable_on(std::uint32_t port) const { return ports_[port].in_rotation; }
  std::uint32_t usable_ports() const { return usable_ports_; }
  std::optional<std::uint16_t> find(std::uint32_t value) const;
  // An EV of this port that is not denied: the one of this value, or any, sooner a usable one; no_ev: there is none.
  std::uint16_t find_on(std::uint32_t port, std::uint32_t value) const;
  std::uint16_t permitted_on(std::uint32_t port, Prng& prng) const;
  // A usable EV of this port, for traffic that is not data.
  std::optional<std::uint16_t> any_on(std::uint32_t port);

  // EVs whose state changed to good or assumed_bad since last asked, oldest first.
  Ring<std::uint16_t>& changes() { return changes_; }

 private:
  struct PortState {
    Time acked_sent_at = Time::long_ago();  // the newest send on this port that was acknowledged
    std::uint16_t in_rotation = 0;
    std::uint16_t turned = 0;  // of these, how many have had their turn this round: they stand first
    std::uint32_t laps = 0;
    std::uint16_t strikes = 0;               // losses in a row with nothing acknowledged since
    Time struck_sent_at = Time::long_ago();  // the newest send among them
    std::uint16_t last_struck = no_ev;
    bool several_evs_struck = false;
    std::uint16_t suspended = 0;  // of those in the rotation
    bool is_congested = false;    // some path of it was, this round
    std::uint8_t waited = 0;      // passed over since its round ended
    std::uint8_t slow_wait = 0;   // see wait_of; while it is not zero the port is left for being slow
  };

  void begin_lap(PortState& port);

  void count_usable();
  std::uint16_t draw(std::uint32_t ports);
  std::uint16_t pick_again(EvSearch& search, std::uint32_t ports, std::uint16_t drawn);
  bool must_wait(std::uint32_t port);
  std::uint32_t without_waiting(std::uint32_t ports);
  void end_skip(Ev& ev);
  void demote(std::uint16_t ev);
  void return_to_service(std::uint16_t ev);
  void append(std::uint16_t ev);  // to the rotation of its port; the caller counts what is usable
  void enter_rotation(std::uint16_t ev);
  void leave_rotation(std::uint16_t ev);
  bool activate_spare(std::uint8_t port);
  void clear_strikes(std::uint8_t port);
  bool port_fell_silent(std::uint16_t ev, Time sent_at);
  void silence_port(std::uint8_t port);
  void put(std::uint32_t place, std::uint16_t ev) {
    order_[place] = ev;
    evs_[ev].place = static_cast<std::uint16_t>(place);
  }

  std::vector<Ev> evs_;  // and behind them a retired one for each port
  std::vector<wire::EvBytes> wide_;
  std::uint32_t next_number_ = 0;
  std::vector<std::uint16_t>
      order_;  // a stretch of `per_port_` places for each port, the first `in_rotation` of them used
  std::uint32_t per_port_ = 0;
  std::uint32_t live_ports_ = ~0u;
  std::uint32_t usable_ports_ = 0;
  std::uint32_t whole_ports_ = 0;  // that carry as many EVs as they started with
  std::uint32_t usable_ = 0;
  std::uint32_t floor_ = 0;
  std::uint32_t active_per_port_ = 0;
  bool skips_congested_ = true;
  std::vector<PortState> ports_;
  Ring<std::uint16_t> changes_;
  Prng prng_;
};

}  // namespace softmrc::proto
