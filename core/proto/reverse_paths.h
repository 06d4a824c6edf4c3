// The paths that acknowledgements take: one EV per port, apart from the data's rotation but out of the same set, so
// that what the controller denied or replaced carries nothing. A port all of whose EVs are denied carries no
// acknowledgement. A SACK goes back by the port its packet came in on, since that port just proved alive, unless the
// reverse path there is known to be broken. What keeps that knowledge fresh is the queue pair's own data when it sends
// any, and otherwise an EV probe per port each max(RTT, 1 ms) for as long as data keeps coming in. Queue pairs to the
// same peer take each other's word for a port: only one of them probes it in that time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/prng.h"
#include "base/time.h"
#include "proto/ev_set.h"

namespace softmrc::proto {

// What the queue pairs to one peer tell each other about the reverse path by one port.
struct SharedReversePath {
  Time probed_at = Time::long_ago();
  Time answered_at = Time::long_ago();
  Time silent_at = Time::long_ago();  // a probe was found to be unanswered
};

// spec: reverse-paths
class ReversePaths {
 public:
  // `of_evs` is what the set is, or will be, built with: to keep one for every queue pair that only receives would cost
  // a simulator of a hundred thousand nodes too much.
  void build(const EvProfile& profile, const EvSet& evs, Prng of_evs, std::uint32_t ports, Prng prng);
  bool is_built() const { return !paths_.empty(); }
  // The controller changed the set.
  void on_evs_changed();
  // Ports that have an EV which may be used.
  std::uint32_t open_ports() const { return open_; }

  // The port to answer on, among `ports`; nullopt when none of them is free. With no healthy one among them chance
  // decides, in favour of the port of arrival: the verdict rests on probes whose own answers may have been lost, and a
  // fixed order could always give the SACK the port that works and the ACK behind it the one that does not. But where
  // the port of arrival has not answered for rounds, and another has, chance favours that one.
  std::optional<std::uint8_t> choose(std::uint8_t arrival_port, std::uint32_t ports);
  // One way or the other.
  bool toss() { return prng_.below(2); }
  // No free port is healthy, but a busy one is: better to wait for it than to answer into a hole.
  bool should_wait(std::uint32_t free_ports, std::uint32_t live_ports) const;
  std::uint32_t entropy(std::uint8_t port) const { return paths_[port].value; }
  // Its index in the set.
  std::uint16_t ev(std::uint8_t port) const { return paths_[port].ev; }
  // Some other path of this port, for once.
  struct Choice {
    std::uint16_t ev = no_ev;
    std::uint32_t value = 0;
  };
  Choice another(std::uint8_t port) { return redraw(port); }

  // Data of our own was acknowledged on this EV.
  void on_data_acked(std::uint16_t ev, Time now);
  // What we send seems not to arrive, and nothing has shown since that it does.
  bool is_suspect(Time now) const { return suspected_at_ > confirmed_at_ && now - suspected_at_ < suspect_lifetime; }
  // The peer retransmitted what had arrived: our answer may have been lost. Paths that nothing has confirmed of late
  // try another EV, at once instead of after a round of probes, but not more often than answers can come.
  void on_suspect(Time now, Duration rtt);
  // Data came in: the reverse path matters.
  void on_received(Time now) {
    if (!receiving_ && !awaits_) round_at_ = now + interval_;
    receiving_ = true;
  }
  // Something came in by this path.
  void on_arrival(std::uint8_t port, std::uint32_t entropy) {
    if (port < paths_.size()) paths_[port].arrived_by = entropy;
  }

  Time deadline() const { return receiving_ || to_probe_ || awaits_ ? round_at_ : Time::never(); }
  // The port whose path should be probed now. `shared` is empty, or has a place for each port.
  std::optional<std::uint8_t> next_probe(Time now, std::uint32_t live_ports, std::uint32_t free_ports, Duration rtt,
                                         std::span<SharedReversePath> shared);
  // An answer that comes after its round was judged shows a path that is too slow to be healthy. One of a path that was
  // given up since then brings it back, if it still may be used.
  void on_answer(std::uint8_t port, std::uint32_t entropy, Time now, Duration took,
                 std::span<SharedReversePath> shared);

 private:
  struct Path {
    Time confirmed_at = Time::long_ago();
    Time answered_at = Time::long_ago();  // or confirmed, or answered too late to be healthy
    std::uint32_t value = 0;
    std::uint32_t arrived_by = 0;  // what the peer's last packet on this port took
    std::uint16_t ev = no_ev;
  };
  // A port that has been silent for so many rounds while another answered counts as broken.
  static constexpr int max_rounds_silent = 10;
  // Timers and probes of a peer that receives nothing are a second apart at most.
  static constexpr Duration suspect_lifetime = seconds(2);

  // The set, or a copy until it is built: made to begin with and thrown away, and kept from the first
  // trouble on, since trouble should cost no memory each time.
  const EvSet& set();
  Choice draw(std::uint32_t port, const EvSet& evs);
  Choice redraw(std::uint32_t port);
  void take(std::uint32_t port, const Choice& choice);
  void judge_silent(Time now, std::span<SharedReversePath> shared);
  void confirm(std::uint8_t port, Time now);
  // Another queue pair probes this port: what it has found out.
  void believe(std::uint32_t port, const SharedReversePath& way);
  // Where an answer is most likely to get through while no port is healthy.
  std::uint32_t likeliest(std::uint32_t arrival_port, std::uint32_t ports) const;
  bool is_healthy(std::uint32_t port) const { return healthy_ >> port & 1; }

  std::vector<Path> paths_;
  std::uint32_t healthy_ = ~0u;  // these and the next are masks of ports
  std::uint32_t awaiting_ = 0;
  std::uint32_t open_ = ~0u;
  const EvProfile* profile_ = nullptr;
  const EvSet* evs_ = nullptr;
  std::unique_ptr<EvSet> twin_;
  Prng of_evs_;
  Prng prng_;
  Time round_at_ = Time::never();
  Time suspected_at_ = Time::long_ago();
  Time confirmed_at_ = Time::long_ago();  // some path
  Duration interval_ = milliseconds(1);
  std::uint32_t to_probe_ = 0;
  bool receiving_ = false;
  bool awaits_ = false;  // a round of probes is out, and its end will be judged even if nothing more comes in
};

}  // namespace softmrc::proto
