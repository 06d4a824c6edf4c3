// How a channel carries out its stripes of collectives: grants, slices, and what waits for what.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "collectives/channel.h"
#include "collectives/error_text.h"
#include "collectives/immediate.h"

namespace softmrc::collectives {
namespace {

constexpr std::uint64_t copy_step = 1024 * 1024;

}  // namespace

Operation* Channel::find(std::uint32_t number) {
  for (const auto& op : operations_)
    if (op->number == number && !op->has_ended) return op.get();
  return nullptr;
}

void Channel::begin(Engine& engine, Time now, Operation& op) {
  failures_.ensure_inquiry(now + inquiry_interval);
  op.granted.assign(self_.size, 0);
  op.has_message.assign(self_.size, false);
  op.open_outs = static_cast<std::uint32_t>(op.outs.size());
  for (const Inbound& in : op.ins)
    if (connections_.has_left(in.peer)) on_peer_left(engine, now, in.peer, op);
  for (const Outbound& out : op.outs)
    if (connections_.has_left(out.peer)) on_peer_left(engine, now, out.peer, op);
  if (failures_.has_failed()) return;
  grant(engine, now, op);
  if (!op.copies.empty() && copy_some(op)) has_copies_ = true;
  for (std::uint32_t i = 0; i < op.outs.size(); ++i) post(engine, now, op, i);
  // What came before its time.
  for (auto& [peer, messages] : early_messages_) {
    for (std::size_t i = 0; i < messages.size();) {
      if (messages[i].header.number != op.number) {
        ++i;
        continue;
      }
      const EarlyMessage early = std::move(messages[i]);
      messages.erase(messages.begin() + static_cast<std::ptrdiff_t>(i));
      deliver(engine, now, op, peer, early.header, early.payload);
      if (failures_.has_failed()) return;
    }
  }
  advance(engine, now, op);
}

// Registers what will come in by WRITE, and tells each sender where. The transfers of one peer have keys in a row.
void Channel::grant(Engine& engine, Time now, Operation& op) {
  for (std::size_t begin = 0; begin < op.ins.size(); ++begin) {
    if (op.ins[begin].is_eager || op.ins[begin].rkey) continue;
    const std::uint32_t peer = op.ins[begin].peer;
    std::uint32_t count = 0;
    std::uint64_t bytes = 0;
    std::uint64_t total = 0;
    for (const Inbound& in : op.ins) {
      if (in.peer != peer || in.is_eager) continue;
      ++count;
      bytes += in.bytes;
      total += in.total;
    }
    shm_.offer(engine, now, peer);
    const std::uint32_t first = connections_.new_rkeys(engine, count);
    std::uint32_t next = first;
    for (Inbound& in : op.ins) {
      if (in.peer != peer || in.is_eager) continue;
      in.rkey = next++;
      if (in.bytes == 0) continue;  // a write of nothing names no memory
      SOFTMRC_CHECK(engine.add_region(
          {in.to, 0, in.bytes, in.rkey, in.needs_placing() ? &in : nullptr, connections_.domain(peer)}));
    }
    stats_.bytes_granted += bytes;
    MessageHeader header;
    header.type = MessageType::grant;
    header.number = op.number;
    header.descriptor = op.descriptor;
    header.bytes = total;
    header.rkey = first;
    router_.send(engine, now, peer, header);
  }
}

void Channel::deliver(Engine& engine, Time now, Operation& op, std::uint32_t peer, const MessageHeader& header,
                      std::span<const std::uint8_t> payload) {
  if (header.descriptor != op.descriptor) return fail_different(engine, now, peer, header.descriptor, op.descriptor);
  op.has_message[peer] = true;
  if (header.type == MessageType::eager) deliver_eager(engine, now, op, peer, header, payload);
  if (header.type == MessageType::grant) deliver_grant(engine, now, op, peer, header);
}

void Channel::deliver_eager(Engine& engine, Time now, Operation& op, std::uint32_t peer, const MessageHeader& header,
                            std::span<const std::uint8_t> payload) {
  std::uint64_t expected = 0;
  Inbound* found = nullptr;
  for (Inbound& in : op.ins) {
    if (in.peer != peer) continue;
    if (in.is_eager && in.index == header.step) found = &in;
    expected += in.total;
  }
  if (found) expected = found->bytes;
  if (found && found->has_ended)
    return failures_.fail(
        engine, now,
        rank_name(peer) + " sent step " + std::to_string(header.step) + " of " + describe(op.descriptor) + " twice");
  if (!found || expected != header.bytes || payload.size() != header.bytes)
    return failures_.fail(engine, now,
                          rank_name(peer) + " sends " + std::to_string(header.bytes) + " bytes to " +
                              rank_name(self_.rank) + " in step " + std::to_string(header.step) + " of " +
                              describe(op.descriptor) + ", which expects " + std::to_string(expected));
  if (!payload.empty() && found->to) std::memcpy(found->to, payload.data(), payload.size());
  found->arrived = found->slices.count;
  end_inbound(engine, *found);
  advance(engine, now, op);
}

void Channel::deliver_grant(Engine& engine, Time now, Operation& op, std::uint32_t peer, const MessageHeader& header) {
  std::uint64_t granted = 0, all = 0;
  for (const Outbound& out : op.outs) {
    if (out.peer != peer) continue;
    all += out.total;
    if (!out.is_eager) granted += out.total;
  }
  if (granted != header.bytes && !self_.is_first())
    return;  // the first channel has a stripe of everything, and knows the whole
  if (granted != header.bytes)
    return failures_.fail(engine, now,
                          rank_name(peer) + " expects " + std::to_string(header.bytes) + " bytes from " +
                              rank_name(self_.rank) + " in " + describe(op.descriptor) + ", which sends " +
                              std::to_string(all));
  op.granted[peer] = header.rkey;
  for (std::uint32_t i = 0; i < op.outs.size(); ++i)
    if (op.outs[i].peer == peer) post(engine, now, op, i);
  settle(op);
}

// What is small is copied, and its memory the caller's again. A barrier's end is a word about the others as well, so it
// waits until they have this rank's.
void Channel::send_eager(Engine& engine, Time now, Operation& op, std::uint32_t index) {
  Outbound& out = op.outs[index];
  if (out.posted || !op.ready(out)) return;
  out.posted = 1;
  const bool is_awaited = op.descriptor.kind == Kind::barrier;
  MessageHeader header;
  header.type = MessageType::eager;
  header.number = op.number;
  header.descriptor = op.descriptor;
  header.bytes = out.bytes;
  header.step = out.index;
  router_.send(engine, now, out.peer, header, {out.from, out.bytes},
               is_awaited ? work_request_of(op.number, index) : 0);
  if (is_awaited) return;
  out.has_ended = true;
  --op.open_outs;
}

// Every slice that is here and that its receiver waits for.
void Channel::post(Engine& engine, Time now, Operation& op, std::uint32_t index) {
  Outbound& out = op.outs[index];
  if (out.is_eager) return send_eager(engine, now, op, index);
  const std::uint32_t rkey = op.granted[out.peer];
  if (rkey == 0 || out.has_ended) return;
  const std::uint32_t ready = op.ready(out);
  while (out.posted < ready) {
    const std::uint64_t at = out.posted * out.slices.size;
    proto::WorkRequest request;
    request.wr_id = work_request_of(op.number, index);
    request.data = out.from ? out.from + at : nullptr;
    request.remote_va = at;
    request.rkey = rkey + out.index;
    request.length = static_cast<std::uint32_t>(std::min(out.slices.size, out.bytes - at));
    request.imm = immediate_of(op.number, out.index);
    request.has_imm = true;
    request.is_signaled = out.posted + 1 == out.slices.count;
    ShmRing* const ring = shm_.to(out.peer);
    const std::uint64_t shared = ring && out.from ? request.length : 0;
    if (shared && !ring->put(request.data, shared)) {
      has_unposted_ = true;
      return;
    }
    if (shared) request.length = 0;
    const proto::PostStatus status = engine.post_write(now, connections_.find(out.peer)->bulk_qpn, request);
    if (status != proto::PostStatus::ok && shared) ring->take_back(shared);
    if (status == proto::PostStatus::queue_full) has_unposted_ = true;
    if (status != proto::PostStatus::ok) return;
    ++out.posted;
    ++stats_.slices;
    stats_.slices_shared += shared != 0;
  }
}

void Channel::post_all(Engine& engine, Time now) {
  has_unposted_ = false;
  for (const auto& op : operations_) {
    if (op->has_ended) continue;
    for (std::uint32_t i = 0; i < op->outs.size(); ++i) post(engine, now, *op, i);
  }
}

void Channel::handle_slice(Engine& engine, Time now, std::uint32_t peer, std::uint32_t imm, std::uint32_t length) {
  for (const auto& op : operations_) {
    if (op->has_ended || !is_immediate_of(imm, op->number)) continue;
    for (Inbound& in : op->ins) {
      if (in.peer != peer || in.is_eager || in.index != index_of(imm)) continue;
      if (in.has_ended) break;
      op->has_message[peer] = true;
      if (length == 0 && in.bytes && !shm_.take(engine, now, in)) return;
      ++in.arrived;
      for (std::uint32_t out : in.feeds) post(engine, now, *op, out);
      if (in.arrived == in.slices.count) end_inbound(engine, in);
      advance(engine, now, *op);
      return;
    }
    break;
  }
  failures_.fail(engine, now, rank_name(peer) + " sent data that belongs to nothing");
}

void Channel::handle_sent(std::uint64_t wr_id) {
  Operation* op = find(number_of(wr_id));
  if (!op) return;
  Outbound& out = op->outs[out_of(wr_id)];
  if (out.has_ended) return;
  out.has_ended = true;
  --op->open_outs;
  settle(*op);
}

void Channel::end_inbound(Engine& engine, Inbound& in) {
  in.has_ended = true;
  if (!in.is_eager && in.bytes) engine.remove_region(in.rkey);
}

// Takes what has come in, and sends what waited for that.
void Channel::advance(Engine& engine, Time now, Operation& op) {
  while (const Inbound* in = op.take())
    for (std::uint32_t out : in->feeds) post(engine, now, op, out);
  settle(op);
}

// True while there is more to copy.
bool Channel::copy_some(Operation& op) {
  std::uint64_t room = copy_step;
  for (Copy& copy : op.copies) {
    const std::uint64_t before = copy.done;
    copy.run(room);
    room -= copy.done - before;
    if (copy.done < copy.bytes) return true;
  }
  op.copies.clear();
  return false;
}

// It has ended when everything came in and everything that went out from the caller's memory was acknowledged.
void Channel::settle(Operation& op) {
  if (op.has_ended || op.taken < op.ins.size() || !op.copies.empty()) return;
  if (!op.has_finished) {
    op.has_finished = true;
    if (op.finish) op.finish();
  }
  if (op.open_outs) return;
  op.has_ended = has_ended_some_ = true;
  owner_.on_ended(self_.number, op, true);
}

// Forgets what has ended, and begins what the owner has for this channel.
void Channel::sweep(Engine& engine, Time now) {
  while (has_ended_some_ || owner_.has_work(self_.number)) {
    has_ended_some_ = false;
    operations_.remove_if([](const auto& op) { return op->has_ended; });
    QueuedWork mail;
    if (owner_.has_work(self_.number)) mail = owner_.pop_all(self_.number);
    for (auto& op : mail.operations) {
      next_number_ = op->number + 1;
      operations_.push_back(std::move(op));
      if (!failures_.has_failed() && !mail.ending) begin(engine, now, *operations_.back());
    }
    if (mail.ending) failures_.end(engine, now, *mail.ending);
    if (failures_.has_failed()) end_operations(engine);
  }
}

}  // namespace softmrc::collectives
