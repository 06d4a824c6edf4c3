// Set-up, what completions and messages lead to, and every way in which a group ends.
#include "collectives/strand.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "collectives/immediate.h"

namespace softmrc::collectives {
namespace {

constexpr std::uint32_t receives_posted = 2048;
constexpr Duration inquiry_interval = milliseconds(300);
constexpr Duration words_come_within = milliseconds(500);
// A rank starts so many collectives before an earlier one has ended, and says at most three things in each to a peer that
// has said nothing yet: a grant, and a step in two pieces.
constexpr std::size_t most_stashed = 3 * most_started;

Duration seconds_of(double s) { return Duration{s > 1e6 ? seconds(1'000'000).ps : static_cast<std::int64_t>(s * 1e12)}; }

std::string reason_of(proto::CompletionStatus status) {
  using enum proto::CompletionStatus;
  switch (status) {
    case retry_exceeded: return "stopped answering";
    case remote_access: return "refused a write: it gave up the operation";
    case remote_invalid: return "could not make sense of a write";
    case remote_operation: return "did not keep up with messages";
    case peer_error: return "broke off the connection";
    case local_protocol: return "wrote where it may not";
    case success: case flushed: break;
  }
  return "lost its connection";
}

}  // namespace

std::string describe(const Descriptor& d) {
  const auto name = [](const auto& names, auto value) {
    return static_cast<std::size_t>(value) < names.size() ? std::string(names[static_cast<std::size_t>(value)]) : std::string("?");
  };
  std::string text = name(kind_names, d.kind);
  if (reduces(d.kind)) text += "(" + name(op_names, d.op) + ")";
  if (d.count) text += " of " + std::to_string(d.count) + " " + name(dtype_names, d.dtype);
  else if (d.kind != Kind::barrier) text += " of " + name(dtype_names, d.dtype);
  if (d.root >= 0) text += " with root " + std::to_string(d.root);
  return text;
}

Strand::Strand(proto::Driver& driver, Place place, std::uint32_t cq, std::span<const proto::Domain> domains, std::uint64_t seed, std::shared_ptr<Port> port)
    : driver_(driver), place_(place), cq_(cq), port_(std::move(port)), prng_(seed, "rkeys"), peers_(place.size) {
  driver_.run([&](Engine& engine, Time) {
    engine_ = &engine;
    for (std::uint32_t p = 0; p < place_.size; ++p)
      if (p != place_.rank) peers_[p].domain = domains[p];
  });
}

std::uint32_t Strand::ring_rkey(std::uint32_t p) {
  Peer& peer = peers_[p];
  if (peer.ring_rkey == 0)
    driver_.run([&](Engine& engine, Time) {
      peer.channel.open();
      peer.ring_rkey = new_rkeys(engine, 1);
      SOFTMRC_CHECK(engine.add_region({peer.channel.inbound(), 0, Channel::ring_bytes, peer.ring_rkey, nullptr, peer.domain}));
    });
  return peer.ring_rkey;
}

Strand::~Strand() { close(Duration{0}); }

void Strand::connect(std::uint32_t peer, std::uint32_t message_qpn, std::uint32_t bulk_qpn, std::uint32_t remote_rkey) {
  ring_rkey(peer);
  driver_.run([&](Engine& engine, Time) {
    Peer& p = peers_[peer];
    p.channel.connect(message_qpn, remote_rkey);
    p.bulk_qpn = bulk_qpn;
    owners_[message_qpn] = {peer, false};
    owners_[bulk_qpn] = {peer, true};
    for (std::uint32_t i = 0; i < receives_posted; ++i) {
      engine.post_receive(message_qpn, receive_request_of(peer, false));
      engine.post_receive(bulk_qpn, receive_request_of(peer, true));
    }
  });
}

void Strand::start(std::uint32_t unit) {
  place_.unit = unit;
  driver_.add_attendant(this);
  is_started_ = true;
}

std::shared_ptr<Work> Strand::issue(const Call& call, double timeout_s) {
  auto op = plan(call, place_);
  auto work = std::make_shared<Work>(port_);
  op->work = work;
  op->timeout_s = timeout_s;
  driver_.run_and_send([&](Engine& engine, Time now) {
    if (is_refused(*work)) return;
    op->number = next_number_++;
    op->issued_at = now;
    op->deadline = now + seconds_of(timeout_s);
    ++stats_.operations;
    stats_.operations_small += std::all_of(op->outs.begin(), op->outs.end(), [](const Outbound& out) { return out.is_eager; });
    if (inquires_at_ == Time::never()) inquires_at_ = now + inquiry_interval;
    operations_.push_back(std::move(op));
    start_ready(engine, now);
    sweep(engine, now);
  });
  return work;
}

// A device that is closed sends nothing: what is begun on it must not look as if it had gone well.
bool Strand::is_refused(Work& work) {
  if (!has_failed() && driver_.is_closed()) error_ = "the device is closed";
  if (has_failed()) work.fail(error_);
  return has_failed();
}

bool Strand::wait(const Work& work, Duration timeout) {
  if (work.has_ended()) return true;
  return driver_.wait_until([&work] { return work.has_ended(); }, timeout);
}

bool Strand::attend(Engine& engine, Time now) {
  std::array<proto::Completion, 64> found;
  while (const std::size_t count = engine.poll_completions(cq_, found))
    for (std::size_t i = 0; i < count; ++i) handle(engine, now, found[i]);
  if (has_unposted_) post_all(engine, now);
  if (has_copies_) {
    has_copies_ = false;
    for (const auto& op : operations_) {
      if (!op->has_started || op->has_ended || op->copies.empty()) continue;
      if (copy_some(*op)) {
        has_copies_ = true;
        continue;
      }
      for (std::uint32_t i = 0; i < op->outs.size(); ++i) post(engine, now, *op, i);
      advance(engine, now, *op);
    }
  }
  sweep(engine, now);
  if (now >= inquires_at_ || !suspects_.empty() || !operations_.empty() || !receivings_.empty() || !sendings_.empty()) look_at_clock(engine, now);
  return has_copies_;
}

Time Strand::deadline() const {
  if (has_copies_) return Time::long_ago();
  Time at = inquires_at_;
  for (const auto& op : operations_) at = std::min(at, op->deadline);
  for (const Sending& s : sendings_) at = std::min(at, s.deadline);
  for (const Receiving& r : receivings_) at = std::min(at, r.deadline);
  for (const Suspect& s : suspects_) at = std::min(at, s.until);
  return at;
}

void Strand::handle(Engine& engine, Time now, const proto::Completion& c) {
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
  else handle_slice(engine, now, peer, c.imm);
}

void Strand::handle_failure(Engine& engine, Time now, const proto::Completion& c) {
  const auto owner = owners_.find(c.qpn);
  if (owner == owners_.end()) return;
  const auto [peer, is_bulk] = owner->second;
  if (!is_bulk) peers_[peer].is_broken = true;
  if (has_failed() || is_closed_ || peers_[peer].has_left) return;
  const std::string why = name_of(peer) + " " + reason_of(c.status);
  if (!is_bulk) return fail(engine, now, why);
  const bool is_known = std::any_of(suspects_.begin(), suspects_.end(), [peer = peer](const Suspect& s) { return s.peer == peer; });
  if (!is_known) suspects_.push_back({peer, now + words_come_within, why});
}

void Strand::say(Engine& engine, Time now, std::uint32_t peer, Header header, std::span<const std::uint8_t> payload, std::uint64_t wr_id) {
  ++stats_.messages;
  peers_[peer].channel.send(engine, now, header, payload, wr_id);
}

void Strand::handle_message(Engine& engine, Time now, std::uint32_t peer, std::uint32_t length) {
  const Channel::Received got = peers_[peer].channel.receive(engine, now, length);
  if (!got.is_valid || !makes_sense(got.header)) return fail(engine, now, name_of(peer) + " sent a message that makes no sense");
  if (got.header.type == MessageType::bye) peers_[peer].has_left = true;
  if (has_failed()) return;
  switch (got.header.type) {
    case MessageType::eager: case MessageType::grant: case MessageType::inquiry:
      handle_collective_message(engine, now, peer, got.header, got.payload);
      break;
    case MessageType::offer: handle_offer(engine, now, peer, got.header, got.payload); break;
    case MessageType::accept: handle_accept(engine, now, peer, got.header); break;
    case MessageType::credit: break;
    case MessageType::error: handle_error(engine, now, std::string(got.payload.begin(), got.payload.end())); break;
    case MessageType::bye: handle_bye(engine, now, peer); break;
  }
  peers_[peer].channel.give_credit(engine, now);
}

void Strand::handle_collective_message(Engine& engine, Time now, std::uint32_t peer, const Header& header, std::span<const std::uint8_t> payload) {
  Operation* op = find(header.number);
  if (op && op->has_started) return deliver(engine, now, *op, peer, header, payload);
  if (op && header.descriptor != op->descriptor)
    return fail(engine, now, name_of(peer) + " called " + describe(header.descriptor) + " where " + name_of(place_.rank) + " called " + describe(op->descriptor));
  const bool is_past = static_cast<std::int32_t>(header.number - next_number_) < 0 && !op;
  if (header.type == MessageType::inquiry || is_past) return;
  auto& stash = peers_[peer].stash;
  if (stash.size() >= most_stashed) return fail(engine, now, name_of(peer) + " is further ahead than any rank may be");
  stash.push_back({header, {payload.begin(), payload.end()}});
}

// What a rank says before it fails was said in order: a barrier that all have reached has been, whether or not the last
// acknowledgement came through.
void Strand::handle_error(Engine& engine, Time now, const std::string& why) {
  for (const auto& op : operations_) {
    if (op->descriptor.kind != Kind::barrier || !op->has_started || op->has_ended || op->taken < op->ins.size()) continue;
    op->open_outs = 0;
    settle(*op);
  }
  fail(engine, now, why, false);
}

// A rank says goodbye when all its operations have ended: what was written to it has arrived, whether or not its last
// acknowledgement came through. That is its word; so that nothing is read from memory that callers have back, nothing
// more is sent to it.
void Strand::handle_bye(Engine& engine, Time now, std::uint32_t peer) {
  engine.modify_error(now, peers_[peer].bulk_qpn);
  for (const auto& op : operations_) {
    if (!op->has_started || op->has_ended) continue;
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
    if (needs_it) return fail(engine, now, name_of(peer) + " has left the group; " + describe(op->descriptor) + " needs it");
    settle(*op);
  }
  for (auto at = sendings_.begin(); at != sendings_.end();) {
    const auto sending = at++;
    if (sending->peer != peer) continue;
    if (!sending->is_written) return fail(engine, now, name_of(peer) + " has left the group and never received what was sent to it");
    sending->work->succeed();
    sendings_.erase(sending);
  }
  for (const Receiving& receiving : receivings_)
    if (receiving.source == static_cast<std::int32_t>(peer))
      return fail(engine, now, name_of(peer) + " has left the group; a receive waits for it");
}

void Strand::fail(Engine& engine, Time now, const std::string& why, bool tells_peers) {
  if (has_failed()) return;
  error_ = why.empty() ? "the group has failed" : why;
  suspects_.clear();
  inquires_at_ = Time::never();
  has_copies_ = has_unposted_ = false;
  Header header;
  header.type = MessageType::error;
  const std::span<const std::uint8_t> text(reinterpret_cast<const std::uint8_t*>(error_.data()), std::min<std::size_t>(error_.size(), 1024));
  for (std::uint32_t p = 0; p < place_.size; ++p) {
    if (p == place_.rank || peers_[p].bulk_qpn == 0) continue;
    if (tells_peers && !peers_[p].is_broken && !peers_[p].has_left) say(engine, now, p, header, text);
    // From here on nothing is read from the callers' memory, and nothing lands there.
    engine.modify_error(now, peers_[p].bulk_qpn);
    peers_[p].stash.clear();
  }
  for (const auto& op : operations_) {
    if (op->has_ended) continue;
    for (const Inbound& in : op->ins)
      if (op->has_started && !in.has_ended && !in.is_eager && in.rkey) engine.remove_region(in.rkey);
    op->has_ended = has_ended_some_ = true;
    op->work->fail(error_);
  }
  end_point_to_point(engine, error_);
}

void Strand::fail_late(Engine& engine, Time now, const std::string& what, double timeout_s, const std::string& whom) {
  std::string seconds = std::to_string(timeout_s);
  seconds.erase(seconds.find_last_not_of('0') + 1);
  if (seconds.back() == '.') seconds.pop_back();
  fail(engine, now, what + " of " + name_of(place_.rank) + " did not end within " + seconds + " s: " + whom);
}

std::vector<std::uint32_t> Strand::awaited_peers(const Operation& op) const {
  std::vector<std::uint32_t> ranks;
  for (const Inbound& in : op.ins)
    if (!in.has_ended) ranks.push_back(in.peer);
  for (const Outbound& out : op.outs)
    if (!out.has_ended && (out.after < 0 || op.ins[static_cast<std::size_t>(out.after)].has_ended)) ranks.push_back(out.peer);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

bool Strand::misses_anybody(const Operation& op) const {
  const std::vector<std::uint32_t> peers = awaited_peers(op);
  return std::any_of(peers.begin(), peers.end(), [&op](std::uint32_t p) { return !op.has_message[p]; });
}

std::string Strand::awaited(const Operation& op) const {
  if (!op.has_started) return "an earlier operation on the same memory has not ended";
  std::string absent, slow;
  for (std::uint32_t p : awaited_peers(op)) {
    std::string& list = op.has_message[p] ? slow : absent;
    list += (list.empty() ? "" : ", ") + name_of(p);
  }
  if (!absent.empty()) return absent + " did not take part";
  return slow + " did not finish its part";
}

void Strand::look_at_clock(Engine& engine, Time now) {
  for (const Suspect& s : suspects_)
    if (s.until <= now) return fail(engine, now, std::string(s.why));
  for (const auto& op : operations_)
    if (!op->has_ended && op->deadline <= now) {
      // All that it waits for have spoken, so they wait as well: whoever knows for whom is about to say so.
      if (!std::exchange(op->is_overdue, true) && op->has_started && !misses_anybody(*op)) {
        op->deadline = now + words_come_within;
        continue;
      }
      fail_late(engine, now, describe(op->descriptor), op->timeout_s, awaited(*op));
      sweep(engine, now);
      return;
    }
  look_at_point_to_point(engine, now);
  if (now >= inquires_at_) inquire(engine, now);
}

// A peer that is dead says nothing; asking it makes the engine notice. One that calls something else says so.
void Strand::inquire(Engine& engine, Time now) {
  std::vector<bool> is_asked(place_.size, false);
  for (const auto& op : operations_) {
    if (!op->has_started || op->has_ended || now - op->issued_at < inquiry_interval / 2) continue;
    for (std::uint32_t p : awaited_peers(*op)) {
      if (is_asked[p]) continue;
      is_asked[p] = true;
      Header header;
      header.type = MessageType::inquiry;
      header.number = op->number;
      header.descriptor = op->descriptor;
      ++stats_.inquiries;
      say(engine, now, p, header);
    }
  }
  Header header;
  header.type = MessageType::credit;
  const auto ask = [&](std::uint32_t p) {
    if (!is_asked[p]) say(engine, now, p, header);
    is_asked[p] = true;
  };
  for (const Sending& s : sendings_) ask(s.peer);
  for (const Receiving& r : receivings_)
    if (r.source >= 0) ask(static_cast<std::uint32_t>(r.source));
  const bool is_busy = !operations_.empty() || !sendings_.empty() || !receivings_.empty();
  inquires_at_ = is_busy ? now + inquiry_interval : Time::never();
}

void Strand::abort(const std::string& why) {
  driver_.run_and_send([&](Engine& engine, Time now) {
    fail(engine, now, name_of(place_.rank) + " aborted: " + why);
    sweep(engine, now);
  });
}

void Strand::close(Duration linger) {
  bool is_first = false;
  driver_.run_and_send([&](Engine& engine, Time now) {
    if (is_closed_) return;
    is_first = true;
    if (!operations_.empty() || !sendings_.empty() || !receivings_.empty()) {
      fail(engine, now, name_of(place_.rank) + " left the group in the middle of an operation");
      sweep(engine, now);
    }
    is_closed_ = true;
    Header header;
    header.type = MessageType::bye;
    for (std::uint32_t p = 0; p < place_.size && is_started_; ++p)
      if (peers_[p].bulk_qpn != 0 && !peers_[p].is_broken) say(engine, now, p, header);
  });
  if (!is_first) return;
  const auto is_heard = [this] {
    for (std::uint32_t p = 0; p < place_.size; ++p) {
      const Peer& peer = peers_[p];
      if (p == place_.rank || peer.bulk_qpn == 0 || peer.is_broken || peer.has_left) continue;
      const proto::QueuePair* pair = engine_->qp(peer.channel.qpn());
      if (peer.channel.has_backlog() || (pair && pair->requester().has_work())) return false;
    }
    return true;
  };
  if (is_started_ && linger.ps > 0) driver_.wait_until(is_heard, linger);
  driver_.remove_attendant(this);
  // The peers' last words may still want their acknowledgement; who misses it asks the device, which remembers.
  driver_.send_owed();
  driver_.run_and_send([this](Engine& engine, Time now) {
    for (Peer& peer : peers_) {
      if (peer.ring_rkey) engine.remove_region(peer.ring_rkey);
      if (peer.bulk_qpn == 0) continue;
      engine.destroy_qp(now, peer.channel.qpn());
      engine.destroy_qp(now, peer.bulk_qpn);
    }
    if (error_.empty()) error_ = "the group is closed";
  });
}

std::string Strand::error() {
  std::string error;
  driver_.run([&](Engine&, Time) { error = error_; });
  return error;
}

GroupStats Strand::stats() {
  GroupStats stats;
  driver_.run([&](Engine&, Time) { stats = stats_; });
  return stats;
}

}  // namespace softmrc::collectives
