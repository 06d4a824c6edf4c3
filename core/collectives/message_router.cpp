#include "collectives/message_router.h"

#include <algorithm>
#include <bit>

#include "collectives/error_text.h"

namespace softmrc::collectives {

void MessageRouter::send(proto::Endpoint& engine, Time now, std::uint32_t peer, MessageHeader header,
                         std::span<const std::uint8_t> payload, std::uint64_t wr_id) {
  ++stats_.messages;
  MessageRing& ring = connections_.get_or_connect(engine, now, peer).ring;
  ring.send(engine, now, header, payload, wr_id);
  has_unsent_ |= ring.is_waiting();
}

void MessageRouter::send_empty(proto::Endpoint& engine, Time now, std::uint32_t peer) {
  MessageHeader header;
  header.type = MessageType::credit;
  send(engine, now, peer, header);
}

void MessageRouter::give_credit(proto::Endpoint& engine, Time now, std::uint32_t peer) {
  MessageRing& ring = connections_.find(peer)->ring;
  ring.give_credit(engine, now);
  has_unsent_ |= ring.is_waiting();
}

// What found no space in a send queue, which acknowledgements make: no message reports that.
void MessageRouter::flush(proto::Endpoint& engine, Time now) {
  has_unsent_ = false;
  for (std::uint32_t p = 0; p < self_.size; ++p) {
    PeerConnection* const peer = connections_.find(p);
    if (!peer || !peer->ring.is_waiting()) continue;
    peer->ring.flush(engine, now);
    has_unsent_ |= peer->ring.is_waiting();
  }
}

std::optional<MessageRing::Received> MessageRouter::receive(proto::Endpoint& engine, Time now, std::uint32_t peer,
                                                            std::uint32_t length) {
  PeerConnection& connection = *connections_.find(peer);
  const MessageRing::Received got = connection.ring.receive(engine, now, length);
  const bool is_small_data = got.header.type == MessageType::eager || got.header.type == MessageType::offer ||
                             got.header.type == MessageType::accept;
  if (!got.is_valid || !is_valid_header(got.header) || (is_small_data && !self_.is_first())) {
    failures_.fail(engine, now, rank_name(peer) + invalid_message);
    return std::nullopt;
  }
  if (got.header.type == MessageType::bye) connection.has_left = true;
  if (failures_.has_failed()) return std::nullopt;
  return got;
}

// A failure must reach all ranks, also those that this one is not connected with, and whichever ranks are gone. So a
// rank notifies its peers, and each rank that is notified those at distances of powers of two: that leaves several
// paths to every rank.
bool MessageRouter::is_notified(std::uint32_t p, const GroupFailure& failure) const {
  const PeerConnection* const peer = connections_.find(p);
  if (peer && (peer->is_broken || peer->has_left)) return false;
  const std::uint32_t ahead = (p + self_.size - self_.rank) % self_.size;
  const bool is_near = std::has_single_bit(ahead) || std::has_single_bit(self_.size - ahead);
  return peer ? failure.is_ours || is_near : is_near && connections_.may_connect();
}

void MessageRouter::send_error(proto::Endpoint& engine, Time now, std::uint32_t p) {
  const std::string& why = failures_.error();
  MessageHeader header;
  header.type = MessageType::error;
  send(engine, now, p, header,
       {reinterpret_cast<const std::uint8_t*>(why.data()), std::min<std::size_t>(why.size(), 1024)});
}

void MessageRouter::send_bye(proto::Endpoint& engine, Time now, std::uint32_t p) {
  MessageHeader header;
  header.type = MessageType::bye;
  header.number = failures_.has_failed();  // then nothing is sure of what came here
  send(engine, now, p, header);
}

// An error is sent in order with all else that this rank has sent before. From here on nothing is read from the
// callers' memory, and nothing lands there.
void MessageRouter::on_group_failure(proto::Endpoint& engine, Time now, const GroupFailure& failure) {
  for (std::uint32_t p = 0; p < self_.size; ++p) {
    if (p == self_.rank) continue;
    if (self_.is_first() && is_notified(p, failure)) send_error(engine, now, p);
    connections_.close_bulk(engine, now, p);
  }
}

void MessageRouter::leave(proto::Endpoint& engine, Time now) {
  is_leaving_ = true;
  for (std::uint32_t p = 0; p < self_.size && connections_.is_started(); ++p) {
    const PeerConnection* const peer = connections_.find(p);
    if (peer && peer->is_connected() && !peer->is_broken) send_bye(engine, now, p);
  }
}

void MessageRouter::send_missed(proto::Endpoint& engine, Time now, std::uint32_t p) {
  if (failures_.has_failed() && self_.is_first()) send_error(engine, now, p);
  if (is_leaving_) send_bye(engine, now, p);
}

bool MessageRouter::is_drained(const proto::Endpoint& engine) const {
  for (std::uint32_t p = 0; p < self_.size; ++p) {
    const PeerConnection* const peer = connections_.find(p);
    if (!peer || !peer->is_connected() || peer->is_broken || peer->has_left) continue;
    const proto::QueuePair* pair = engine.qp(peer->ring.qpn());
    if (peer->ring.has_backlog() || (pair && pair->requester().has_work())) return false;
  }
  return true;
}

}  // namespace softmrc::collectives
