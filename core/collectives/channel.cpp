// What completions and messages lead to, and every way in which a channel ends.
#include "collectives/channel.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/check.h"
#include "collectives/immediate.h"

namespace softmrc::collectives {
namespace {

constexpr Duration words_come_within = milliseconds(500);
// A rank starts so many collectives before an earlier one has ended, and says at most three things in each to a peer
// that has said nothing yet: a grant, and a step in two pieces.
constexpr std::size_t max_stashed = 3 * max_started;

// It may have left before it was spoken to, and so before it had reason to say goodbye.
constexpr const char* words_when_unheard = "has left the group or is gone: it has never answered";

std::string reason_of(proto::CompletionStatus status) {
  using enum proto::CompletionStatus;
  switch (status) {
    case retry_exceeded: return "stopped answering";
    case remote_access: return "refused a write: it gave up the operation";
    case remote_invalid: return "could not make sense of a write";
    case remote_operation: return "did not keep up with messages";
    case peer_error: return "broke off the connection";
    case local_protocol: return "wrote where it may not";
    case success:
    case flushed: break;
  }
  return "lost its connection";
}

}  // namespace

std::string describe(const CollectiveFingerprint& d) {
  const auto name = [](const auto& names, auto value) {
    return static_cast<std::size_t>(value) < names.size() ? std::string(names[static_cast<std::size_t>(value)])
                                                          : std::string("?");
  };
  std::string text = name(kind_names, d.kind);
  if (reduces(d.kind)) text += "(" + name(op_names, d.op) + ")";
  if (d.count) text += " of " + std::to_string(d.count) + " " + name(dtype_names, d.dtype);
  else if (d.kind != Kind::barrier) text += " of " + name(dtype_names, d.dtype);
  if (d.root >= 0) text += " with root " + std::to_string(d.root);
  return text;
}

std::string timeout_message(const std::string& what, std::uint32_t rank, double timeout_s, const std::string& whom) {
  std::string seconds = std::to_string(timeout_s);
  seconds.erase(seconds.find_last_not_of('0') + 1);
  if (seconds.back() == '.') seconds.pop_back();
  return "timed out, its timeout is over: " + what + " of rank " + std::to_string(rank) + " did not end within " +
         seconds + " s: " + whom;
}

Time deadline_of(Time now, double timeout_s) {
  return now + Duration{timeout_s > 1e6 ? seconds(1'000'000).ps : static_cast<std::int64_t>(timeout_s * 1e12)};
}

Channel::Channel(ChannelOwner& owner, std::uint32_t number, const ChannelResources& home, RankInfo place,
                 const GroupDirectory& roll, std::span<const proto::Domain> domains, std::uint64_t seed)
    : owner_(owner),
      number_(number),
      home_(home),
      driver_(*home.driver),
      qp_factory_(*home.qp_factory),
      place_(place),
      roll_(roll),
      domains_(domains),
      prng_(seed, "rkeys", number),
      peers_(place.size) {
  driver_.run([&](Engine& engine, Time) { engine_ = &engine; });
}

Channel::~Channel() { leave(); }

void Channel::start() {
  driver_.add_progress_handler(this);
  driver_.run([this](Engine&, Time) { is_started_ = true; });
}

bool Channel::stop() {
  bool is_untouched = true;
  driver_.remove_progress_handler(this);
  driver_.run([&](Engine&, Time) {
    is_started_ = false;
    is_untouched = std::none_of(peers_.begin(), peers_.end(), [](const auto& peer) { return peer != nullptr; });
  });
  return is_untouched;
}

void Channel::catch_up() {
  driver_.run_and_send([this](Engine& engine, Time now) { sweep(engine, now); });
}

bool Channel::progress(Engine& engine, Time now) {
  std::array<proto::Completion, 64> found;
  while (const std::size_t count = engine.poll_completions(home_.cq, found))
    for (std::size_t i = 0; i < count; ++i) handle(engine, now, found[i]);
  if (has_unposted_) post_all(engine, now);
  if (has_unsaid_) flush_messages(engine, now);
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
  Time at = is_first() ? std::min(inquires_at_, owner_.waits_until()) : inquires_at_;
  for (const auto& op : operations_) at = std::min(at, op->deadline);
  for (const SendOp& s : send_ops_) at = std::min(at, s.deadline);
  for (const RecvOp& r : recv_ops_) at = std::min(at, r.deadline);
  for (const SuspectedPeer& s : suspects_) at = std::min(at, s.until);
  return at;
}

void Channel::handle(Engine& engine, Time now, const proto::Completion& c) {
  if (c.status != proto::CompletionStatus::success) return handle_failure(engine, now, c);
  if (!(c.wr_id & receive_mark)) {
    if (has_failed()) return;
    if (c.wr_id & send_mark) handle_sending_done(static_cast<std::uint32_t>(c.wr_id));
    else handle_sent(c.wr_id);
    return;
  }
  engine.post_receive(c.qpn, c.wr_id);
  const std::uint32_t peer = peer_of(c.wr_id);
  if (!(c.wr_id & 1)) handle_message(engine, now, peer, c.length);
  else if (has_failed()) return;
  else if (c.imm & send_bit) handle_received(engine, peer, c.imm & ~send_bit);
  else handle_slice(engine, now, peer, c.imm, c.length);
}

void Channel::handle_failure(Engine& engine, Time now, const proto::Completion& c) {
  const auto owner = owners_.find(c.qpn);
  if (owner == owners_.end()) return;
  const auto [peer, is_bulk] = owner->second;
  if (!is_bulk) peers_[peer]->is_broken = true;
  if (has_failed() || is_leaving_ || has_left(peer)) return;
  const bool is_first_word = c.status == proto::CompletionStatus::retry_exceeded && !peers_[peer]->ring.has_heard();
  const std::string why = name_of(peer) + " " + (is_first_word ? words_when_unheard : reason_of(c.status));
  if (is_bulk || !is_first()) suspect_peer(now, peer, why);
  else fail(engine, now, why);
}

// It said goodbye. If it did so because all has ended, its words are on the way to the first channel.
void Channel::on_peer_left(Engine& engine, Time now, std::uint32_t peer, const Operation& op) {
  const std::string why = name_of(peer) + " has left the group; " + describe(op.descriptor) + " needs it";
  if (is_first()) fail(engine, now, why);
  else suspect_peer(now, peer, why);
}

void Channel::suspect_peer(Time now, std::uint32_t peer, const std::string& why) {
  if (has_failed()) return;
  const bool is_known = std::any_of(suspects_.begin(), suspects_.end(),
                                    [peer](const SuspectedPeer& s) { return s.peer == peer; });
  if (!is_known) suspects_.push_back({peer, now + words_come_within, why});
}

void Channel::send_message(Engine& engine, Time now, std::uint32_t peer, MessageHeader header,
                           std::span<const std::uint8_t> payload, std::uint64_t wr_id) {
  ++stats_.messages;
  MessageRing& ring = get_or_connect(engine, now, peer).ring;
  ring.send(engine, now, header, payload, wr_id);
  has_unsaid_ |= ring.is_waiting();
}

void Channel::give_credit(Engine& engine, Time now, std::uint32_t peer) {
  MessageRing& ring = peers_[peer]->ring;
  ring.give_credit(engine, now);
  has_unsaid_ |= ring.is_waiting();
}

// What found no room in a send queue, which acknowledgements make: no message tells of that.
void Channel::flush_messages(Engine& engine, Time now) {
  has_unsaid_ = false;
  for (const auto& peer : peers_) {
    if (!peer || !peer->ring.is_waiting()) continue;
    peer->ring.flush(engine, now);
    has_unsaid_ |= peer->ring.is_waiting();
  }
}

void Channel::handle_message(Engine& engine, Time now, std::uint32_t peer, std::uint32_t length) {
  const MessageRing::Received got = peers_[peer]->ring.receive(engine, now, length);
  const bool is_small_data = got.header.type == MessageType::eager || got.header.type == MessageType::offer ||
                             got.header.type == MessageType::accept;
  if (!got.is_valid || !is_valid_header(got.header) || (is_small_data && !is_first()))
    return fail(engine, now, name_of(peer) + " sent a message that makes no sense");
  if (got.header.type == MessageType::bye) peers_[peer]->has_left = true;
  if (has_failed()) return;
  switch (got.header.type) {
    case MessageType::eager:
    case MessageType::grant:
    case MessageType::inquiry: handle_collective_message(engine, now, peer, got.header, got.payload); break;
    case MessageType::offer: handle_offer(engine, now, peer, got.header, got.payload); break;
    case MessageType::accept: handle_accept(engine, now, peer, got.header); break;
    case MessageType::credit: break;
    case MessageType::shm: handle_shm_offer(engine, now, peer, got.payload); break;
    case MessageType::error: handle_error(engine, now, std::string(got.payload.begin(), got.payload.end())); break;
    case MessageType::bye: handle_bye(engine, now, peer, got.header.number == 0); break;
  }
  give_credit(engine, now, peer);
}

void Channel::handle_collective_message(Engine& engine, Time now, std::uint32_t peer, const MessageHeader& header,
                                        std::span<const std::uint8_t> payload) {
  if (Operation* op = find(header.number)) return deliver(engine, now, *op, peer, header, payload);
  const bool is_past = static_cast<std::int32_t>(header.number - next_number_) < 0;
  if (header.type == MessageType::inquiry || is_past) return;
  auto& early_messages = peers_[peer]->early_messages;
  if (early_messages.size() >= max_stashed)
    return fail(engine, now, name_of(peer) + " is further ahead than any rank may be");
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
  fail(engine, now, why, false);
}

// A rank says goodbye when all its operations have ended: what was written to it has arrived, whether or not its last
// acknowledgement came through. That is its word; so that nothing is read from memory that callers have back, nothing
// more is sent to it.
void Channel::handle_bye(Engine& engine, Time now, std::uint32_t peer, bool is_well) {
  engine.modify_error(now, peers_[peer]->bulk_qpn);
  if (!is_well) return suspect_peer(now, peer, name_of(peer) + " has left the group, which had failed there");
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
  for (auto at = send_ops_.begin(); at != send_ops_.end();) {
    const auto sending = at++;
    if (sending->peer != peer) continue;
    if (!sending->is_written())
      return fail(engine, now, name_of(peer) + " has left the group and never received what was sent to it");
    sending->work->succeed();
    send_ops_.erase(sending);
  }
  for (const RecvOp& receiving : recv_ops_)
    if (receiving.source == static_cast<std::int32_t>(peer))
      return fail(engine, now, name_of(peer) + " has left the group; a receive waits for it");
}

void Channel::fail(Engine& engine, Time now, const std::string& why, bool is_ours) {
  if (!has_failed()) end(engine, now, owner_.on_failure(number_, why.empty() ? "the group has failed" : why, is_ours));
}

// Bad news must reach everybody, also those with whom nobody has spoken, and whoever has gone. So a rank tells those
// that it knows, and each that hears it those at distances of powers of two: of so many ways to a rank not all are cut.
bool Channel::is_told(std::uint32_t p, const GroupFailure& ending) const {
  if (peers_[p] && (peers_[p]->is_broken || peers_[p]->has_left)) return false;
  const std::uint32_t ahead = (p + place_.size - place_.rank) % place_.size;
  const bool is_near = std::has_single_bit(ahead) || std::has_single_bit(place_.size - ahead);
  return peers_[p] ? ending.is_ours || is_near : is_near && meets_ && is_started_ && !driver_.is_closed();
}

void Channel::send_error(Engine& engine, Time now, std::uint32_t p) {
  MessageHeader header;
  header.type = MessageType::error;
  send_message(engine, now, p, header,
               {reinterpret_cast<const std::uint8_t*>(error_.data()), std::min<std::size_t>(error_.size(), 1024)});
}

void Channel::send_bye(Engine& engine, Time now, std::uint32_t p) {
  MessageHeader header;
  header.type = MessageType::bye;
  header.number = has_failed();  // then nothing is sure of what came here
  send_message(engine, now, p, header);
}

// The first channel tells the peers, in order with all else that it says to them.
void Channel::end(Engine& engine, Time now, const GroupFailure& ending) {
  if (has_failed()) return;
  error_ = ending.why;
  suspects_.clear();
  inquires_at_ = Time::never();
  has_copies_ = has_unposted_ = false;
  for (std::uint32_t p = 0; p < place_.size; ++p) {
    if (p == place_.rank) continue;
    if (is_first() && is_told(p, ending)) send_error(engine, now, p);
    if (!peers_[p] || peers_[p]->bulk_qpn == 0) continue;
    // From here on nothing is read from the callers' memory, and nothing lands there.
    engine.modify_error(now, peers_[p]->bulk_qpn);
    peers_[p]->early_messages.clear();
  }
  end_operations(engine);
  end_p2p(engine, error_);
}

void Channel::end_operations(Engine& engine) {
  for (const auto& op : operations_) {
    if (op->has_ended) continue;
    for (const Inbound& in : op->ins)
      if (!in.has_ended && !in.is_eager && in.rkey && in.bytes) engine.remove_region(in.rkey);
    op->has_ended = has_ended_some_ = true;
    owner_.on_ended(number_, *op, false);
  }
}

void Channel::fail_different(Engine& engine, Time now, std::uint32_t peer, CollectiveFingerprint its,
                             const CollectiveFingerprint& ours) {
  std::string theirs = describe(its), own = describe(ours);
  if (theirs == own) {
    theirs += std::string(" by ") + algorithm_names[static_cast<std::size_t>(its.algorithm)];
    own += std::string(" by ") + algorithm_names[static_cast<std::size_t>(ours.algorithm)];
  }
  fail(engine, now, name_of(peer) + " called " + theirs + " where " + name_of(place_.rank) + " called " + own);
}

void Channel::fail_timeout(Engine& engine, Time now, const std::string& what, double timeout_s,
                           const std::string& whom) {
  fail(engine, now, timeout_message(what, place_.rank, timeout_s, whom));
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
    list += (list.empty() ? "" : ", ") + name_of(p);
  }
  return missing;
}

