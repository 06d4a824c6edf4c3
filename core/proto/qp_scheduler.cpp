#include "proto/qp_scheduler.h"

namespace softmrc::proto {

void QpScheduler::end_batch(Time now) {
  context_.in_batch = false;
  for (; !batch_list_.empty(); batch_list_.pop()) {
    const std::uint32_t slot = batch_list_.front();
    QueuePair* pair = qps_.at(slot);
    if (!pair) continue;
    pair->in_batch_list = false;
    pair->end_batch(now);
    schedule(now, slot);
  }
}

void QpScheduler::handle_timeout(Time now) {
  while (!timers_.empty() && timers_.front().at <= now) {
    const auto entry = timers_.pop();
    QueuePair* pair = qps_.at(entry.slot);
    if (!pair || pair->armed_at != entry.at) continue;
    pair->armed_at = Time::never();
    pair->handle_timeout(now);
    schedule(now, entry.slot);
  }
}

Time QpScheduler::poll_timeout() {
  while (!timers_.empty()) {
    const QueuePair* pair = qps_.at(timers_.front().slot);
    if (pair && pair->armed_at == timers_.front().at) break;
    timers_.pop();
  }
  return timers_.empty() ? Time::never() : timers_.front().at;
}

bool QpScheduler::poll_reply(Time now, std::uint32_t free_ports, Transmit& out) {
  for (std::size_t turns = reply_list_.size(); turns; --turns) {
    const std::uint32_t slot = reply_list_.front();
    QueuePair* pair = qps_.at(slot);
    if (pair && pair->poll_reply(now, free_ports, out)) {
      if (!pair->has_reply()) {
        pair->in_reply_list = false;
        reply_list_.pop();
      }
      return true;
    }
    reply_list_.pop();
    if (!pair) continue;
    if (pair->has_reply()) reply_list_.push(slot);  // its ports are busy: let others go first
    else pair->in_reply_list = false;
  }
  return false;
}

}  // namespace softmrc::proto
