#include "collectives/channel.h"

#include <algorithm>
#include <array>

#include "collectives/error_text.h"
#include "collectives/immediate.h"

namespace softmrc::collectives {

Channel::Channel(ChannelOwner& owner, std::uint32_t number, const ChannelResources& resources, RankInfo place,
                 const GroupDirectory& directory, std::span<const proto::Domain> domains, std::uint64_t seed)
    : self_{number, place.rank, place.size},
      cq_(resources.cq),
      driver_(*resources.driver),
      failures_(owner, self_, *this),
      connections_(self_, resources, directory, domains, seed, failures_, *this),
      router_(self_, connections_, failures_),
      shm_(directory, connections_, router_, failures_),
      transfers_(owner, self_, connections_, router_, shm_, failures_),
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
  driver_.run_and_send([this](Engine& engine, Time now) { transfers_.sweep(engine, now); });
}

bool Channel::progress(Engine& engine, Time now) {
  std::array<proto::Completion, 64> found;
  while (const std::size_t count = engine.poll_completions(cq_, found))
    for (std::size_t i = 0; i < count; ++i) handle(engine, now, found[i]);
  if (transfers_.has_unposted() || p2p_.has_unposted()) {
    transfers_.post_all(engine, now);
    p2p_.post_all(engine, now);
  }
  if (router_.has_unsent()) router_.flush(engine, now);
  transfers_.copy(engine, now);
  transfers_.sweep(engine, now);
  if (now >= deadline()) check_deadlines(engine, now);
  return transfers_.has_copies();
}

Time Channel::deadline() const {
  if (transfers_.has_copies()) return Time::long_ago();
  return std::min({failures_.deadline(), transfers_.deadline(), p2p_.deadline()});
}

void Channel::handle(Engine& engine, Time now, const proto::Completion& c) {
  if (c.status != proto::CompletionStatus::success) return handle_failure(engine, now, c);
  if (!(c.wr_id & receive_mark)) {
    if (failures_.has_failed()) return;
    if (c.wr_id & send_mark) p2p_.on_sent(static_cast<std::uint32_t>(c.wr_id));
    else transfers_.on_sent(c.wr_id);
    return;
  }
  engine.post_receive(c.qpn, c.wr_id);
  const std::uint32_t peer = peer_of(c.wr_id);
  if (!(c.wr_id & 1)) handle_message(engine, now, peer, c.length);
  else if (failures_.has_failed()) return;
  else if (c.imm & send_bit) p2p_.on_received(engine, peer, c.imm & ~send_bit);
  else transfers_.on_slice(engine, now, peer, c.imm, c.length);
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

void Channel::handle_message(Engine& engine, Time now, std::uint32_t peer, std::uint32_t length) {
  const std::optional<MessageRing::Received> got = router_.receive(engine, now, peer, length);
  if (!got) return;
  switch (got->header.type) {
    case MessageType::eager:
    case MessageType::grant:
    case MessageType::inquiry: transfers_.on_message(engine, now, peer, got->header, got->payload); break;
    case MessageType::offer: p2p_.on_offer(engine, now, peer, got->header, got->payload); break;
    case MessageType::accept: p2p_.on_accept(engine, now, peer, got->header); break;
    case MessageType::credit: break;
    case MessageType::shm: shm_.on_offer(engine, now, peer, got->payload); break;
    case MessageType::error:
      transfers_.on_peer_error();
      failures_.fail(engine, now, std::string(got->payload.begin(), got->payload.end()), false);
      break;
    case MessageType::bye: handle_bye(engine, now, peer, got->header.number == 0); break;
  }
  router_.give_credit(engine, now, peer);
}

// So that nothing is read from memory that callers have back, nothing more is sent to a peer that has left.
void Channel::handle_bye(Engine& engine, Time now, std::uint32_t peer, bool is_well) {
  connections_.close_bulk(engine, now, peer);
  if (!is_well) return failures_.suspect(now, peer, rank_name(peer) + " has left the group, which had failed there");
  transfers_.on_bye(engine, now, peer);
  p2p_.on_bye(engine, now, peer);
}

void Channel::on_group_failure(Engine& engine, Time now, const GroupFailure& failure) {
  router_.on_group_failure(engine, now, failure);
  transfers_.end(engine);
  p2p_.end(engine, failures_.error());
}

void Channel::check_deadlines(Engine& engine, Time now) {
  if (failures_.check_suspects(engine, now) || transfers_.check_deadlines(engine, now)) return;
  p2p_.check_deadlines(engine, now);
  failures_.check_waiting(engine, now);
  if (!failures_.is_inquiry_due(now)) return;
  std::vector<bool> is_asked(self_.size, false);
  transfers_.inquire(engine, now, is_asked);
  p2p_.inquire(engine, now, is_asked);
  const bool is_busy = transfers_.is_busy() || p2p_.is_busy();
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
    for (const ChannelStats* part : std::initializer_list<const ChannelStats*>{&connections_.stats(), &router_.stats(),
                                                                               &transfers_.stats(), &p2p_.stats()})
      sum += *part;
  });
  return sum;
}

// A rank connects to every peer that may send to it.
void Channel::on_first_packet(Engine& engine, Time now, std::uint32_t node, std::uint32_t qpn) {
  if (const auto peer = connections_.accept(engine, now, node, qpn)) router_.send_missed(engine, now, *peer);
}

}  // namespace softmrc::collectives
