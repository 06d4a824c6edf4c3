// Whether the group has failed on this channel, why, and which peers are suspected to be gone. It decides when a
// suspicion becomes a failure and when peers are next asked whether they still take part; the first failure is final,
// and the group says which of several counts. What ends with the group, and who is notified, is left to its handler;
// noticing that an operation is late is left to those who know what it waits for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/time.h"
#include "collectives/channel_owner.h"

namespace softmrc::proto {
class Endpoint;
}

namespace softmrc::collectives {

// How often a rank that is waited for gets the query whether it is in the same operation.
constexpr Duration inquiry_interval = milliseconds(300);
// How long a peer's own error may take that explains what was noticed of it here.
constexpr Duration report_grace = milliseconds(500);

class FailureHandler {
 public:
  virtual ~FailureHandler() = default;
  // The group has failed, and everything under way on this channel ends. Called once.
  virtual void on_group_failure(proto::Endpoint& engine, Time now, const GroupFailure& failure) = 0;
};

class FailureMonitor {
 public:
  FailureMonitor(ChannelOwner& owner, ChannelIdentity self, FailureHandler& handler)
      : owner_(owner), self_(self), handler_(handler) {}

  bool has_failed() const { return !error_.empty(); }
  const std::string& error() const { return error_; }
  void fail(proto::Endpoint& engine, Time now, const std::string& why, bool is_ours = true);
  void fail_timeout(proto::Endpoint& engine, Time now, const std::string& what, double timeout_s,
                    const std::string& whom);
  // The group has failed already, on another channel or by its caller.
  void end(proto::Endpoint& engine, Time now, const GroupFailure& failure);

  // The peer may be about to say why it is gone: `why` counts if it does not.
  void suspect(Time now, std::uint32_t peer, const std::string& why);
  // The peer is gone. Its own error, if there is one, comes in order on the first channel, so another one waits for it.
  void on_peer_gone(proto::Endpoint& engine, Time now, std::uint32_t peer, const std::string& why);

  // True when the group has failed because of a suspect.
  bool check_suspects(proto::Endpoint& engine, Time now);
  // Fails the group when something that may not start yet has no time left.
  void check_waiting(proto::Endpoint& engine, Time now);
  // When one of these checks, or an inquiry, is due.
  Time deadline() const;

  bool is_inquiry_due(Time now) const { return now >= inquires_at_; }
  void set_next_inquiry(Time at) { inquires_at_ = at; }
  // Unless there is one to come.
  void ensure_inquiry(Time at) {
    if (inquires_at_ == Time::never()) inquires_at_ = at;
  }

 private:
  struct Suspect {
    std::uint32_t peer = 0;
    Time until = Time::never();
    std::string why;
  };

  ChannelOwner& owner_;
  const ChannelIdentity self_;
  FailureHandler& handler_;
  std::vector<Suspect> suspects_;
  std::string error_;
  Time inquires_at_ = Time::never();
};

}  // namespace softmrc::collectives
