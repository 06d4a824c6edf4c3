// How a channel comes to know its peers: with queue pairs, rings and keys, when one of the two first speaks to the
// other.
#include "base/check.h"
#include "collectives/channel.h"
#include "collectives/immediate.h"

namespace softmrc::collectives {
namespace {

constexpr std::uint32_t receives_posted = 2048;
constexpr std::uint32_t highest_qpn = 0xFFFFFF;
constexpr std::uint32_t max_draws = 1'000'000;

}  // namespace

// Numbers are drawn, and so is where the keys begin: who has not read the store must not be able to guess them.
PeerEndpoint Channel::reserve() {
  const std::uint32_t pairs = 2 * place_.size;
  const std::uint32_t choices = highest_qpn / home_.lanes;
  SOFTMRC_CHECK(pairs + 4 < choices);
  driver_.run([&](Engine& engine, Time) {
    proto::QpnReservation kept{0, home_.lanes, pairs, 0, place_.size};
    for (std::uint32_t draws = 0; !meets_; ++draws) {
      SOFTMRC_CHECK(draws < max_draws);
      kept.first_qpn = home_.lane + home_.lanes * (4 + prng_.below(choices - pairs - 4));
      kept.first_rkey = 1 + prng_.below(~0u - place_.size);
      meets_ = engine.reserve(kept, *this);
    }
    end_ = {0, kept.first_qpn, kept.stride, kept.first_rkey};
  });
  return end_;
}

Channel::Peer& Channel::open(Engine& engine, std::uint32_t p, std::uint32_t rkey, const proto::LazyAccept* by) {
  SOFTMRC_CHECK(!peers_[p]);
  Peer& peer = *(peers_[p] = std::make_unique<Peer>());
  peer.ring.open(is_first() ? MessageRing::wide_ring : MessageRing::narrow_ring);
  peer.ring_rkey = rkey;
  SOFTMRC_CHECK(engine.add_region({peer.ring.inbound(), 0, peer.ring.ring_bytes(), rkey, nullptr, domains_[p]}, by));
  return peer;
}

// By a word that says nothing: the other end is made when it comes.
bool Channel::connect_now(std::uint32_t p, Duration patience) {
  MessageHeader header;
  header.type = MessageType::credit;
  driver_.run_and_send([&](Engine& engine, Time now) {
    if (!peers_[p]) send_message(engine, now, p, header);
  });
  const auto is_answered = [&] {
    const proto::QueuePair* pair = peers_[p]->bulk_qpn ? engine_->qp(peers_[p]->ring.qpn()) : nullptr;
    return pair && (pair->requester().live_ports() & engine_->up_ports()) == engine_->up_ports();
  };
  return driver_.wait_until(is_answered, patience);
}

std::uint32_t Channel::ring_rkey(std::uint32_t p) {
  driver_.run([&](Engine& engine, Time) {
    if (!peers_[p]) open(engine, p, new_rkeys(engine, 1), nullptr);
  });
  return peers_[p]->ring_rkey;
}

void Channel::connect(std::uint32_t p, std::uint32_t message_qpn, std::uint32_t bulk_qpn, std::uint32_t remote_rkey) {
  ring_rkey(p);
  driver_.run([&](Engine& engine, Time) { join(engine, p, message_qpn, bulk_qpn, remote_rkey); });
}

void Channel::join(Engine& engine, std::uint32_t p, std::uint32_t message_qpn, std::uint32_t bulk_qpn,
                   std::uint32_t remote_rkey) {
  Peer& peer = *peers_[p];
  peer.ring.connect(message_qpn, remote_rkey);
  peer.bulk_qpn = bulk_qpn;
  owners_[message_qpn] = {p, false};
  owners_[bulk_qpn] = {p, true};
  ++stats_.peers_met;
  engine.post_receives(message_qpn, receive_request_of(p, false), receives_posted);
  engine.post_receives(bulk_qpn, receive_request_of(p, true), receives_posted);
}

// What both know makes the same connection, whoever begins, or if both do at once.
Channel::Peer& Channel::meet(Engine& engine, Time now, std::uint32_t p) {
  const PeerInfo& member = roll_.members[p];
  const PeerEndpoint& there = member.ends[number_];
  Peer& peer = open(engine, p, end_.ring_rkey(p), this);
  const std::uint32_t node = qp_factory_.admit(there.place);
  const auto give_up = [&](const char* why) -> Peer& {
    peer.is_broken = true;
    suspect_peer(now, p, name_of(p) + " cannot be reached: " + why);
    return peer;
  };
  if (node == proto::no_peer) return give_up("another is where it was said to be");
  proto::InitAttributes init;
  init.ev_profile = home_.ev_profile;
  init.cc_profile = home_.cc_profile;
  init.send_cq = init.recv_cq = home_.cq;
  init.domain = domains_[p];
  if (member.paths) SOFTMRC_CHECK(!engine.add_ev_profile(member.paths, init.ev_profile));
  for (const bool is_bulk : {false, true}) {
    const std::uint32_t qpn = end_.qpn(p, is_bulk);
    SOFTMRC_CHECK(!engine.create_qp(qpn, this) && !qp_factory_.init(engine, now, qpn, init, member.paths != nullptr));
    if (qp_factory_.connect(engine, now, qpn, roll_.receiving(number_, p, is_bulk, node))) {
      for (const bool other : {false, true}) qp_factory_.destroy(engine, now, end_.qpn(p, other));
      if (member.paths) engine.remove_ev_profile(init.ev_profile);
      return give_up("other packets to it are sealed, or these are");
    }
    SOFTMRC_CHECK(!engine.modify_rts(now, qpn, roll_.sending(number_, p, is_bulk)));
    for (const std::uint32_t ev : member.denied) engine.deny_ev(now, qpn, ev);
  }
  if (member.paths) engine.remove_ev_profile(init.ev_profile);
  join(engine, p, end_.qpn(p, false), end_.qpn(p, true), there.ring_rkey(place_.rank));
  return peer;
}

// Whose packet it is has been asked: a rank cannot make us speak to another. To the node a rank speaks before it has a
// queue pair; where ways back are its own, they are needed for the answer.
void Channel::on_first_packet(Engine& engine, Time now, std::uint32_t node, std::uint32_t qpn) {
  if (!is_started_ || driver_.is_closed()) return;
  const std::uint32_t place = qp_factory_.place_of(node);
  std::uint32_t p = 0;
  if (qpn == wire::endpoint_qpn) {
    while (p < place_.size &&
           (p == place_.rank || !roll_.members[p].paths || roll_.members[p].ends[number_].place != place))
      ++p;
  } else {
    p = end_.rank_of(qpn);
  }
  if (p >= place_.size || p == place_.rank || peers_[p] || roll_.members[p].ends[number_].place != place) return;
  meet(engine, now, p);
  // It has missed what the others were told.
  if (has_failed() && is_first()) send_error(engine, now, p);
  if (is_leaving_) send_bye(engine, now, p);
}

std::optional<std::pair<std::uint32_t, std::uint32_t>> Channel::pair(std::uint32_t p) {
  std::optional<std::pair<std::uint32_t, std::uint32_t>> found;
  driver_.run([&](Engine&, Time) {
    if (peers_[p] && peers_[p]->bulk_qpn && !has_left_) found.emplace(peers_[p]->ring.qpn(), peers_[p]->bulk_qpn);
  });
  return found;
}

}  // namespace softmrc::collectives
