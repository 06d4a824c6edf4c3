#include "collectives/p2p_matcher.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "collectives/error_text.h"
#include "collectives/immediate.h"

namespace softmrc::collectives {
namespace {

constexpr std::uint64_t small_send = 4096;
constexpr std::uint32_t max_small_sends = 32;  // that wait at the receiver, from one sender
constexpr std::uint64_t largest_write = 1ull << 30;
constexpr Duration first_inquiry_after = seconds(1);

std::string count_text(std::uint64_t bytes, DType dtype) {
  return std::to_string(bytes / size_of(dtype)) + " " + dtype_names[static_cast<std::size_t>(dtype)];
}

}  // namespace

void P2pMatcher::send(proto::Endpoint& engine, Time now, Part from, DType dtype, std::uint32_t to, std::uint32_t tag,
                      double timeout_s, const std::shared_ptr<Work>& work) {
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
  sends_.push_back({header.number, to, tag, from, deadline_of(now, timeout_s), timeout_s, work});
  failures_.ensure_inquiry(now + first_inquiry_after);
}

void P2pMatcher::receive(proto::Endpoint& engine, Time now, Part to, DType dtype, std::int32_t source,
                         std::uint32_t tag, double timeout_s, const std::shared_ptr<Work>& work) {
  if (failures_.has_failed()) return work->fail(failures_.error());
  if (router_.is_leaving()) return work->fail(closed_message);
  ++stats_.receives;
  failures_.ensure_inquiry(now + first_inquiry_after);
  RecvOp receiving{source, tag, to, dtype, 0, 0, deadline_of(now, timeout_s), timeout_s, work};
  for (auto offer = unexpected_.begin(); offer != unexpected_.end(); ++offer) {
    if ((source >= 0 && offer->peer != static_cast<std::uint32_t>(source)) || offer->header.tag != tag) continue;
    const UnexpectedSend found = std::move(*offer);
    unexpected_.erase(offer);
    if (!match(engine, now, receiving, found.peer, found.header, found.payload)) receives_.push_back(receiving);
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
  receives_.push_back(std::move(receiving));
}

void P2pMatcher::on_offer(proto::Endpoint& engine, Time now, std::uint32_t peer, const MessageHeader& header,
                          std::span<const std::uint8_t> payload) {
  for (auto at = receives_.begin(); at != receives_.end(); ++at) {
    if (at->rkey || at->tag != header.tag || (at->source >= 0 && at->source != static_cast<std::int32_t>(peer)))
      continue;
    if (match(engine, now, *at, peer, header, payload) && !failures_.has_failed()) receives_.erase(at);
    return;
  }
  unexpected_.push_back({peer, header, {payload.begin(), payload.end()}});
}

// True when the receive has ended with it.
bool P2pMatcher::match(proto::Endpoint& engine, Time now, RecvOp& receive, std::uint32_t peer,
                       const MessageHeader& header, std::span<const std::uint8_t> payload) {
  if (header.bytes != receive.to.bytes || header.descriptor.dtype != receive.dtype) {
    failures_.fail(engine, now,
                   rank_name(peer) + " sends " + count_text(header.bytes, header.descriptor.dtype) + " where " +
                       rank_name(self_.rank) + " receives " + count_text(receive.to.bytes, receive.dtype));
    return true;
  }
  receive.source = static_cast<std::int32_t>(peer);
  receive.work->source = receive.source;
  if (header.has_payload) {
    if (!payload.empty()) std::memcpy(receive.to.data, payload.data(), payload.size());
    ++connections_.find(peer)->ring.offers_taken_here;
    receive.work->succeed();
    return true;
  }
  receive.id = header.number;
  receive.rkey = connections_.new_rkeys(engine, 1);
  MessageHeader reply;
  reply.type = MessageType::accept;
  reply.number = header.number;
  reply.bytes = header.bytes;
  reply.rkey = receive.rkey;
  if (receive.to.bytes)
    SOFTMRC_CHECK(
        engine.add_region({receive.to.data, 0, receive.to.bytes, receive.rkey, nullptr, connections_.domain(peer)}));
  stats_.bytes_granted += header.bytes;
  router_.send(engine, now, peer, reply);
  if (receive.to.bytes) return false;
  receive.work->succeed();
  return true;
}

void P2pMatcher::on_accept(proto::Endpoint& engine, Time now, std::uint32_t peer, const MessageHeader& header) {
  const auto at = std::find_if(sends_.begin(), sends_.end(),
                               [&](const SendOp& s) { return s.peer == peer && s.id == header.number; });
  if (at == sends_.end()) return;
  // Two writes of one send: the first one's end would give the memory back that the second one reads.
  if (at->is_accepted) return failures_.fail(engine, now, rank_name(peer) + " accepted a send twice");
  at->is_accepted = true;
  at->rkey = header.rkey;
  if (at->from.bytes == 0) {
    at->work->succeed();
    sends_.erase(at);
    return;
  }
  post(engine, now, *at);
}

// As much as the send queue holds; the rest when acknowledgements have made space.
void P2pMatcher::post(proto::Endpoint& engine, Time now, SendOp& send) {
  while (!send.is_written()) {
    proto::WorkRequest request;
    const std::uint64_t bytes = std::min(largest_write, send.from.bytes - send.posted);
    request.wr_id = send_mark | send.id;
    request.data = send.from.data + send.posted;
    request.remote_va = send.posted;
    request.rkey = send.rkey;
    request.length = static_cast<std::uint32_t>(bytes);
    request.imm = send_bit | send.id;
    request.has_imm = request.is_signaled = send.posted + bytes == send.from.bytes;
    const proto::PostStatus status = engine.post_write(now, connections_.find(send.peer)->bulk_qpn, request);
    if (status == proto::PostStatus::queue_full) has_unposted_ = true;
    // Or broken off by a peer that is about to say why.
    if (status != proto::PostStatus::ok) return;
    send.posted += bytes;
  }
}

void P2pMatcher::post_all(proto::Endpoint& engine, Time now) {
  has_unposted_ = false;
  for (SendOp& send : sends_)
    if (send.is_accepted) post(engine, now, send);
}

void P2pMatcher::on_received(proto::Endpoint& engine, std::uint32_t peer, std::uint32_t id) {
  const auto at = std::find_if(receives_.begin(), receives_.end(), [&](const RecvOp& r) {
    return r.rkey && r.source == static_cast<std::int32_t>(peer) && r.id == id;
  });
  if (at == receives_.end()) return;
  engine.remove_region(at->rkey);
  at->work->succeed();
  receives_.erase(at);
}

void P2pMatcher::on_sent(std::uint32_t id) {
  const auto at = std::find_if(sends_.begin(), sends_.end(),
                               [&](const SendOp& s) { return s.id == id && s.is_written(); });
  if (at == sends_.end()) return;
  at->work->succeed();
  sends_.erase(at);
}

void P2pMatcher::on_bye(proto::Endpoint& engine, Time now, std::uint32_t peer) {
  for (auto at = sends_.begin(); at != sends_.end();) {
    const auto send = at++;
    if (send->peer != peer) continue;
    if (!send->is_written())
      return failures_.fail(engine, now,
                            rank_name(peer) + " has left the group and never received what was sent to it");
    send->work->succeed();
    sends_.erase(send);
  }
  for (const RecvOp& receive : receives_)
    if (receive.source == static_cast<std::int32_t>(peer))
      return failures_.fail(engine, now, rank_name(peer) + " has left the group; a receive waits for it");
}

Time P2pMatcher::deadline() const {
  Time at = Time::never();
  for (const SendOp& s : sends_) at = std::min(at, s.deadline);
  for (const RecvOp& r : receives_) at = std::min(at, r.deadline);
  return at;
}

void P2pMatcher::check_deadlines(proto::Endpoint& engine, Time now) {
  for (const SendOp& s : sends_) {
    if (s.deadline > now) continue;
    const std::string whom = rank_name(s.peer) + (s.is_accepted ? " did not take all of it" : " did not receive it");
    return failures_.fail_timeout(engine, now, "a send with tag " + std::to_string(s.tag), s.timeout_s, whom);
  }
  for (const RecvOp& r : receives_) {
    if (r.deadline > now) continue;
    const std::string whom = r.source < 0 ? "no rank sent it"
                                          : rank_name(static_cast<std::uint32_t>(r.source)) + " did not send it";
    return failures_.fail_timeout(engine, now, "a receive with tag " + std::to_string(r.tag), r.timeout_s, whom);
  }
}

void P2pMatcher::inquire(proto::Endpoint& engine, Time now, std::vector<bool>& is_asked) {
  const auto ask = [&](std::uint32_t p) {
    if (!is_asked[p]) router_.send_empty(engine, now, p);
    is_asked[p] = true;
  };
  for (const SendOp& s : sends_) ask(s.peer);
  for (const RecvOp& r : receives_)
    if (r.source >= 0) ask(static_cast<std::uint32_t>(r.source));
}

void P2pMatcher::end(proto::Endpoint& engine, const std::string& why) {
  for (const SendOp& s : sends_) s.work->fail(why);
  for (const RecvOp& r : receives_) {
    if (r.rkey && r.to.bytes) engine.remove_region(r.rkey);
    r.work->fail(why);
  }
  sends_.clear();
  receives_.clear();
  unexpected_.clear();
  has_unposted_ = false;
}

}  // namespace softmrc::collectives
