#include "collectives/failure_monitor.h"

#include <algorithm>

#include "collectives/error_text.h"

namespace softmrc::collectives {

void FailureMonitor::fail(proto::Endpoint& engine, Time now, const std::string& why, bool is_ours) {
  if (has_failed()) return;
  end(engine, now, owner_.on_failure(self_.number, why.empty() ? "the group has failed" : why, is_ours));
}

void FailureMonitor::fail_timeout(proto::Endpoint& engine, Time now, const std::string& what, double timeout_s,
                                  const std::string& whom) {
  fail(engine, now, timeout_message(what, self_.rank, timeout_s, whom));
}

void FailureMonitor::end(proto::Endpoint& engine, Time now, const GroupFailure& failure) {
  if (has_failed()) return;
  error_ = failure.why;
  suspects_.clear();
  inquires_at_ = Time::never();
  handler_.on_group_failure(engine, now, failure);
}

void FailureMonitor::suspect(Time now, std::uint32_t peer, const std::string& why) {
  if (has_failed()) return;
  const bool is_known = std::any_of(suspects_.begin(), suspects_.end(),
                                    [peer](const Suspect& s) { return s.peer == peer; });
  if (!is_known) suspects_.push_back({peer, now + report_grace, why});
}

void FailureMonitor::on_peer_gone(proto::Endpoint& engine, Time now, std::uint32_t peer, const std::string& why) {
  if (self_.is_first()) fail(engine, now, why);
  else suspect(now, peer, why);
}

bool FailureMonitor::check_suspects(proto::Endpoint& engine, Time now) {
  for (const Suspect& s : suspects_) {
    if (s.until > now) continue;
    fail(engine, now, std::string(s.why));  // a copy: the suspects are cleared
    return true;
  }
  return false;
}

void FailureMonitor::check_waiting(proto::Endpoint& engine, Time now) {
  if (!self_.is_first() || now < owner_.waits_until()) return;
  if (const std::string why = owner_.overdue(now); !why.empty()) fail(engine, now, why);
}

Time FailureMonitor::deadline() const {
  Time at = self_.is_first() ? std::min(inquires_at_, owner_.waits_until()) : inquires_at_;
  for (const Suspect& s : suspects_) at = std::min(at, s.until);
  return at;
}

}  // namespace softmrc::collectives
