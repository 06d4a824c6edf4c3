// The messages of a queue pair from posting to confirmation, oldest first, and how far they have been cut into packets.
// What is sent of them, and when, is the requester's to say.
#pragma once

#include <cstdint>

#include "base/prefetch.h"
#include "base/ring.h"
#include "base/serial.h"

namespace softmrc::proto {

struct WorkRequest {
  std::uint64_t wr_id = 0;
  const std::uint8_t* data = nullptr;  // null: a message without bytes, for simulators
  std::uint64_t remote_va = 0;
  std::uint32_t rkey = 0;
  std::uint32_t length = 0;
  std::uint32_t imm = 0;
  bool has_imm = false;
  bool is_signaled = true;
};

class SendQueue {
 public:
  struct Message : WorkRequest {
    std::uint32_t packets = 0;
    Psn first_psn{};
    std::uint16_t msn = 0;
    std::uint16_t rqmsn = 0;
    bool is_sent = false;  // its last packet has gone out at least once

    Psn last_psn() const { return first_psn + (packets - 1); }
  };

  bool empty() const { return messages_.empty(); }
  std::size_t size() const { return messages_.size(); }
  // The oldest that the peer has not confirmed.
  const Message& front() const { return messages_.front(); }
  const Message& operator[](std::size_t i) const { return messages_[i]; }
  const Message& of(std::uint16_t msn) const {
    return messages_[static_cast<std::uint16_t>(msn - messages_.front().msn)];
  }

  void push(const WorkRequest& request, std::uint32_t packets) {
    Message m{request};
    m.packets = packets;
    m.msn = next_msn_++;
    m.rqmsn = next_rqmsn_;
    if (request.has_imm) ++next_rqmsn_;
    messages_.push(m);
  }

  // Nothing is left to cut.
  bool is_cut() const { return cutting_ == messages_.size(); }
  // The next packet is the first of its message.
  bool is_at_first() const { return packets_cut_ == 0; }
  // Something of these messages has been sent.
  bool has_begun() const { return cutting_ || packets_cut_; }
  // Whether the next packet would begin an immediate more than may be under way.
  bool waits_for_immediates(std::uint32_t most) const {
    return messages_[cutting_].has_imm && packets_cut_ == 0 && immediates_ >= most;
  }
  // The message whose next packet gets this PSN.
  const Message& cut(Psn psn) {
    Message& message = messages_[cutting_];
    if (packets_cut_ == 0) {
      message.first_psn = psn;
      if (message.has_imm) ++immediates_;
    }
    if (++packets_cut_ == message.packets) {
      message.is_sent = true;
      ++cutting_;
      packets_cut_ = 0;
    }
    return message;
  }

  // All of its packets have been sent.
  bool has_sent_operation() const { return !messages_.empty() && messages_.front().is_sent; }
  // The oldest, all of which was sent, is confirmed.
  void confirm() {
    if (messages_.front().has_imm) --immediates_;
    messages_.pop();
    --cutting_;
  }
  // The oldest will never be.
  void give_up() {
    messages_.pop();
    cutting_ = packets_cut_ = 0;
  }

  // Whether some message here takes its bytes from there.
  bool reads_from(const std::uint8_t* begin, const std::uint8_t* end) const {
    for (std::size_t i = 0; i < messages_.size(); ++i)
      if (messages_[i].data && messages_[i].data < end && messages_[i].data + messages_[i].length > begin) return true;
    return false;
  }
  void prefetch_state() const { prefetch(messages_.front_slot()); }

 private:
  Ring<Message> messages_;
  std::uint32_t cutting_ = 0;      // index of the one being cut
  std::uint32_t packets_cut_ = 0;  // of that one
  std::uint16_t next_msn_ = 0;
  std::uint16_t next_rqmsn_ = 0;
  std::uint32_t immediates_ = 0;  // under way
};

}  // namespace softmrc::proto