// Where there are steps, a rank waits for others who wait themselves. Before it blames them it asks, and listens
// whether one of them knows better: twice, since who is sure speaks after the first time.
bool Channel::may_hear_more(Operation& op, Time now) {
  if (op.descriptor.algorithm == Algorithm::direct || op.extensions == 2) return false;
  if (!missing(op).absent.empty() && (op.extensions > 0 || now - op.issued_at >= inquiry_interval * 2)) return false;
  ++op.extensions;
  op.deadline = now + words_come_within;
  inquires_at_ = now;
  return true;
}

void Channel::look_at_clock(Engine& engine, Time now) {
  for (const SuspectedPeer& s : suspects_)
    if (s.until <= now) return fail(engine, now, std::string(s.why));
  for (const auto& op : operations_) {
    if (op->has_ended || op->deadline > now || may_hear_more(*op, now)) continue;
    const Missing found = missing(*op);
    const std::string whom = found.absent.empty() ? found.slow + " did not finish its part"
                                                  : found.absent + " did not take part";
    fail_timeout(engine, now, describe(op->descriptor), op->timeout_s, whom);
    sweep(engine, now);
    return;
  }
  look_at_point_to_point(engine, now);
  if (is_first() && now >= owner_.waits_until())
    if (const std::string why = owner_.overdue(now); !why.empty()) fail(engine, now, why);
  if (now >= inquires_at_) send_inquiries(engine, now);
}

