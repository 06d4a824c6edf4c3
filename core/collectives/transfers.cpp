// How a strand carries out its stripes of collectives: grants, slices, and what waits for what.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "collectives/strand.h"
#include "collectives/immediate.h"

namespace softmrc::collectives {
namespace {

constexpr std::uint64_t copy_step = 1024 * 1024;

}  // namespace

Operation* Strand::find(std::uint32_t number) {
  for (const auto& op : operations_)
    if (op->number == number && !op->has_ended) return op.get();
  return nullptr;
}

std::uint32_t Strand::new_rkeys(Engine& engine, std::uint32_t count) {
  for (;;) {
    const std::uint32_t first = static_cast<std::uint32_t>(prng_.bits()) | 1;
    bool is_free = first + count > first;
    for (std::uint32_t i = 0; i < count && is_free; ++i) is_free = !engine.has_region(first + i);
    if (is_free) return first;
  }
}

void Strand::begin(Engine& engine, Time now, Operation& op) {
  if (inquires_at_ == Time::never()) inquires_at_ = now + inquiry_interval;
  op.granted.assign(place_.size, 0);
  op.has_message.assign(place_.size, false);
  op.open_ins = static_cast<std::uint32_t>(op.ins.size());
  op.open_outs = static_cast<std::uint32_t>(op.outs.size());
  for (const Inbound& in : op.ins)
    if (peers_[in.peer].has_left) miss(engine, now, in.peer, op);
  for (const Outbound& out : op.outs)
    if (peers_[out.peer].has_left) miss(engine, now, out.peer, op);
  if (has_failed()) return;
  grant(engine, now, op);
  // What is small is copied, and its memory the caller's again. A barrier's end is a word about the others as well, so it
  // waits until they have this rank's.
  const bool is_awaited = op.descriptor.kind == Kind::barrier;
  for (std::uint32_t i = 0; i < op.outs.size(); ++i) {
    Outbound& out = op.outs[i];
    if (!out.is_eager) continue;
    Header header;
    header.type = MessageType::eager;
    header.number = op.number;
    header.descriptor = op.descriptor;
    header.bytes = out.bytes;
    say(engine, now, out.peer, header, {out.from, out.bytes}, is_awaited ? work_request_of(op.number, i) : 0);
    if (is_awaited) continue;
    out.has_ended = true;
    --op.open_outs;
  }
  if (!op.copies.empty() && copy_some(op)) has_copies_ = true;
  // What came before its time.
  for (std::uint32_t p = 0; p < place_.size && !has_failed(); ++p) {
    auto& stash = peers_[p].stash;
    for (std::size_t i = 0; i < stash.size() && !has_failed();) {
      if (stash[i].header.number != op.number) {
        ++i;
        continue;
      }
      const Stashed early = std::move(stash[i]);
      stash.erase(stash.begin() + static_cast<std::ptrdiff_t>(i));
      deliver(engine, now, op, p, early.header, early.payload);
    }
  }
  if (!has_failed()) settle(op);
}

// Registers what will come in by WRITE, and tells each sender where. The transfers of one peer have keys in a row.
void Strand::grant(Engine& engine, Time now, Operation& op) {
  for (std::uint32_t peer = 0; peer < place_.size; ++peer) {
    std::uint32_t count = 0;
    std::uint64_t bytes = 0;
    std::uint64_t total = 0;
    for (const Inbound& in : op.ins) {
      if (in.peer != peer || in.is_eager) continue;
      ++count;
      bytes += in.bytes;
      total += in.total;
    }
    if (count == 0) continue;
    const std::uint32_t first = new_rkeys(engine, count);
    std::uint32_t next = first;
    for (Inbound& in : op.ins) {
      if (in.peer != peer || in.is_eager) continue;
      in.rkey = next++;
      if (in.bytes == 0) {
        end_inbound(engine, now, op, in);
        continue;
      }
      SOFTMRC_CHECK(engine.add_region({in.to, 0, in.bytes, in.rkey, in.needs_placing() ? &in : nullptr, peers_[peer].domain}));
    }
    stats_.bytes_granted += bytes;
    Header header;
    header.type = MessageType::grant;
    header.number = op.number;
    header.descriptor = op.descriptor;
    header.bytes = total;
    header.rkey = first;
    say(engine, now, peer, header);
  }
}

void Strand::deliver(Engine& engine, Time now, Operation& op, std::uint32_t peer, const Header& header, std::span<const std::uint8_t> payload) {
  if (header.descriptor != op.descriptor)
    return fail(engine, now, name_of(peer) + " called " + describe(header.descriptor) + " where " + name_of(place_.rank) + " called " + describe(op.descriptor));
  op.has_message[peer] = true;
  if (header.type == MessageType::eager) deliver_eager(engine, now, op, peer, header, payload);
  if (header.type == MessageType::grant) deliver_grant(engine, now, op, peer, header);
}

void Strand::deliver_eager(Engine& engine, Time now, Operation& op, std::uint32_t peer, const Header& header, std::span<const std::uint8_t> payload) {
  std::uint64_t expected = 0;
  Inbound* found = nullptr;
  for (Inbound& in : op.ins) {
    if (in.peer != peer) continue;
    expected += in.total;
    if (in.is_eager && !in.has_ended) found = &in;
  }
  if (!found || expected != header.bytes || payload.size() != header.bytes)
    return fail(engine, now, name_of(peer) + " sends " + std::to_string(header.bytes) + " bytes to " + name_of(place_.rank) + " in " +
                                 describe(op.descriptor) + ", which expects " + std::to_string(expected));
  if (!payload.empty()) std::memcpy(found->to, payload.data(), payload.size());
  end_inbound(engine, now, op, *found);
}

void Strand::deliver_grant(Engine& engine, Time now, Operation& op, std::uint32_t peer, const Header& header) {
  std::uint64_t mine = 0;
  for (const Outbound& out : op.outs)
    if (out.peer == peer) mine += out.total;
  if (mine != header.bytes && !is_first()) return;  // the first strand has a stripe of everything, and knows the whole
  if (mine != header.bytes)
    return fail(engine, now, name_of(peer) + " expects " + std::to_string(header.bytes) + " bytes from " + name_of(place_.rank) + " in " +
                                 describe(op.descriptor) + ", which sends " + std::to_string(mine));
  op.granted[peer] = header.rkey;
  for (std::uint32_t i = 0; i < op.outs.size(); ++i)
    if (op.outs[i].peer == peer) post(engine, now, op, i);
  settle(op);
}

// Every slice that is here and that its receiver waits for.
void Strand::post(Engine& engine, Time now, Operation& op, std::uint32_t index) {
  Outbound& out = op.outs[index];
  const std::uint32_t rkey = op.granted[out.peer];
  if (rkey == 0 || out.is_eager || out.has_ended) return;
  if (out.bytes == 0) {
    out.has_ended = true;
    --op.open_outs;
    return;
  }
  const std::uint32_t ready = out.ready(op.ins);
  while (out.posted < ready) {
    const std::uint64_t at = out.posted * out.slices.size;
    proto::WorkRequest request;
    request.wr_id = work_request_of(op.number, index);
    request.data = out.from + at;
    request.remote_va = at;
    request.rkey = rkey + out.index;
    request.length = static_cast<std::uint32_t>(std::min(out.slices.size, out.bytes - at));
    request.imm = immediate_of(op.number, out.index);
    request.has_imm = true;
    request.is_signaled = out.posted + 1 == out.slices.count;
    const proto::PostStatus status = engine.post_write(now, peers_[out.peer].bulk_qpn, request);
    if (status == proto::PostStatus::queue_full) has_unposted_ = true;
    if (status != proto::PostStatus::ok) return;
    ++out.posted;
    ++stats_.slices;
  }
}

void Strand::post_all(Engine& engine, Time now) {
  has_unposted_ = false;
  for (const auto& op : operations_) {
    if (op->has_ended) continue;
    for (std::uint32_t i = 0; i < op->outs.size(); ++i) post(engine, now, *op, i);
  }
}

void Strand::handle_slice(Engine& engine, Time now, std::uint32_t peer, std::uint32_t imm) {
  for (const auto& op : operations_) {
    if (op->has_ended || !is_immediate_of(imm, op->number)) continue;
    std::uint32_t index = 0;
    for (Inbound& in : op->ins) {
      if (in.peer != peer || in.is_eager || index++ != index_of(imm)) continue;
      if (in.has_ended) break;
      op->has_message[peer] = true;
      ++in.arrived;
      for (std::uint32_t out : in.feeds) post(engine, now, *op, out);
      if (in.arrived == in.slices.count) {
        end_inbound(engine, now, *op, in);
        settle(*op);
      }
      return;
    }
    break;
  }
  fail(engine, now, name_of(peer) + " sent data that belongs to nothing");
}

void Strand::handle_sent(std::uint64_t wr_id) {
  Operation* op = find(number_of(wr_id));
  if (!op) return;
  Outbound& out = op->outs[out_of(wr_id)];
  if (out.has_ended) return;
  out.has_ended = true;
  --op->open_outs;
  settle(*op);
}

void Strand::end_inbound(Engine& engine, Time now, Operation& op, Inbound& in) {
  in.has_ended = true;
  if (!in.is_eager && in.bytes) engine.remove_region(in.rkey);
  --op.open_ins;
  if (in.bytes == 0)
    for (std::uint32_t out : in.feeds) post(engine, now, op, out);
  if (in.is_eager) settle(op);
}

// True while there is more to copy.
bool Strand::copy_some(Operation& op) {
  std::uint64_t room = copy_step;
  for (Copy& copy : op.copies) {
    const std::uint64_t bytes = std::min(room, copy.bytes - copy.done);
    if (bytes) std::memcpy(copy.to + copy.done, copy.from + copy.done, bytes);
    copy.done += bytes;
    room -= bytes;
    if (copy.done < copy.bytes) return true;
  }
  op.copies.clear();
  return false;
}

// It has ended when everything came in and everything that went out from the caller's memory was acknowledged.
void Strand::settle(Operation& op) {
  if (op.has_ended || op.open_ins || !op.copies.empty()) return;
  if (!op.has_finished) {
    op.has_finished = true;
    if (op.finish) op.finish();
  }
  if (op.open_outs) return;
  op.has_ended = has_ended_some_ = true;
  owner_.on_ended(number_, op, true);
}

// Forgets what has ended, and begins what the owner has for this strand.
void Strand::sweep(Engine& engine, Time now) {
  while (has_ended_some_ || owner_.has_mail(number_)) {
    has_ended_some_ = false;
    operations_.remove_if([](const auto& op) { return op->has_ended; });
    Mail mail = owner_.collect(number_);
    for (auto& op : mail.operations) {
      next_number_ = op->number + 1;
      operations_.push_back(std::move(op));
      if (!has_failed() && !mail.ending) begin(engine, now, *operations_.back());
    }
    if (mail.ending) end(engine, now, *mail.ending);
    if (has_failed()) end_operations(engine);
  }
}

}  // namespace softmrc::collectives
