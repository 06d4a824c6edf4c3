// Planes of peers that have yet to answer. A peer names its own addresses, and may name another host's: data goes only
// where a probe was answered that cannot be answered without receiving it. Until then a plane is like one
// that is down; it carries questions, at growing intervals, and a few more when something comes from there. They end,
// unless work waits for the answer, or the peer speaks or has answered elsewhere: then they go on, one a second at
// most.
//
// Each probe carries numbers that cannot be guessed from other planes' or earlier ones: a nonce of 64 bits where the
// peer returns it, else the 32 bits that every peer does. An attacker might try all of those, so that a probe which
// drew many wrong answers is void.
//
// Answers come in copies and late. Recent probes that are settled, or were repeated since, are remembered: an
// answer to one of them means nothing any more, and is not refused as a guess either.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/ring.h"
#include "base/siphash.h"
#include "base/time.h"

namespace softmrc::proto {

// spec: proof-of-address
class PathValidation {
 public:
  struct Challenge {
    std::uint32_t peer = 0;
    std::uint8_t port = 0;
    bool is_first = false;  // of this plane's
  };
  // What a question carries and its answer must.
  struct Token {
    std::uint64_t nonce = 0;  // 0: the peer sends back the rest alone
    std::uint16_t id = 0;
    std::uint16_t ticks = 0;  // in the timestamp's place

    bool operator==(const Token&) const = default;
    bool is_in(const Token& answer) const { return nonce || answer.nonce ? nonce == answer.nonce : *this == answer; }
  };

  explicit PathValidation(const SecretKey& key) : numbers_(key) {}

  // Every peer has answered everywhere.
  bool empty() const { return paths_.empty(); }

  // Nothing that this peer has answered before counts.
  void add(Time now, std::uint32_t peer, std::uint32_t ports) {
    remove(peer);
    paths_.push_back({peer, ports, ports, now, {}});
    refresh();
  }
  void remove(std::uint32_t peer) {
    if (const PendingPath* q = find(peer))
      for (const Open& open : q->open) set_aside(peer, open);
    std::erase_if(paths_, [peer](const PendingPath& q) { return q.peer == peer; });
    refresh();
  }
  // Its number may be another's soon.
  void forget(std::uint32_t peer) {
    remove(peer);
    past_.remove_if([peer](const Past& past) { return past.peer == peer; });
  }

  // A question leaves. A few of each plane are open at once, since an answer may take longer than patience does; but
  // one where the numbers are short.
  Token issue_token(Time now, std::uint32_t peer, std::uint8_t port, bool echoes_nonce) {
    const std::uint64_t bits = numbers_.next();
    Token token{0, static_cast<std::uint16_t>(bits), static_cast<std::uint16_t>(bits >> 16)};
    while (echoes_nonce && token.nonce == 0) token.nonce = numbers_.next();
    PendingPath* q = find(peer);
    if (!q) return token;
    const auto is_here = [port](const Open& open) { return open.port == port; };
    std::erase_if(q->open, [&](const Open& o) {
      const bool is_over = now - o.asked_at > lifetime || (is_here(o) && !o.token.nonce);
      if (is_over) set_aside(peer, o);
      return is_over;
    });
    if (std::count_if(q->open.begin(), q->open.end(), is_here) >= max_open) {
      const auto oldest = std::find_if(q->open.begin(), q->open.end(), is_here);
      set_aside(peer, *oldest);
      q->open.erase(oldest);
    }
    q->open.push_back({token, now, port});
    return token;
  }
  // The plane whose question this answers. Copies of an answer say the same again.
  std::optional<std::uint8_t> plane_of(Time now, std::uint32_t peer, const Token& answer) {
    PendingPath* q = find(peer);
    if (!q) return std::nullopt;
    for (const Open& open : q->open)
      if (open.token.is_in(answer) && now - open.asked_at <= lifetime) return open.port;
    return std::nullopt;
  }
  // Whether it answers a recent probe of this peer that needs no answer any more.
  bool is_past(Time now, std::uint32_t peer, const Token& answer) {
    while (!past_.empty() && now - past_.front().asked_at > lifetime) past_.pop();
    for (std::size_t i = past_.size(); i-- > 0;)
      if (past_[i].peer == peer && past_[i].token.is_in(answer)) return true;
    return false;
  }
  // An answer to no probe. True if it may be a guess at a plane's probe.
  bool on_wrong_answer(std::uint32_t peer, bool has_nonce) {
    PendingPath* q = find(peer);
    if (!q) return false;
    bool is_guess = false;
    for (Open& open : q->open) {
      if (has_nonce != (open.token.nonce != 0)) continue;
      is_guess = true;
      open.guesses += !has_nonce;
    }
    std::erase_if(q->open, [](const Open& open) { return open.guesses >= max_guesses; });
    return is_guess;
  }
  void on_validated(std::uint32_t peer, std::uint8_t port) {
    PendingPath* q = find(peer);
    if (!q) return;
    q->unproven &= ~(1u << port);
    q->to_ask &= q->unproven;
    q->has_answered = true;
    if (q->unproven == 0) remove(peer);
  }
  // Something came from a plane that has not answered: if it is the peer, it can receive now.
  void on_received(Time now, std::uint32_t peer) {
    PendingPath* q = find(peer);
    if (!q || q->probe_at <= now || now - q->asked_at < (q->hurries ? first_interval : longest_interval)) return;
    if (q->hurries) --q->hurries;
    q->is_hurried = true;
    q->probe_at = now;
    refresh();
  }
  // There is work for this peer, or a port of ours is back: what was given up is probed again.
  void resume(Time now, std::uint32_t peer) {
    if (PendingPath* q = find(peer); q && q->probe_at == Time::never()) begin_anew(now, *q);
  }
  void resume_all(Time now) {
    for (PendingPath& q : paths_) begin_anew(now, q);
  }

