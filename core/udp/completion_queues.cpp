#include "udp/completion_queues.h"

#include <algorithm>

#include "udp/event_fd.h"

namespace softmrc::udp {

using proto::Error;
using proto::MaybeError;

CompletionQueues::Queue::~Queue() {
  if (fd >= 0) ::close(fd);
}

std::uint32_t CompletionQueues::create() {
  const std::lock_guard lock(lanes_.mutex());
  queues_.emplace(next_, std::make_shared<Queue>());
  return next_++;
}

std::shared_ptr<CompletionQueues::Queue> CompletionQueues::find(std::uint32_t cq) {
  const std::lock_guard lock(lanes_.mutex());
  const auto found = queues_.find(cq);
  return found == queues_.end() ? nullptr : found->second;
}

std::size_t CompletionQueues::size() {
  const std::lock_guard lock(lanes_.mutex());
  return queues_.size();
}

std::uint32_t CompletionQueues::part_in(Queue& queue, std::uint32_t number) {
  for (const Queue::Part& part : queue.parts)
    if (part.lane == number) return part.cq;
  Lane& lane = lanes_.open(number);
  const std::uint32_t cq = lane.with_engine([](proto::Endpoint& e, Time) { return e.create_cq(); });
  queue.parts.push_back({number, cq});
  lane.set_comp_channel(cq, &queue.event_count, queue.fd);
  // Who waits in the first lane alone would not notice this one.
  if (queue.parts.size() == 2) {
    queue.state = QueueState::of_several;
    lanes_[queue.parts[0].lane].wake_waiters();
  }
  return cq;
}

std::optional<std::uint32_t> CompletionQueues::part_of(std::uint32_t cq, std::uint32_t lane) {
  const std::lock_guard lock(lanes_.mutex());
  const auto found = queues_.find(cq);
  return found == queues_.end() ? std::nullopt : std::optional(part_in(*found->second, lane));
}

MaybeError CompletionQueues::destroy(std::uint32_t cq) {
  const std::lock_guard lock(lanes_.mutex());
  const auto found = queues_.find(cq);
  if (found == queues_.end())
    return Error{Error::Kind::usage, "cq", std::to_string(cq), "a completion queue that was created"};
  Queue& queue = *found->second;
  for (const Queue::Part& part : queue.parts)
    if (lanes_[part.lane].with_engine([&](proto::Endpoint& e, Time) { return e.is_cq_in_use(part.cq); }))
      return Error{Error::Kind::usage, "cq", std::to_string(cq), "a queue that no queue pair uses any longer"};
  queue.state = QueueState::gone;
  for (const Queue::Part& part : queue.parts) {
    Lane& lane = lanes_[part.lane];
    lane.set_comp_channel(part.cq, nullptr, -1);
    lane.with_engine([&](proto::Endpoint& e, Time) { return e.destroy_cq(part.cq); });
    lane.wake_waiters();
  }
  queue.event_count.notify();
  queues_.erase(found);
  return std::nullopt;
}

std::size_t CompletionQueues::take(Queue& queue, std::span<proto::Completion> out) {
  std::vector<Queue::Part> parts;
  int fd = -1;
  {
    const std::lock_guard lock(lanes_.mutex());
    parts = queue.parts;
    fd = queue.fd;
    // A lane that always has something must not hide the others.
    if (!parts.empty()) std::rotate(parts.begin(), parts.begin() + queue.turn++ % parts.size(), parts.end());
    // First quiet, then look: what comes in between makes it readable again. One lane alone can be looked at first. No
    // lane joins while the mutex is held: one that is not looked at below makes it readable after this.
    if (parts.size() != 1) make_unreadable(fd);
  }
  const bool is_one = parts.size() == 1;
  std::size_t count = 0;
  bool has_more = false;
  for (const Queue::Part& part : parts) {
    lanes_[part.lane].with_engine([&](proto::Endpoint& e, Time) {
      if (queue.state == QueueState::gone) return;
      count += e.poll_completions(part.cq, out.subspan(count));
      has_more |= e.completions_waiting(part.cq) > 0;
      if (is_one && !has_more) make_unreadable(fd);
    });
  }
  // A second lane may have joined after the look at which there are, and what it reported is not to be lost with the
  // rest.
  const bool has_grown = is_one && queue.state == QueueState::of_several;
  // That the device is closed stays to be read.
  if (lanes_.is_closed() || (!is_one && has_more) || has_grown) make_readable(fd);
  return count;
}

std::size_t CompletionQueues::poll(std::uint32_t cq, std::span<proto::Completion> out) {
  const std::shared_ptr<Queue> known = find(cq);
  return known ? take(*known, out) : 0;
}

std::size_t CompletionQueues::wait(std::uint32_t cq, std::span<proto::Completion> out, Duration timeout) {
  const Time until = lanes_.clock().now() + std::min(timeout, seconds(86'400));
  const std::shared_ptr<Queue> known = find(cq);
  if (!known) return 0;
  Queue::Part first;
  {
    const std::lock_guard lock(lanes_.mutex());
    if (known->state == QueueState::gone) return 0;
    if (known->parts.empty()) part_in(*known, 0);
    first = known->parts[0];
  }
  // One lane: who waits for it drives it. Several: their own threads do.
  if (known->state == QueueState::of_one_lane) {
    const std::size_t count = lanes_[first.lane].wait(first.cq, known->state, out, timeout);
    if (known->state != QueueState::of_several || count) return count;
  }
  EventCount::Waiter listener(known->event_count);
  while (true) {
    const std::size_t count = take(*known, out);
    const Time now = lanes_.clock().now();
    if (count || known->state == QueueState::gone || lanes_.is_closed() || now >= until) return count;
    listener.wait(until - now);
  }
}

int CompletionQueues::fd(std::uint32_t cq) {
  const std::lock_guard lock(lanes_.mutex());
  Queue& queue = *queues_.at(cq);
  if (queue.fd < 0) {
    queue.fd = new_event_fd(lanes_.is_closed());
    if (queue.parts.empty()) part_in(queue, 0);  // it also tells that the device is closed
    for (const Queue::Part& part : queue.parts)
      lanes_[part.lane].set_comp_channel(part.cq, &queue.event_count, queue.fd);
  }
  return queue.fd;
}

void CompletionQueues::wake_all() {
  for (auto& [number, queue] : queues_) {
    make_readable(queue->fd);
    queue->event_count.notify();
  }
}

}  // namespace softmrc::udp
