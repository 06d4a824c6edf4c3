// What has become of the writes of one connection, and what its peer has sent. Any number of threads may wait for
// different writes and for messages: the leading thread takes what the completion queues hold, for all of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "proto/completion.h"
#include "proto/endpoint.h"
#include "udp/lane.h"

namespace softmrc::udp {

class CompletionTracker {
 public:
  struct Message {
    std::uint32_t imm = 0;
    std::uint32_t length = 0;
  };
  enum class RecvResult : std::uint8_t { message, timed_out, none_will_come };

  // The queues by the numbers of the lane in which the queue pair is.
  CompletionTracker(Lane& lane, std::uint32_t qpn, std::uint32_t send_cq, std::uint32_t recv_cq);

  // Numbers count up from 1. What is neither pending nor has failed has ended well.
  std::uint64_t next_number() { return ++last_number_; }
  std::uint64_t last_number() const { return last_number_; }
  // `wr_id` is its number.
  proto::PostStatus post(const proto::WorkRequest& request);

  // Waits until that write has ended. True as well when it never will, since the connection or the device is closed.
  bool wait_for_write(std::uint64_t number, Duration timeout);
  // Waits for the next message and takes it. None will come when the queue pair is in error, its peer gone, or the
  // connection or device closed; what had arrived before is taken first.
  RecvResult wait_for_message(Message& out, Duration timeout);
  // A message that was taken and is to be the next once more.
  void put_back(const Message& message);

  // Take what is there now. Whether the descriptor of the queue was readable, which it then is no longer: other
  // watchers must look, too.
  bool poll_writes();
  bool poll_messages();
  // Whether `wait_for_message` would return at once.
  bool has_arrival();
  bool is_pending(std::uint64_t number);
  bool has_failed(std::uint64_t number);
  // Of the first write that failed, which knows the cause.
  std::optional<proto::CompletionStatus> first_failure();
  // Writes that have ended since last asked: their memory is no longer read.
  std::vector<std::uint64_t> take_ended();

  // All waits return, now and later.
  void close();

 private:
  // With the engine to oneself. Whether there was anything.
  bool take_writes();
  bool take_messages();
  bool take_message(Message& out);
  void tell_waiters();
  bool is_over() const;

  Lane& lane_;
  const std::uint32_t qpn_, send_cq_, recv_cq_;
  std::atomic<std::uint64_t> last_number_{0};
  std::atomic<int> waiters_{0};

  // What follows, only with the engine to oneself.
  proto::Endpoint* engine_ = nullptr;
  std::unordered_set<std::uint64_t> pending_;
  std::unordered_map<std::uint64_t, proto::CompletionStatus> failed_;
  std::optional<proto::CompletionStatus> first_failure_;
  std::vector<std::uint64_t> ended_;
  std::deque<Message> messages_;
  bool is_closed_ = false;
};

}  // namespace softmrc::udp