// A peer that is dead says nothing; asking it makes the engine notice. One that calls something else says so.
void Channel::send_inquiries(Engine& engine, Time now) {
  std::vector<bool> is_asked(place_.size, false);
  for (const auto& op : operations_) {
    if (op->has_ended || now - op->issued_at < inquiry_interval / 2) continue;
    for (std::uint32_t p : open_peers(*op, true)) {
      is_asked[p] = true;
      MessageHeader header;
      header.type = MessageType::inquiry;
      header.number = op->number;
      header.descriptor = op->descriptor;
      ++stats_.inquiries;
      send_message(engine, now, p, header);
    }
  }
  MessageHeader header;
  header.type = MessageType::credit;
  const auto ask = [&](std::uint32_t p) {
    if (!is_asked[p]) send_message(engine, now, p, header);
    is_asked[p] = true;
  };
  for (const SendOp& s : send_ops_) ask(s.peer);
  for (const RecvOp& r : recv_ops_)
    if (r.source >= 0) ask(static_cast<std::uint32_t>(r.source));
  const bool is_busy = !operations_.empty() || !send_ops_.empty() || !recv_ops_.empty();
  inquires_at_ = is_busy ? now + inquiry_interval : Time::never();
}

bool Channel::is_busy() {
  bool is_busy = false;
  driver_.run([&](Engine&, Time) { is_busy = !send_ops_.empty() || !recv_ops_.empty(); });
  return is_busy;
}

