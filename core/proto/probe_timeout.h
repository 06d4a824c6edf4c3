// What a requester does while nothing answers: how long it waits, what it asks for and by which ports, how long it
// holds back from a peer that takes nothing, and when it gives up. It decides; the requester sends.
//
// Two clocks run. Since the last activity (something was sent, or answered) for about a round trip, then twice and four
// times that: ask a question; and sooner, once, from when on its answer would say that the oldest packet is lost. Since
// the last progress for a whole timeout: what was sent is lost, and a retry is used up.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/time.h"
#include "proto/config.h"
#include "proto/ev_set.h"

namespace softmrc::proto {

class ProbeTimeout {
 public:
  // What is to be sent when nothing answers, whatever the congestion window says.
  enum class ProbeAction : std::uint8_t {
    none = 0,
    copy = 1,          // of the newest packet
    probe = 2,         // a bare reliability probe
    solicitation = 4,  // of the oldest operation's confirmation, whose packets have all arrived
  };
  enum class Due : std::uint8_t { nothing, probe, timeout };
  struct Probe {
    Time sent_at = Time::never();
    std::uint16_t ev = no_ev;
  };

  void start(const RtsAttributes& attributes, bool timestamps) {
    timeout_ = attributes.timeout;
    retry_linear_ = attributes.retry_linear;
    retry_exponential_ = attributes.retry_exponential;
    timestamps_ = timestamps;
  }

  // There is something to send, after there was nothing.
  void on_work(Time now) { progress_at_ = active_at_ = now; }
  // A message begins while nothing is under way: the timeout is counted from here.
  void on_first_sent(Time now) { progress_at_ = now; }
  void on_sent(Time now) { active_at_ = now; }
  void on_new_sent(Time now) {
    new_sent_at_ = now;
    copied_ = false;
  }
  void on_progress(Time now) {
    progress_at_ = active_at_ = now;
    if (retries_ && !is_measured_ && doublings_ < max_doublings) ++doublings_;
    retries_ = unanswered_ = 0;
    probes_ = 0;
    probed_ports_ = 0;
    backoffs_ = 0;
    backoff_until_ = Time::long_ago();
  }

  // How long nothing may come in before that means something; the round trips say `measured` (Rtt::silence). An answer
  // measures one only where it is to the last copy. A timer shorter than the round trip would thus never learn that,
  // and send all again and again: each answer that comes after a timeout doubles it, until the first round trip is
  // measured.
  // spec: timer-unmeasured
  Duration span(Duration measured) const {
    return std::min(measured * (1 << doublings_), std::max(measured, longest_guess));
  }
  void on_measured() {
    is_measured_ = true;
    doublings_ = 0;
  }

  // `span` is that of above; from `conclusive` on an answer settles whether something is lost.
  Due due(Time now, Duration span, Time conclusive) const {
    if (now >= progress_at_ + timeout(span)) return Due::timeout;
    return now >= probe_at(span, conclusive) ? Due::probe : Due::nothing;
  }
  Time deadline(Time now, Duration span, Time conclusive) const;
  // A path works: probes without an answer are repeated, by that path.
  void on_path_found(Time now) {
    active_at_ = now;
    probes_ = 0;
  }
  // A question is due. Nothing to ask about is a reason to wait on.
  // True where it is about packets in flight.
  bool ping(Time now, bool has_packets_in_flight, bool has_open_operation);
  // A timeout passed. False: that was the last retry.
  bool on_timeout(Time now);
  Duration timeout(Duration span) const;

  bool has_actions() const { return actions_ != 0; }
  // The first action that is possible. One whose reason is gone is dropped.
  ProbeAction next_action(bool has_packets_in_flight, bool can_solicit);
  void on_action_done(ProbeAction action);
  void solicit() { actions_ |= bit(ProbeAction::solicitation); }

  std::uint16_t on_probe_sent(Time now, std::uint16_t ev) {
    probe_ = {now, ev};
    active_at_ = now;
    return ++probe_id_;
  }
  // The probe that this number answers, if it is the one that waits for it.
  std::optional<Probe> on_probe_answer(std::uint16_t id);
  // The path that carried the probe was replaced.
  void on_retired(std::uint16_t ev, std::uint16_t retired) {
    if (probe_.ev == ev) probe_.ev = retired;
  }

  // A whole port may be dead: of these, those that no question went by since the last answer.
  std::uint32_t unprobed(std::uint32_t ports) const { return ports & ~probed_ports_; }
  void on_probed(std::uint8_t port) { probed_ports_ |= 1u << port; }
  // The next probe is the last of those that a timer alone sends.
  bool is_last_probe() const { return probes_ == max_probes_in_row; }

  // The packet arrived and the peer could not take it. The first time it is retransmitted at once; when that was in
  // vain nothing is sent for a while, twice as long each time until something gets through. This is no progress: the
  // timeout and the budget of retries run on.
  void on_receiver_not_ready(Time now, std::uint8_t tx_count, Duration span);
  // A switch trimmed the packet, so the network answers, and the packet is retransmitted at once, as trimming is for.
  // But what has been trimmed again and again, while nothing at all arrived for `span`, meets a queue that
  // retransmissions keep full: then nothing is sent for a while, as above. This is no progress either.
  void on_trimmed(Time now, std::uint8_t tx_count, Duration span);
  bool is_backing_off(Time now) const { return now < backoff_until_; }

  static constexpr Duration longest_guess = milliseconds(100);  // of a network's round trip

  bool is_probing() const { return probes_ || retries_; }
  bool has_timed_out() const { return retries_ > 0; }
  // For two timeouts nothing came back, not even a trimmed header: what was thought of the paths is worth nothing.
  // Where packets are trimmed, the paths are judged by that: an answered probe does not show that a path carries data.
  bool is_persistent() const { return unanswered_ > 1; }

 private:
  static constexpr std::uint32_t max_probes_in_row = 3;
  static constexpr std::uint8_t trims_in_a_row = 4;  // of one packet, before the sender holds back
  static constexpr std::uint32_t max_doublings = 16;
  static constexpr std::uint8_t bit(ProbeAction action) { return static_cast<std::uint8_t>(action); }

  void back_off(Time now, Duration span);
  Time probe_at(Duration span, Time conclusive) const {
    const Time at = probes_ < max_probes_in_row ? active_at_ + span * (1 << probes_) : Time::never();
    // What was sent last asks for an answer, which may be all that is missing. And a span that is but a guess says
    // nothing.
    if (!is_measured_ || asked_at_ >= conclusive) return at;
    return std::min(at, std::max(conclusive, new_sent_at_ + span));
  }

  std::uint32_t timeout_ = 0;
  std::uint32_t retry_linear_ = 0;
  std::uint32_t retry_exponential_ = 0;
  bool timestamps_ = true;

  bool copied_ = false;  // and nothing new has been sent since
  std::uint8_t actions_ = 0;
  std::uint16_t probe_id_ = 0;
  Probe probe_;
  Time progress_at_{};
  Time active_at_{};
  Time asked_at_ = Time::long_ago();
  Time new_sent_at_ = Time::long_ago();
  Time backoff_until_ = Time::long_ago();
  std::uint32_t retries_ = 0;     // timeouts since the last progress
  std::uint32_t unanswered_ = 0;  // timeouts since the last progress or trim
  std::uint32_t doublings_ = 0;   // answers after a timeout before the first round trip was measured
  bool is_measured_ = false;      // some round trip was
  std::uint32_t probes_ = 0;      // since the last answer or timeout
  std::uint32_t backoffs_ = 0;    // since the last progress
  std::uint32_t probed_ports_ = 0;
};

}  // namespace softmrc::proto
