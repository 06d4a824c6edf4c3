// What completions and messages lead to, and every way in which a channel ends.
#include "collectives/channel.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/check.h"
#include "collectives/error_text.h"
#include "collectives/immediate.h"

namespace softmrc::collectives {
namespace {

// A rank starts so many collectives before an earlier one has ended, and says at most three things in each to a peer
// that has said nothing yet: a grant, and a step in two pieces.
constexpr std::size_t max_stashed = 3 * max_started;

}  // namespace

Channel::Channel(ChannelOwner& owner, std::uint32_t number, const ChannelResources& resources, RankInfo place,
                 const GroupDirectory& directory, std::span<const proto::Domain> domains, std::uint64_t seed)
    : owner_(owner),
      self_{number, place.rank, place.size},
      cq_(resources.cq),
      driver_(*resources.driver),
      failures_(owner, self_, *this),
      connections_(self_, resources, directory, domains, seed, failures_, *this),
      router_(self_, connections_, failures_),
      shm_(directory, connections_, router_, failures_),
      p2p_(self_, connections_, router_, failures_) {
  driver_.run([&](Engine& engine, Time) { engine_ = &engine; });
}

Channel::~Channel() { leave(); }

PeerEndpoint Channel::reserve() {
  PeerEndpoint reserved;
  driver_.run([&](Engine& engine, Time) { reserved = connections_.reserve(engine); });
  return reserved;
}

bool Channel::connect_now(std::uint32_t peer, Duration timeout) {
  driver_.run_and_send([&](Engine& engine, Time now) {
    if (!connections_.find(peer)) router_.send_empty(engine, now, peer);
  });
  return driver_.wait_until([&] { return connections_.has_answered(*engine_, peer); }, timeout);
}

std::uint32_t Channel::ring_rkey(std::uint32_t peer) {
  std::uint32_t rkey = 0;
  driver_.run([&](Engine& engine, Time) { rkey = connections_.get_or_open(engine, peer).ring_rkey; });
  return rkey;
}

void Channel::connect(std::uint32_t peer, std::uint32_t message_qpn, std::uint32_t bulk_qpn,
                      std::uint32_t remote_rkey) {
  driver_.run([&](Engine& engine, Time) {
    connections_.get_or_open(engine, peer);
    connections_.join(engine, peer, message_qpn, bulk_qpn, remote_rkey);
  });
}

void Channel::start() {
  driver_.add_progress_handler(this);
  driver_.run([this](Engine&, Time) { connections_.set_started(true); });
}

bool Channel::stop() {
  bool is_untouched = true;
  driver_.remove_progress_handler(this);
  driver_.run([&](Engine&, Time) {
    connections_.set_started(false);
    is_untouched = connections_.is_empty();
  });
  return is_untouched;
}

void Channel::catch_up() {
  driver_.run_and_send([this](Engine& engine, Time now) { sweep(engine, now); });
}

bool Channel::progress(Engine& engine, Time now) {
  std::array<proto::Completion, 64> found;
  while (const std::size_t count = engine.poll_completions(cq_, found))
    for (std::size_t i = 0; i < count; ++i) handle(engine, now, found[i]);
  if (has_unposted_ || p2p_.has_unposted()) {
    post_all(engine, now);
    p2p_.post_all(engine, now);
  }
  if (router_.has_unsent()) router_.flush(engine, now);
  if (has_copies_) {
    has_copies_ = false;
    for (const auto& op : operations_) {
      if (op->has_ended || op->copies.empty()) continue;
      if (copy_some(*op)) {
        has_copies_ = true;
        continue;
      }
      for (std::uint32_t i = 0; i < op->outs.size(); ++i) post(engine, now, *op, i);
      advance(engine, now, *op);
    }
  }
  sweep(engine, now);
  if (now >= deadline()) look_at_clock(engine, now);
  return has_copies_;
}

Time Channel::deadline() const {
  if (has_copies_) return Time::long_ago();
  Time at = std::min(failures_.deadline(), p2p_.deadline());
  for (const auto& op : operations_) at = std::min(at, op->deadline);
  return at;
}

void Channel::handle(Engine& engine, Time now, const proto::Completion& c) {
  if (c.status != proto::CompletionStatus::success) return handle_failure(engine, now, c);
  if (!(c.wr_id & receive_mark)) {
    if (failures_.has_failed()) return;
    if (c.wr_id & send_mark) p2p_.on_sent(static_cast<std::uint32_t>(c.wr_id));
    else handle_sent(c.wr_id);
    return;
  }
  engine.post_receive(c.qpn, c.wr_id);
  const std::uint32_t peer = peer_of(c.wr_id);
  if (!(c.wr_id & 1)) handle_message(engine, now, peer, c.length);
  else if (failures_.has_failed()) return;
  else if (c.imm & send_bit) p2p_.on_received(engine, peer, c.imm & ~send_bit);
  else handle_slice(engine, now, peer, c.imm, c.length);
}

void Channel::handle_failure(Engine& engine, Time now, const proto::Completion& c) {
  const PeerConnections::QueuePairOwner* const owner = connections_.owner_of(c.qpn);
  if (!owner) return;
  const auto [peer, is_bulk] = *owner;
  PeerConnection& connection = *connections_.find(peer);
  if (!is_bulk) connection.is_broken = true;
  if (failures_.has_failed() || router_.is_leaving() || connection.has_left) return;
  const std::string why = connection_lost_message(peer, c.status, connection.ring.has_received());
  if (is_bulk) failures_.suspect(now, peer, why);
  else failures_.on_peer_gone(engine, now, peer, why);
}

void Channel::on_peer_left(Engine& engine, Time now, std::uint32_t peer, const Operation& op) {
  failures_.on_peer_gone(engine, now, peer,
                         rank_name(peer) + " has left the group; " + describe(op.descriptor) + " needs it");
}

void Channel::handle_message(Engine& engine, Time now, std::uint32_t peer, std::uint32_t length) {
  const std::optional<MessageRing::Received> got = router_.receive(engine, now, peer, length);
  if (!got) return;
  switch (got->header.type) {
    case MessageType::eager:
    case MessageType::grant:
    case MessageType::inquiry: handle_collective_message(engine, now, peer, got->header, got->payload); break;
    case MessageType::offer: p2p_.on_offer(engine, now, peer, got->header, got->payload); break;
    case MessageType::accept: p2p_.on_accept(engine, now, peer, got->header); break;
    case MessageType::credit: break;
    case MessageType::shm: shm_.on_offer(engine, now, peer, got->payload); break;
    case MessageType::error: handle_error(engine, now, std::string(got->payload.begin(), got->payload.end())); break;
    case MessageType::bye: handle_bye(engine, now, peer, got->header.number == 0); break;
  }
  router_.give_credit(engine, now, peer);
}

void Channel::handle_collective_message(Engine& engine, Time now, std::uint32_t peer, const MessageHeader& header,
                                        std::span<const std::uint8_t> payload) {
  if (Operation* op = find(header.number)) return deliver(engine, now, *op, peer, header, payload);
  const bool is_past = static_cast<std::int32_t>(header.number - next_number_) < 0;
  if (header.type == MessageType::inquiry || is_past) return;
  auto& early_messages = early_messages_[peer];
  if (early_messages.size() >= max_stashed)
    return failures_.fail(engine, now, rank_name(peer) + " is further ahead than any rank may be");
  early_messages.push_back({header, {payload.begin(), payload.end()}});
}

// What a rank says before it fails was said in order: a barrier that all have reached has been, whether or not the last
// acknowledgement came through.
void Channel::handle_error(Engine& engine, Time now, const std::string& why) {
  for (const auto& op : operations_) {
    if (op->descriptor.kind != Kind::barrier || op->has_ended || op->taken < op->ins.size()) continue;
    op->open_outs = 0;
    settle(*op);
  }
  failures_.fail(engine, now, why, false);
}

// A rank says goodbye when all its operations have ended: what was written to it has arrived, whether or not its last
// acknowledgement came through. That is its word; so that nothing is read from memory that callers have back, nothing
// more is sent to it.
void Channel::handle_bye(Engine& engine, Time now, std::uint32_t peer, bool is_well) {
  connections_.close_bulk(engine, now, peer);
  if (!is_well) return failures_.suspect(now, peer, rank_name(peer) + " has left the group, which had failed there");
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
  p2p_.on_bye(engine, now, peer);
}

void Channel::on_group_failure(Engine& engine, Time now, const GroupFailure& failure) {
  has_copies_ = has_unposted_ = false;
  router_.on_group_failure(engine, now, failure);
  early_messages_.clear();
  end_operations(engine);
  p2p_.end(engine, failures_.error());
}

void Channel::end_operations(Engine& engine) {
  for (const auto& op : operations_) {
    if (op->has_ended) continue;
    for (const Inbound& in : op->ins)
      if (!in.has_ended && !in.is_eager && in.rkey && in.bytes) engine.remove_region(in.rkey);
    op->has_ended = has_ended_some_ = true;
    owner_.on_ended(self_.number, *op, false);
  }
}

void Channel::fail_different(Engine& engine, Time now, std::uint32_t peer, CollectiveFingerprint its,
                             const CollectiveFingerprint& ours) {
  std::string theirs = describe(its), own = describe(ours);
  if (theirs == own) {
    theirs += std::string(" by ") + algorithm_names[static_cast<std::size_t>(its.algorithm)];
    own += std::string(" by ") + algorithm_names[static_cast<std::size_t>(ours.algorithm)];
  }
  failures_.fail(engine, now,
                 rank_name(peer) + " called " + theirs + " where " + rank_name(self_.rank) + " called " + own);
}

// Those that this rank still deals with. Not all of them are to blame: for some it has what must wait itself.
std::vector<std::uint32_t> Channel::open_peers(const Operation& op, bool also_blocked) const {
  std::vector<std::uint32_t> ranks;
  for (const Inbound& in : op.ins)
    if (!in.has_ended) ranks.push_back(in.peer);
  for (const Outbound& out : op.outs)
    if (!out.has_ended && (also_blocked || !op.blocks(out))) ranks.push_back(out.peer);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

Channel::Missing Channel::missing(const Operation& op) const {
  Missing missing;
  for (std::uint32_t p : open_peers(op, false)) {
    std::string& list = op.has_message[p] ? missing.slow : missing.absent;
    list += (list.empty() ? "" : ", ") + rank_name(p);
  }
  return missing;
}

// Where there are steps, a rank waits for others who wait themselves. Before it blames them it asks, and listens
// whether one of them knows better: twice, since who is sure speaks after the first time.
bool Channel::may_hear_more(Operation& op, Time now) {
  if (op.descriptor.algorithm == Algorithm::direct || op.extensions == 2) return false;
  if (!missing(op).absent.empty() && (op.extensions > 0 || now - op.issued_at >= inquiry_interval * 2)) return false;
  ++op.extensions;
  op.deadline = now + report_grace;
  failures_.set_next_inquiry(now);
  return true;
}

void Channel::look_at_clock(Engine& engine, Time now) {
  if (failures_.check_suspects(engine, now)) return;
  for (const auto& op : operations_) {
    if (op->has_ended || op->deadline > now || may_hear_more(*op, now)) continue;
    const Missing found = missing(*op);
    const std::string whom = found.absent.empty() ? found.slow + " did not finish its part"
                                                  : found.absent + " did not take part";
    failures_.fail_timeout(engine, now, describe(op->descriptor), op->timeout_s, whom);
    sweep(engine, now);
    return;
  }
  p2p_.check_deadlines(engine, now);
  failures_.check_waiting(engine, now);
  if (failures_.is_inquiry_due(now)) send_inquiries(engine, now);
}

// A peer that is dead says nothing; asking it makes the engine notice. One that calls something else says so.
void Channel::send_inquiries(Engine& engine, Time now) {
  std::vector<bool> is_asked(self_.size, false);
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
  p2p_.inquire(engine, now, is_asked);
  const bool is_busy = !operations_.empty() || p2p_.is_busy();
  failures_.set_next_inquiry(is_busy ? now + inquiry_interval : Time::never());
}

void Channel::send(Part from, DType dtype, std::uint32_t to, std::uint32_t tag, double timeout_s,
                   const std::shared_ptr<Work>& work) {
  driver_.run_and_send(
      [&](Engine& engine, Time now) { p2p_.send(engine, now, from, dtype, to, tag, timeout_s, work); });
}

void Channel::receive(Part to, DType dtype, std::int32_t source, std::uint32_t tag, double timeout_s,
                      const std::shared_ptr<Work>& work) {
  driver_.run_and_send(
      [&](Engine& engine, Time now) { p2p_.receive(engine, now, to, dtype, source, tag, timeout_s, work); });
}

bool Channel::is_busy() {
  bool is_busy = false;
  driver_.run([&](Engine&, Time) { is_busy = p2p_.is_busy(); });
  return is_busy;
}

void Channel::say_goodbye() {
  driver_.run_and_send([this](Engine& engine, Time now) { router_.leave(engine, now); });
}

void Channel::linger(Duration timeout) {
  if (connections_.is_started() && timeout.ps > 0)
    driver_.wait_until([this] { return router_.is_drained(*engine_); }, timeout);
}

void Channel::leave() {
  if (has_left_) return;
  driver_.remove_progress_handler(this);
  // What was sent last may still want its acknowledgement; a peer that misses it asks the device, which remembers.
  driver_.send_pending();
  driver_.run_and_send([this](Engine& engine, Time now) {
    has_left_ = true;
    p2p_.end(engine, closed_message);  // what came after the bye was begun
    shm_.clear();
    connections_.destroy(engine, now);
  });
}

std::optional<std::pair<std::uint32_t, std::uint32_t>> Channel::pair(std::uint32_t peer) {
  std::optional<std::pair<std::uint32_t, std::uint32_t>> found;
  driver_.run([&](Engine&, Time) {
    const PeerConnection* const connection = connections_.find(peer);
    if (connection && connection->is_connected() && !has_left_)
      found.emplace(connection->ring.qpn(), connection->bulk_qpn);
  });
  return found;
}

ChannelStats Channel::stats() {
  ChannelStats sum;
  driver_.run([&](Engine&, Time) {
    sum += stats_;
    sum += connections_.stats();
    sum += router_.stats();
    sum += p2p_.stats();
  });
  return sum;
}

// A rank connects for whoever may send to it.
void Channel::on_first_packet(Engine& engine, Time now, std::uint32_t node, std::uint32_t qpn) {
  if (const auto peer = connections_.accept(engine, now, node, qpn)) router_.send_missed(engine, now, *peer);
}

}  // namespace softmrc::collectives