void Channel::say_goodbye() {
  driver_.run_and_send([this](Engine& engine, Time now) {
    is_leaving_ = true;
    for (std::uint32_t p = 0; p < place_.size && is_started_; ++p)
      if (peers_[p] && peers_[p]->bulk_qpn != 0 && !peers_[p]->is_broken) send_bye(engine, now, p);
  });
}

void Channel::linger(Duration timeout) {
  const auto is_heard = [this] {
    for (const auto& peer : peers_) {
      if (!peer || peer->bulk_qpn == 0 || peer->is_broken || peer->has_left) continue;
      const proto::QueuePair* pair = engine_->qp(peer->ring.qpn());
      if (peer->ring.has_backlog() || (pair && pair->requester().has_work())) return false;
    }
    return true;
  };
  if (is_started_ && timeout.ps > 0) driver_.wait_until(is_heard, timeout);
}

void Channel::leave() {
  if (has_left_) return;
  driver_.remove_progress_handler(this);
  // The peers' last words may still want their acknowledgement; who misses it asks the device, which remembers.
  driver_.send_pending();
  driver_.run_and_send([this](Engine& engine, Time now) {
    has_left_ = true;
    engine.release(*this);
    end_p2p(engine, closed_message);  // what came after the goodbye was begun
    for (std::uint32_t p = 0; p < place_.size; ++p) {
      Peer* const peer = peers_[p].get();
      if (peer) {
        engine.remove_region(peer->ring_rkey);
        peer->from.reset();
        peer->to.reset();
      }
      if (!meets_ && !(peer && peer->bulk_qpn)) continue;
      // Those too that never were: a driver may keep keys for them.
      qp_factory_.destroy(engine, now, meets_ ? end_.qpn(p, false) : peer->ring.qpn());
      qp_factory_.destroy(engine, now, meets_ ? end_.qpn(p, true) : peer->bulk_qpn);
    }
  });
}

ChannelStats Channel::stats() {
  ChannelStats stats;
  driver_.run([&](Engine&, Time) { stats = stats_; });
  return stats;
}

}  // namespace softmrc::collectives
