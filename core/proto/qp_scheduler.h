// Whose turn it is: the queue pairs of an endpoint that may have a reply or data to send, or verdicts at the end of a
// batch, and when the timers of each are due.
#pragma once

#include <cstdint>

#include "base/prefetch.h"
#include "base/ring.h"
#include "proto/context.h"
#include "proto/qp_table.h"
#include "proto/timers.h"

namespace softmrc::proto {

class QpScheduler {
 public:
  QpScheduler(EndpointContext& context, const QpTable& qps) : context_(context), qps_(qps) {}

  // Something changed for this queue pair: it gets a turn, and its timer is set.
  void schedule(Time now, std::uint32_t slot) {
    list(slot);
    arm(now, slot);
  }

  void begin_batch() { context_.in_batch = true; }
  void end_batch(Time now);
  void handle_timeout(Time now);
  Time poll_timeout();

  bool has_reply() const { return !reply_list_.empty(); }
  bool poll_reply(Time now, std::uint32_t free_ports, Transmit& out);
  // Round robin, a spray quantum at a time. Where an EV probe is due, `poll_probe(slot, pair)` fills `out` with it if a
  // port has room.
  template <typename F>
  bool poll_data(Time now, std::uint32_t free_ports, Transmit& out, F poll_probe) {
    for (std::size_t turns = data_list_.size(); turns; --turns) {
      const std::uint32_t slot = data_list_.front();
      QueuePair* pair = qps_.at(slot);
      if (!pair) {
        data_list_.pop();
        continue;
      }
      if (pair->is_probe_due(now) && poll_probe(slot, *pair)) {
        arm(now, slot);
        return true;
      }
      const auto result = pair->poll_data(now, free_ports, out);
      if (result == Requester::Poll::sent) {
        // Where packets were in flight before, a timer runs that sending can only make later.
        if (pair->requester().packets_in_flight() <= 1) arm(now, slot);
        if (burst_left_ == 0) burst_left_ = pair->requester().spray_quantum();
        if (--burst_left_ == 0 && data_list_.size() > 1) {
          data_list_.pop();
          data_list_.push(slot);
        }
        return true;
      }
      burst_left_ = 0;
      data_list_.pop();
      arm(now, slot);
      if (result == Requester::Poll::no_port || pair->is_probe_due(now)) data_list_.push(slot);
      else pair->in_data_list = false;
    }
    return false;
  }

  void prefetch_state() const {
    prefetch(data_list_.front_slot());
    prefetch(timers_.memory());
  }

 private:
  void list(std::uint32_t slot) {
    QueuePair& pair = *qps_.at(slot);
    if (!pair.in_reply_list && pair.has_reply()) {
      pair.in_reply_list = true;
      reply_list_.push(slot);
    }
    if (!pair.in_data_list) {
      pair.in_data_list = true;
      data_list_.push(slot);
    }
    if (context_.in_batch && !pair.in_batch_list) {
      pair.in_batch_list = true;
      batch_list_.push(slot);
    }
  }
  // A probe that is already due waits for a port, which poll_data offers it; a timer for it would only spin.
  void arm(Time now, std::uint32_t slot) {
    QueuePair& pair = *qps_.at(slot);
    const Time deadline = pair.deadline(now);
    if (deadline >= pair.armed_at) return;
    pair.armed_at = deadline;
    timers_.push(deadline, slot);
  }

  EndpointContext& context_;
  const QpTable& qps_;
  Timers timers_;
  Ring<std::uint32_t> reply_list_;
  Ring<std::uint32_t> data_list_;
  Ring<std::uint32_t> batch_list_;  // which were handed something in this batch, and may owe verdicts at its end
  std::uint32_t burst_left_ = 0;    // packets the queue pair at the head may still send before the next one's turn
};

}  // namespace softmrc::proto
