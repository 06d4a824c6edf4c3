// The completion queues of a device: one by name, with a part in every lane that has a queue pair which uses it.
// Numbers are not given twice.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "udp/event_count.h"
#include "udp/lane_set.h"

namespace softmrc::udp {

class CompletionQueues {
 public:
  explicit CompletionQueues(LaneSet& lanes) : lanes_(lanes) {}

  std::uint32_t create();
  proto::MaybeError destroy(std::uint32_t cq);
  bool contains(std::uint32_t cq) { return find(cq) != nullptr; }
  std::size_t size();
  // The number in this lane's engine, where a part is made if there is none; nothing where there is no such queue.
  std::optional<std::uint32_t> part_of(std::uint32_t cq, std::uint32_t lane);

  // Waits until the queue holds something, and takes it. Zero when the time is up, the queue gone or the device closed.
  std::size_t wait(std::uint32_t cq, std::span<proto::Completion> out, Duration timeout);
  std::size_t poll(std::uint32_t cq, std::span<proto::Completion> out);
  // A descriptor that is readable while the queue may hold something.
  int fd(std::uint32_t cq);
  // The device is closed, or failed: those that wait return. With the lanes' mutex held.
  void wake_all();

 private:
  struct Queue {
    struct Part {
      std::uint32_t lane = 0;
      std::uint32_t cq = 0;
    };
    std::vector<Part> parts;
    EventCount event_count;
    int fd = -1;
    std::atomic<QueueState> state{QueueState::of_one_lane};
    std::uint32_t turn = 0;  // which part is polled first
    ~Queue();
  };

  std::shared_ptr<Queue> find(std::uint32_t cq);
  std::uint32_t part_in(Queue& queue, std::uint32_t lane);
  std::size_t take(Queue& queue, std::span<proto::Completion> out);

  LaneSet& lanes_;
  // These two under the lanes' mutex.
  std::map<std::uint32_t, std::shared_ptr<Queue>> queues_;
  std::uint32_t next_ = 0;
};

}  // namespace softmrc::udp
