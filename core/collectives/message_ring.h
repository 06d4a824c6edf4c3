// Messages between two ranks, in order. Each writes into a ring in the other's memory, WRITE_IMM announces it, and
// every header says how much of the other direction has been read, which is also what frees this side's copy: what has
// been read has arrived, and a packet that is retransmitted after it arrived is ignored.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "collectives/message.h"
#include "proto/endpoint.h"

namespace softmrc::collectives {

class MessageRing {
 public:
  static constexpr std::uint32_t wide_ring = 256 * 1024;   // where small data travels in messages
  static constexpr std::uint32_t narrow_ring = 16 * 1024;  // where they only grant
  static constexpr std::uint32_t reserve = 4096;           // of the ring, for messages that only bring credit

  // Makes both rings; the peer's are as large.
  void open(std::uint32_t ring_bytes);
  std::uint32_t ring_bytes() const { return ring_bytes_; }
  std::uint8_t* inbound() { return inbound_.get(); }
  void connect(std::uint32_t qpn, std::uint32_t remote_rkey) {
    qpn_ = qpn;
    remote_rkey_ = remote_rkey;
  }

  // Never blocks: what finds no space, in the peer's ring or in the send queue, waits here. A work request that is not
  // 0 completes with the acknowledgement.
  void send(proto::Endpoint& engine, Time now, MessageHeader header, std::span<const std::uint8_t> payload = {},
            std::uint64_t wr_id = 0);
  bool has_backlog() const { return !backlog_.empty(); }
  // Whether something is unsent that no message from the peer need ever ask for: flush it when the send queue has
  // space.
  bool is_waiting() const { return has_backlog() || owes_credit_; }
  void flush(proto::Endpoint& engine, Time now);
  bool has_received() const { return read_here_ > 0; }

  struct Received {
    MessageHeader header;
    std::span<const std::uint8_t> payload;  // valid until the next one
    bool is_valid = false;
  };
  // The next message, of which the engine says that it is `length` long.
  Received receive(proto::Endpoint& engine, Time now, std::uint32_t length);
  // Sends the peer what has been read if it may be waiting for that.
  void give_credit(proto::Endpoint& engine, Time now);

  std::uint32_t qpn() const { return qpn_; }
  // Small offers: ours that wait for their receiver, the peer's that have found one here.
  std::uint32_t offers_sent = 0;
  std::uint32_t offers_taken_there = 0;
  std::uint32_t offers_taken_here = 0;

 private:
  bool write(proto::Endpoint& engine, Time now, MessageHeader& header, std::span<const std::uint8_t> payload,
             std::uint64_t wr_id, std::uint32_t limit);
  std::uint64_t start_of(std::uint64_t at, std::uint64_t size) const;

  struct Waiting {
    MessageHeader header;
    std::vector<std::uint8_t> payload;
    std::uint64_t wr_id = 0;
  };

  std::uint32_t ring_bytes_ = 0;
  std::unique_ptr<std::uint8_t[]> inbound_;
  std::unique_ptr<std::uint8_t[]> outbound_;
  std::list<Waiting> backlog_;
  std::uint32_t qpn_ = 0;
  std::uint32_t remote_rkey_ = 0;
  std::uint64_t written_ = 0;     // bytes of the outbound ring used so far, gaps at its end included
  std::uint64_t read_there_ = 0;  // of those, what the peer has read
  std::uint64_t read_here_ = 0;
  std::uint64_t advertised_ = 0;  // of read_here_, what the peer knows
  std::uint32_t advertised_taken_ = 0;
  bool owes_credit_ = false;
};

}  // namespace softmrc::collectives
