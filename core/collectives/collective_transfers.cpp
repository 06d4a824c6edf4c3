#include "collectives/collective_transfers.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "collectives/error_text.h"
#include "collectives/immediate.h"

namespace softmrc::collectives {
namespace {

constexpr std::uint64_t copy_step = 1024 * 1024;
// A rank begins so many collectives before an earlier one has ended, and sends at most three messages in each to a peer
// that has sent none yet: a grant, and a step in two pieces.
constexpr std::size_t max_early_messages = 3 * max_started;

// Peers that this rank still deals with. Not all of them are late: some wait themselves for what it is to send.
std::vector<std::uint32_t> open_peers(const Operation& op, bool also_blocked) {
  std::vector<std::uint32_t> ranks;
  for (const Inbound& in : op.ins)
    if (!in.has_ended) ranks.push_back(in.peer);
  for (const Outbound& out : op.outs)
    if (!out.has_ended && (also_blocked || !op.blocks(out))) ranks.push_back(out.peer);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

// Ranks that an operation waits for: that have sent nothing of it, and that have.
struct Stragglers {
  std::string absent, slow;
};
Stragglers stragglers_of(const Operation& op) {
  Stragglers found;
  for (std::uint32_t p : open_peers(op, false)) {
    std::string& list = op.has_message[p] ? found.slow : found.absent;
    list += (list.empty() ? "" : ", ") + rank_name(p);
  }
  return found;
}

// True while there is more to copy.
bool copy_some(Operation& op) {
  std::uint64_t left = copy_step;
  for (Copy& copy : op.copies) {
    const std::uint64_t before = copy.done;
    copy.run(left);
    left -= copy.done - before;
    if (copy.done < copy.bytes) return true;
  }
  op.copies.clear();
  return false;
}

}  // namespace

Operation* CollectiveTransfers::find(std::uint32_t number) {
  for (const auto& op : operations_)
    if (op->number == number && !op->has_ended) return op.get();
  return nullptr;
}

void CollectiveTransfers::sweep(proto::Endpoint& engine, Time now) {
  while (has_ended_some_ || owner_.has_work(self_.number)) {
    has_ended_some_ = false;
    operations_.remove_if([](const auto& op) { return op->has_ended; });
    QueuedWork queued;
    if (owner_.has_work(self_.number)) queued = owner_.pop_all(self_.number);
    for (auto& op : queued.operations) {
      next_number_ = op->number + 1;
      operations_.push_back(std::move(op));
      if (!failures_.has_failed() && !queued.ending) begin(engine, now, *operations_.back());
    }
    if (queued.ending) failures_.end(engine, now, *queued.ending);
    if (failures_.has_failed()) fail_open(engine);
  }
}

void CollectiveTransfers::begin(proto::Endpoint& engine, Time now, Operation& op) {
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
  post_outs(engine, now, op);
  // What came before it had begun here.
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

// Registers what will come in by WRITE, and grants it to each sender. The transfers of one peer have keys in a row.
void CollectiveTransfers::grant(proto::Endpoint& engine, Time now, Operation& op) {
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

void CollectiveTransfers::on_message(proto::Endpoint& engine, Time now, std::uint32_t peer, const MessageHeader& header,
                                     std::span<const std::uint8_t> payload) {
  if (Operation* op = find(header.number)) return deliver(engine, now, *op, peer, header, payload);
  const bool is_past = static_cast<std::int32_t>(header.number - next_number_) < 0;
  if (header.type == MessageType::inquiry || is_past) return;
  auto& early = early_messages_[peer];
  if (early.size() >= max_early_messages)
    return failures_.fail(engine, now, rank_name(peer) + " is further ahead than any rank may be");
  early.push_back({header, {payload.begin(), payload.end()}});
}

void CollectiveTransfers::deliver(proto::Endpoint& engine, Time now, Operation& op, std::uint32_t peer,
                                  const MessageHeader& header, std::span<const std::uint8_t> payload) {
  if (header.descriptor != op.descriptor) return fail_different(engine, now, peer, header.descriptor, op.descriptor);
  op.has_message[peer] = true;
  if (header.type == MessageType::eager) deliver_eager(engine, now, op, peer, header, payload);
  if (header.type == MessageType::grant) deliver_grant(engine, now, op, peer, header);
}

void CollectiveTransfers::deliver_eager(proto::Endpoint& engine, Time now, Operation& op, std::uint32_t peer,
                                        const MessageHeader& header, std::span<const std::uint8_t> payload) {
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

void CollectiveTransfers::deliver_grant(proto::Endpoint& engine, Time now, Operation& op, std::uint32_t peer,
                                        const MessageHeader& header) {
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

// What is small is copied, so that its memory is the caller's again. That a barrier has ended says something of the
// others as well, so it waits until they have this rank's message.
void CollectiveTransfers::send_eager(proto::Endpoint& engine, Time now, Operation& op, std::uint32_t index) {
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
void CollectiveTransfers::post(proto::Endpoint& engine, Time now, Operation& op, std::uint32_t index) {
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

void CollectiveTransfers::post_outs(proto::Endpoint& engine, Time now, Operation& op) {
  for (std::uint32_t i = 0; i < op.outs.size(); ++i) post(engine, now, op, i);
}

void CollectiveTransfers::post_all(proto::Endpoint& engine, Time now) {
  has_unposted_ = false;
  for (const auto& op : operations_)
    if (!op->has_ended) post_outs(engine, now, *op);
}

void CollectiveTransfers::copy(proto::Endpoint& engine, Time now) {
  if (!std::exchange(has_copies_, false)) return;
  for (const auto& op : operations_) {
    if (op->has_ended || op->copies.empty()) continue;
    if (copy_some(*op)) {
      has_copies_ = true;
      continue;
    }
    post_outs(engine, now, *op);
    advance(engine, now, *op);
  }
}

void CollectiveTransfers::on_slice(proto::Endpoint& engine, Time now, std::uint32_t peer, std::uint32_t imm,
                                   std::uint32_t length) {
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

void CollectiveTransfers::on_sent(std::uint64_t wr_id) {
  Operation* op = find(number_of(wr_id));
  if (!op) return;
  Outbound& out = op->outs[out_of(wr_id)];
  if (out.has_ended) return;
  out.has_ended = true;
  --op->open_outs;
  settle(*op);
}

void CollectiveTransfers::end_inbound(proto::Endpoint& engine, Inbound& in) {
  in.has_ended = true;
  if (!in.is_eager && in.bytes) engine.remove_region(in.rkey);
}

// Merges what has come in, and posts what waited for that.
void CollectiveTransfers::advance(proto::Endpoint& engine, Time now, Operation& op) {
  while (const Inbound* in = op.take())
    for (std::uint32_t out : in->feeds) post(engine, now, op, out);
  settle(op);
}

// It has ended when everything came in and everything that went out from the caller's memory was acknowledged.
void CollectiveTransfers::settle(Operation& op) {
  if (op.has_ended || op.taken < op.ins.size() || !op.copies.empty()) return;
  if (!op.has_finished) {
    op.has_finished = true;
    if (op.finish) op.finish();
  }
  if (op.open_outs) return;
  op.has_ended = has_ended_some_ = true;
  owner_.on_ended(self_.number, op, true);
}

// What a rank sends before it fails comes in order: a barrier that all have reached has ended well, whether or not the
// last acknowledgement came through.
void CollectiveTransfers::on_peer_error() {
  for (const auto& op : operations_) {
    if (op->descriptor.kind != Kind::barrier || op->has_ended || op->taken < op->ins.size()) continue;
    op->open_outs = 0;
    settle(*op);
  }
}

// A rank leaves when all its operations have ended: what was written to it has arrived, whether or not its last
// acknowledgement came through.
void CollectiveTransfers::on_bye(proto::Endpoint& engine, Time now, std::uint32_t peer) {
  for (const auto& op : operations_) {
    if (op->has_ended) continue;
    bool needs_it = false;
    for (Outbound& out : op->outs) {
      if (out.peer != peer || out.has_ended) continue;
      if (out.is_eager ? out.posted == 1 : out.posted == out.slices.count && op->granted[peer]) {
        out.has_ended = true;
        --op->open_outs;
      } else {
        needs_it = true;
      }
    }
    for (const Inbound& in : op->ins) needs_it |= in.peer == peer && !in.has_ended;
    if (needs_it) return on_peer_left(engine, now, peer, *op);
    settle(*op);
  }
}

void CollectiveTransfers::on_peer_left(proto::Endpoint& engine, Time now, std::uint32_t peer, const Operation& op) {
  failures_.on_peer_gone(engine, now, peer,
                         rank_name(peer) + " has left the group; " + describe(op.descriptor) + " needs it");
}

void CollectiveTransfers::end(proto::Endpoint& engine) {
  has_copies_ = has_unposted_ = false;
  early_messages_.clear();
  fail_open(engine);
}

void CollectiveTransfers::fail_open(proto::Endpoint& engine) {
  for (const auto& op : operations_) {
    if (op->has_ended) continue;
    for (const Inbound& in : op->ins)
      if (!in.has_ended && !in.is_eager && in.rkey && in.bytes) engine.remove_region(in.rkey);
    op->has_ended = has_ended_some_ = true;
    owner_.on_ended(self_.number, *op, false);
  }
}

void CollectiveTransfers::fail_different(proto::Endpoint& engine, Time now, std::uint32_t peer,
                                         const CollectiveFingerprint& remote, const CollectiveFingerprint& local) {
  std::string theirs = describe(remote), own = describe(local);
  if (theirs == own) {
    theirs += std::string(" by ") + algorithm_names[static_cast<std::size_t>(remote.algorithm)];
    own += std::string(" by ") + algorithm_names[static_cast<std::size_t>(local.algorithm)];
  }
  failures_.fail(engine, now,
                 rank_name(peer) + " called " + theirs + " where " + rank_name(self_.rank) + " called " + own);
}

Time CollectiveTransfers::deadline() const {
  Time at = Time::never();
  for (const auto& op : operations_) at = std::min(at, op->deadline);
  return at;
}

// Where there are steps, a rank waits for others that wait themselves. Before it names them as the cause it asks, and
// waits whether one of them reports another: twice, since a rank that is certain reports after the first time.
bool CollectiveTransfers::extend_deadline(Operation& op, Time now) {
  if (op.descriptor.algorithm == Algorithm::direct || op.extensions == 2) return false;
  if (!stragglers_of(op).absent.empty() && (op.extensions > 0 || now - op.issued_at >= inquiry_interval * 2))
    return false;
  ++op.extensions;
  op.deadline = now + report_grace;
  failures_.set_next_inquiry(now);
  return true;
}

bool CollectiveTransfers::check_deadlines(proto::Endpoint& engine, Time now) {
  for (const auto& op : operations_) {
    if (op->has_ended || op->deadline > now || extend_deadline(*op, now)) continue;
    const Stragglers found = stragglers_of(*op);
    const std::string whom = found.absent.empty() ? found.slow + " did not finish its part"
                                                  : found.absent + " did not take part";
    failures_.fail_timeout(engine, now, describe(op->descriptor), op->timeout_s, whom);
    sweep(engine, now);
    return true;
  }
  return false;
}

// A peer that is dead sends nothing; asking it makes the engine notice. One that is in another operation reports that.
void CollectiveTransfers::inquire(proto::Endpoint& engine, Time now, std::vector<bool>& is_asked) {
  for (const auto& op : operations_) {
    if (op->has_ended || now - op->issued_at < inquiry_interval / 2) continue;
    for (std::uint32_t p : open_peers(*op, true)) {
      is_asked[p] = true;
      MessageHeader header;
      header.type = MessageType::inquiry;
      header.number = op->number;
      header.descriptor = op->descriptor;
      ++stats_.inquiries;
      router_.send(engine, now, p, header);
    }
  }
}

}  // namespace softmrc::collectives