  // The next question, on a port that has room. `is_worth_it` says of a peer whether work waits for its answer.
  template <typename F>
  std::optional<Challenge> poll(Time now, std::uint32_t free_ports, std::uint32_t up_ports, F is_worth_it) {
    for (PendingPath& q : paths_) {
      if (q.probe_at > now) continue;
      if (q.to_ask == 0) q.to_ask = q.unproven;
      const std::uint32_t ports = q.to_ask & free_ports;
      if (ports == 0 && (q.to_ask & up_ports)) continue;
      const Challenge ask{q.peer, static_cast<std::uint8_t>(std::countr_zero(ports)), q.rounds == 0};
      q.to_ask &= up_ports & ~(ports & ~(ports - 1));
      q.asked_at = now;
      if (q.to_ask == 0) end_round(now, q, is_worth_it);
      if (ports) return ask;
    }
    return std::nullopt;
  }

  Time deadline() const { return deadline_; }
  // The next after `now`: what is due already waits for a port.
  Time deadline(Time now) const {
    Time next = Time::never();
    for (const PendingPath& q : paths_)
      if (q.probe_at > now) next = std::min(next, q.probe_at);
    return next;
  }

 private:
  static constexpr Duration first_interval = milliseconds(1);
  static constexpr Duration longest_interval = seconds(1);
  static constexpr std::uint8_t max_rounds = 12;
  static constexpr std::uint8_t max_hurries = 8;
  static constexpr Duration lifetime = seconds(4);
  static constexpr int max_open = 4;
  static constexpr std::uint8_t max_guesses = 64;
  static constexpr std::size_t max_past = 1024;

  // A question that may still be answered.
  struct Open {
    Token token;
    Time asked_at{};
    std::uint8_t port = 0;
    std::uint8_t guesses = 0;  // of one without a nonce
  };
  struct Past {
    std::uint32_t peer = 0;
    Token token;
    Time asked_at{};
  };
  struct PendingPath {
    std::uint32_t peer = 0;
    std::uint32_t unproven = 0;
    std::uint32_t to_ask = 0;  // in this round
    Time probe_at{};           // never: given up
    std::vector<Open> open;
    Time asked_at = Time::long_ago();
    Duration interval = first_interval;
    std::uint8_t rounds = 0;
    std::uint8_t hurries = max_hurries;
    bool is_hurried = false;    // this round was brought forward
    bool has_answered = false;  // on some plane
  };

  PendingPath* find(std::uint32_t peer) {
    const auto at = std::find_if(paths_.begin(), paths_.end(), [peer](const PendingPath& q) { return q.peer == peer; });
    return at == paths_.end() ? nullptr : &*at;
  }
  void set_aside(std::uint32_t peer, const Open& open) {
    if (past_.size() >= max_past) past_.pop();
    past_.push({peer, open.token, open.asked_at});
  }
  void begin_anew(Time now, PendingPath& q) {
    q.rounds = 0;
    q.interval = first_interval;
    q.probe_at = now;
    refresh();
  }
  template <typename F>
  void end_round(Time now, PendingPath& q, F is_worth_it) {
    if (q.rounds < max_rounds && !q.is_hurried) ++q.rounds;
    const bool goes_on = q.rounds < max_rounds || q.has_answered || is_worth_it(q.peer);
    q.probe_at = goes_on ? now + q.interval : Time::never();
    if (!q.is_hurried) q.interval = std::min(q.interval * 2, longest_interval);
    q.is_hurried = false;
    refresh();
  }
  void refresh() {
    deadline_ = Time::never();
    for (const PendingPath& q : paths_) deadline_ = std::min(deadline_, q.probe_at);
  }

  SipHashPrng numbers_;
  std::vector<PendingPath> paths_;
  Ring<Past> past_;
  Time deadline_ = Time::never();
};

}  // namespace softmrc::proto
