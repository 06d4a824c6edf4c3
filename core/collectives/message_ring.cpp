#include "collectives/message_ring.h"

#include <cstring>

namespace softmrc::collectives {
namespace {

constexpr std::uint64_t alignment = 64;
constexpr std::uint32_t advertise_taken_after = 8;

constexpr std::uint64_t aligned(std::uint64_t size) { return (size + alignment - 1) / alignment * alignment; }

}  // namespace

// Both are written before they are read.
void MessageRing::open(std::uint32_t ring_bytes) {
  ring_bytes_ = ring_bytes;
  inbound_ = std::make_unique_for_overwrite<std::uint8_t[]>(ring_bytes);
  outbound_ = std::make_unique_for_overwrite<std::uint8_t[]>(ring_bytes);
}

// Where a message of this size starts: it does not wrap, so the end of the ring may stay unused.
std::uint64_t MessageRing::start_of(std::uint64_t at, std::uint64_t size) const {
  const std::uint64_t left = ring_bytes_ - at % ring_bytes_;
  return size > left ? at + left : at;
}

bool MessageRing::write(proto::Endpoint& engine, Time now, MessageHeader& header, std::span<const std::uint8_t> payload,
                        std::uint64_t wr_id, std::uint32_t limit) {
  const std::uint64_t size = sizeof header + payload.size();
  const std::uint64_t start = start_of(written_, aligned(size));
  if (start + aligned(size) - read_there_ > limit) return false;
  header.payload = static_cast<std::uint16_t>(payload.size());
  header.consumed = read_here_;
  header.taken = offers_taken_here;
  std::uint8_t* at = outbound_.get() + start % ring_bytes_;
  std::memcpy(at, &header, sizeof header);
  if (!payload.empty() && payload.data()) std::memcpy(at + sizeof header, payload.data(), payload.size());
  proto::WorkRequest request;
  request.wr_id = wr_id;
  request.data = at;
  request.remote_va = start % ring_bytes_;
  request.rkey = remote_rkey_;
  request.length = static_cast<std::uint32_t>(size);
  request.has_imm = true;
  request.is_signaled = wr_id != 0;
  if (engine.post_write(now, qpn_, request) == proto::PostStatus::queue_full) return false;
  written_ = start + aligned(size);
  advertised_ = read_here_;
  advertised_taken_ = offers_taken_here;
  owes_credit_ = false;
  return true;
}

void MessageRing::send(proto::Endpoint& engine, Time now, MessageHeader header, std::span<const std::uint8_t> payload,
                       std::uint64_t wr_id) {
  if (backlog_.empty() && write(engine, now, header, payload, wr_id, ring_bytes_ - reserve)) return;
  backlog_.push_back(
      {header, payload.data() ? std::vector(payload.begin(), payload.end()) : std::vector<std::uint8_t>(payload.size()),
       wr_id});
}

// Credit does not wait behind messages: what they wait for may be the peer's, which waits for ours.
void MessageRing::flush(proto::Endpoint& engine, Time now) {
  while (!backlog_.empty()) {
    Waiting& next = backlog_.front();
    if (!write(engine, now, next.header, next.payload, next.wr_id, ring_bytes_ - reserve)) break;
    backlog_.pop_front();
  }
  give_credit(engine, now);
}

MessageRing::Received MessageRing::receive(proto::Endpoint& engine, Time now, std::uint32_t length) {
  Received result;
  if (length < sizeof(MessageHeader) || length > sizeof(MessageHeader) + max_payload || aligned(length) > ring_bytes_)
    return result;
  const std::uint64_t start = start_of(read_here_, aligned(length));
  const std::uint8_t* at = inbound_.get() + start % ring_bytes_;
  std::memcpy(&result.header, at, sizeof result.header);
  if (result.header.payload != length - sizeof(MessageHeader)) return result;
  result.payload = {at + sizeof(MessageHeader), result.header.payload};
  result.is_valid = true;
  read_here_ = start + aligned(length);
  if (result.header.consumed > read_there_ && result.header.consumed <= written_) read_there_ = result.header.consumed;
  offers_taken_there = result.header.taken;
  flush(engine, now);
  return result;
}

void MessageRing::give_credit(proto::Endpoint& engine, Time now) {
  if (read_here_ - advertised_ < ring_bytes_ / 4 && offers_taken_here - advertised_taken_ < advertise_taken_after)
    return;
  MessageHeader header;
  header.type = MessageType::credit;
  owes_credit_ = !write(engine, now, header, {}, 0, ring_bytes_);
}

}  // namespace softmrc::collectives
