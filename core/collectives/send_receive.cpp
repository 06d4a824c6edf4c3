// Send and receive: the sender offers, with the data if it is small; the receiver accepts, and then the data lands.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "collectives/channel.h"
#include "collectives/error_text.h"
#include "collectives/immediate.h"

namespace softmrc::collectives {
namespace {

constexpr std::uint64_t small_send = 4096;
constexpr std::uint32_t max_small_sends = 32;  // that wait at the receiver, from one sender
constexpr std::uint64_t largest_write = 1ull << 30;
constexpr Duration first_inquiry_after = seconds(1);

std::string words_of(std::uint64_t bytes, DType dtype) {
  return std::to_string(bytes / size_of(dtype)) + " " + dtype_names[static_cast<std::size_t>(dtype)];
}

}  // namespace

void Channel::send(Part from, DType dtype, std::uint32_t to, std::uint32_t tag, double timeout_s,
                   const std::shared_ptr<Work>& work) {
  driver_.run_and_send([&](Engine& engine, Time now) {
    if (!failures_.has_failed() && connections_.has_left(to))
      failures_.fail(engine, now, rank_name(to) + " has left the group; nothing can be sent to it");
    if (failures_.has_failed()) return work->fail(failures_.error());
    if (router_.is_leaving()) return work->fail(closed_message);
    ++stats_.sends;
    MessageRing& ring = connections_.get_or_connect(engine, now, to).ring;
    MessageHeader header;
    header.type = MessageType::offer;
    header.number = next_offer_++ & ~send_bit;
    header.descriptor.dtype = dtype;
    header.bytes = from.bytes;
    header.tag = tag;
    if (from.bytes <= small_send && ring.offers_sent - ring.offers_taken_there < max_small_sends) {
      header.has_payload = 1;
      ++ring.offers_sent;
      router_.send(engine, now, to, header, {from.data, from.bytes});
      work->succeed();
      return;
    }
    router_.send(engine, now, to, header);
    send_ops_.push_back({header.number, to, tag, from, now, deadline_of(now, timeout_s), timeout_s, work});
    failures_.ensure_inquiry(now + first_inquiry_after);
  });
}

void Channel::receive(Part to, DType dtype, std::int32_t source, std::uint32_t tag, double timeout_s,
                      const std::shared_ptr<Work>& work) {
  driver_.run_and_send([&](Engine& engine, Time now) {
    if (failures_.has_failed()) return work->fail(failures_.error());
    if (router_.is_leaving()) return work->fail(closed_message);
    ++stats_.receives;
    failures_.ensure_inquiry(now + first_inquiry_after);
    RecvOp receiving{source, tag, to, dtype, 0, 0, now, deadline_of(now, timeout_s), timeout_s, work};
    for (auto offer = offers_.begin(); offer != offers_.end(); ++offer) {
      if ((source >= 0 && offer->peer != static_cast<std::uint32_t>(source)) || offer->header.tag != tag) continue;
      const UnexpectedSend found = std::move(*offer);
      offers_.erase(offer);
      if (!match(engine, now, receiving, found.peer, found.header, found.payload)) recv_ops_.push_back(receiving);
      if (failures_.has_failed()) work->fail(failures_.error());
      router_.give_credit(engine, now, found.peer);
      return;
    }
    if (source >= 0 && connections_.has_left(static_cast<std::uint32_t>(source))) {
      failures_.fail(engine, now,
                     rank_name(static_cast<std::uint32_t>(source)) + " has left the group; a receive waits for it");
      work->fail(failures_.error());
      return;
    }
    recv_ops_.push_back(std::move(receiving));
  });
}

void Channel::handle_offer(Engine& engine, Time now, std::uint32_t peer, const MessageHeader& header,
                           std::span<const std::uint8_t> payload) {
  for (auto at = recv_ops_.begin(); at != recv_ops_.end(); ++at) {
    if (at->rkey || at->tag != header.tag || (at->source >= 0 && at->source != static_cast<std::int32_t>(peer)))
      continue;
    if (match(engine, now, *at, peer, header, payload) && !failures_.has_failed()) recv_ops_.erase(at);
    return;
  }
  offers_.push_back({peer, header, {payload.begin(), payload.end()}});
}

// True when the receive has ended with it.
bool Channel::match(Engine& engine, Time now, RecvOp& receiving, std::uint32_t peer, const MessageHeader& header,
                    std::span<const std::uint8_t> payload) {
  if (header.bytes != receiving.to.bytes || header.descriptor.dtype != receiving.dtype) {
    failures_.fail(engine, now,
                   rank_name(peer) + " sends " + words_of(header.bytes, header.descriptor.dtype) + " where " +
                       rank_name(self_.rank) + " receives " + words_of(receiving.to.bytes, receiving.dtype));
    return true;
  }
  receiving.source = static_cast<std::int32_t>(peer);
  receiving.work->source = receiving.source;
  if (header.has_payload) {
    if (!payload.empty()) std::memcpy(receiving.to.data, payload.data(), payload.size());
    ++connections_.find(peer)->ring.offers_taken_here;
    receiving.work->succeed();
    return true;
  }
  receiving.id = header.number;
  receiving.rkey = connections_.new_rkeys(engine, 1);
  MessageHeader reply;
  reply.type = MessageType::accept;
  reply.number = header.number;
  reply.bytes = header.bytes;
  reply.rkey = receiving.rkey;
  if (receiving.to.bytes)
    SOFTMRC_CHECK(engine.add_region(
        {receiving.to.data, 0, receiving.to.bytes, receiving.rkey, nullptr, connections_.domain(peer)}));
  stats_.bytes_granted += header.bytes;
  router_.send(engine, now, peer, reply);
  if (receiving.to.bytes) return false;
  receiving.work->succeed();
  return true;
}

void Channel::handle_accept(Engine& engine, Time now, std::uint32_t peer, const MessageHeader& header) {
  const auto at = std::find_if(send_ops_.begin(), send_ops_.end(),
                               [&](const SendOp& s) { return s.peer == peer && s.id == header.number; });
  if (at == send_ops_.end()) return;
  // Two writes of one send: the first one's end would give the memory back that the second one reads.
  if (at->is_accepted) return failures_.fail(engine, now, rank_name(peer) + " accepted a send twice");
  at->is_accepted = true;
  at->rkey = header.rkey;
  if (at->from.bytes == 0) {
    at->work->succeed();
    send_ops_.erase(at);
    return;
  }
  post(engine, now, *at);
}

// As much as the send queue holds; the rest when acknowledgements have made room.
void Channel::post(Engine& engine, Time now, SendOp& sending) {
  while (!sending.is_written()) {
    proto::WorkRequest request;
    const std::uint64_t bytes = std::min(largest_write, sending.from.bytes - sending.posted);
    request.wr_id = send_mark | sending.id;
    request.data = sending.from.data + sending.posted;
    request.remote_va = sending.posted;
    request.rkey = sending.rkey;
    request.length = static_cast<std::uint32_t>(bytes);
    request.imm = send_bit | sending.id;
    request.has_imm = request.is_signaled = sending.posted + bytes == sending.from.bytes;
    const proto::PostStatus status = engine.post_write(now, connections_.find(sending.peer)->bulk_qpn, request);
    if (status == proto::PostStatus::queue_full) has_unposted_ = true;
    // Or broken off by a peer that is about to say why.
    if (status != proto::PostStatus::ok) return;
    sending.posted += bytes;
  }
}

void Channel::handle_received(Engine& engine, std::uint32_t peer, std::uint32_t id) {
  const auto at = std::find_if(recv_ops_.begin(), recv_ops_.end(), [&](const RecvOp& r) {
    return r.rkey && r.source == static_cast<std::int32_t>(peer) && r.id == id;
  });
  if (at == recv_ops_.end()) return;
  engine.remove_region(at->rkey);
  at->work->succeed();
  recv_ops_.erase(at);
}

void Channel::handle_sending_done(std::uint32_t id) {
  const auto at = std::find_if(send_ops_.begin(), send_ops_.end(),
                               [&](const SendOp& s) { return s.id == id && s.is_written(); });
  if (at == send_ops_.end()) return;
  at->work->succeed();
  send_ops_.erase(at);
}

void Channel::look_at_point_to_point(Engine& engine, Time now) {
  for (const SendOp& s : send_ops_)
    if (s.deadline <= now) {
      const std::string whom = rank_name(s.peer) + (s.is_accepted ? " did not take all of it" : " did not receive it");
      return failures_.fail_timeout(engine, now, "a send with tag " + std::to_string(s.tag), s.timeout_s, whom);
    }
  for (const RecvOp& r : recv_ops_)
    if (r.deadline <= now) {
      const std::string whom = r.source < 0 ? "nobody sent it"
                                            : rank_name(static_cast<std::uint32_t>(r.source)) + " did not send it";
      return failures_.fail_timeout(engine, now, "a receive with tag " + std::to_string(r.tag), r.timeout_s, whom);
    }
}

void Channel::end_p2p(Engine& engine, const std::string& why) {
  for (const SendOp& s : send_ops_) s.work->fail(why);
  for (const RecvOp& r : recv_ops_) {
    if (r.rkey && r.to.bytes) engine.remove_region(r.rkey);
    r.work->fail(why);
  }
  send_ops_.clear();
  recv_ops_.clear();
  offers_.clear();
}

}  // namespace softmrc::collectives
