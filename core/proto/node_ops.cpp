#include "proto/node_ops.h"

#include <algorithm>
#include <bit>

namespace softmrc::proto {
namespace {

// On the wire ports count from 1 and bit 0 is zero; here plane p is port p.
std::uint32_t to_wire(std::uint32_t ports) { return ports << 1; }
std::uint32_t from_wire(std::uint32_t mask) { return mask >> 1; }

// Within this time of each other the wire's timestamps have an order.
constexpr Duration half_clock{wire::Timestamp::unit_ps << 15};

// Answers that wait for a port. A peer that floods us with requests must not make us hoard; it will ask again.
constexpr std::size_t max_answers = 1024;

// Of an answer that is longer than those of nodes to each other: so many count as one.
constexpr std::uint32_t bytes_of_an_answer = 1'600;

// How long a peer that the network reports unreachable is probed, or as many round trips where those are longer.
constexpr Duration unreachable_timeout = milliseconds(400);
constexpr int unreachable_round_trips = 8;

// As an answer tells it: never 0, which says nothing.
// spec: probe-service-time
std::uint32_t service_ns(Duration took) {
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(took.ps / 1000, 1, 0xFFFFFFFF));
}

bool has_work(const QueuePair& pair) { return pair.state() == QpState::rts && pair.requester().has_work(); }

void fill_header(wire::Opcode opcode, std::uint16_t id, std::uint32_t peer, std::uint8_t port, std::uint32_t entropy,
                 TrafficClass traffic_class, Transmit& out) {
  out.peer = peer;
  out.qpn = no_qpn;
  out.port = port;
  out.entropy = entropy;
  out.wide = nullptr;
  out.traffic_class = traffic_class;
  out.packet.bth = wire::Bth{};
  out.packet.bth.opcode = opcode;
  out.packet.bth.dqp = wire::endpoint_qpn;
  out.packet.bth.psn = id;
}

void fill_response(wire::EndpointOp op, std::uint16_t id, wire::Timestamp timestamp, std::uint64_t key,
                   std::uint32_t peer, std::uint8_t port, Transmit& out) {
  fill_header(wire::Opcode::endpoint_response, id, peer, port, 0, TrafficClass::control, out);
  out.packet.body = wire::EndpointResponse{op, timestamp, key, 0};
}

}  // namespace

NodeOps::NodeOps(EndpointContext& context, const QpTable& qps, QpScheduler& scheduler)
    : context_(context),
      qps_(qps),
      scheduler_(scheduler),
      up_ports_(all_ports()),
      // Another process at the same address would otherwise begin with the same ids.
      next_update_id_(static_cast<std::uint16_t>(Prng(context.config.seed, "updates").bits() >> 48)),
      pending_probes_(Prng(context.config.seed, "probes")),
      path_validation_({context.config.secret, context.config.seed}) {}

// Peers ------------------------------------------------------------------------------------------------------------

bool NodeOps::remove_peer(std::uint32_t id) {
  if (!peers_.contains(id) || peers_[id].claims == 0) return false;
  --peers_[id].claims;
  release_peer(id);
  return true;
}

// What waits to be sent to it, or is awaited from it, must not become another's who is given its number.
// spec: peer-life
void NodeOps::release_peer(std::uint32_t id) {
  if (!peers_.release(id)) return;
  ++context_.event_log.stats.peers_forgotten;
  unreachable_probes_.remove(id);
  path_validation_.forget(id);
  answers_.remove_if([id](const Answer& answer) { return answer.peer == id; });
  caller_probes_.remove_peer(id);
  pending_probes_.remove_peer(id);
}

// Reports about the process before it, and answers to its probes, are of no meaning for this one.
void NodeOps::reset_peer(Time now, std::uint32_t id) {
  Peer& peer = peers_[id];
  peers_.reset(peer);
  unreachable_probes_.remove(id);
  path_validation_.remove(id);
  pending_probes_.settle_peer(id);
  if (context_.config.proves_addresses) peer.validated_ports = 0;
  if (peer.has_qp) announce_to(now, peer);
  refresh_ports(now, id);
}

bool NodeOps::has_working_qp(std::uint32_t id) const {
  const QueuePair* first = first_qp_to(id);
  if (first && first->is_working()) return true;
  return qps_.find_to(id, [](const QueuePair& pair) { return pair.is_working(); });
}

// No queue pair is connected to it: it may have been restarted since.
void NodeOps::before_rtr(Time now, std::uint32_t id) {
  if (peers_[id].is_known && !has_working_qp(id)) reset_peer(now, id);
}

void NodeOps::on_rtr(Time now, std::uint32_t slot) {
  QueuePair& pair = *qps_.at(slot);
  Peer& peer = peers_[pair.peer()];
  ++peer.refs;
  ++peer.queue_pairs;
  const bool is_new = !peer.is_known;
  peer.is_known = true;
  if (is_new && context_.config.proves_addresses) {
    peer.validated_ports = 0;
    path_validation_.add(now, pair.peer(), all_ports());
  }
  pair.set_ports(now, live_ports(pair.peer()), peer.validated_ports);
  if (!peer.has_qp) {
    peer.first_qp = slot;
    peer.has_qp = true;
  }
  // It may have restarted unnoticed, and believe that every port is up.
  const bool is_due = up_ports_ != all_ports() || (peer.announced_ports & all_ports()) != up_ports_ ||
                      (is_new && context_.config.announces_ports);
  if (is_due) announce_to(now, peer);
}

void NodeOps::on_destroy(std::uint32_t slot) {
  const std::uint32_t id = qps_.at(slot)->peer();
  Peer& peer = peers_[id];
  --peer.queue_pairs;
  pending_probes_.settle_slot(slot);
  if (peer.first_qp != slot) return;
  peer.has_qp = false;
  qps_.for_each_to(id, [&](std::uint32_t other, const QueuePair&) {
    if (other == slot || peer.has_qp) return;
    peer.first_qp = other;
    peer.has_qp = true;
  });
  if (!peer.has_qp) peers_.stop_announcing(peer);
}

// Which queue pairs there are to a peer ----------------------------------------------------------------------------

// By whose paths the node sends to this peer: of a queue pair that has any left.
QueuePair* NodeOps::any_qp_to(std::uint32_t id) const {
  QueuePair* first = first_qp_to(id);
  if (!first || first->open_ports()) return first;
  QueuePair* other = qps_.find_to(id, [](const QueuePair& pair) { return pair.open_ports() != 0; });
  return other ? other : first;
}

// A working queue pair to this peer whose key this is: it vouches for what is said about the peer's ports. One without
// a key vouches for anything, but only where none has one, or a connection without one would unlock the others.
// spec: port-keys
const QueuePair* NodeOps::qp_with_key(std::uint32_t id, std::uint64_t key) const {
  const QueuePair* keyless = nullptr;
  bool has_keys = false;
  const QueuePair* found = qps_.find_to(id, [&](const QueuePair& pair) {
    if (!pair.is_working()) return false;
    if (pair.port_key() == 0) keyless = &pair;
    else if (pair.port_key() == key) return true;
    else has_keys = true;
    return false;
  });
  return found || has_keys ? found : keyless;
}

// The same without a search, for what costs no allowance: the first one's key.
const QueuePair* NodeOps::first_qp_with_key(std::uint32_t id, std::uint64_t key) const {
  const QueuePair* first = first_qp_to(id);
  return first && first->is_working() && first->port_key() && first->port_key() == key ? first : nullptr;
}

// The peer may have closed its end of some connections and know their keys no more, so every round shows another one's.
std::uint64_t NodeOps::key_for(std::uint32_t id) const {
  std::uint32_t count = 0;
  qps_.for_each_to(id, [&](std::uint32_t, const QueuePair& pair) { count += pair.is_working(); });
  if (count == 0) return 0;
  std::uint32_t skip = peers_[id].rounds % count;
  return qps_.find_to(id, [&](const QueuePair& pair) { return pair.is_working() && skip-- == 0; })->peer_port_key();
}

// A peer that gives keys for ports is of our make, and sends nonces back.
bool NodeOps::echoes_nonces(std::uint32_t id) const {
  return qps_.find_to(id, [](const QueuePair& pair) { return pair.is_working() && pair.peer_port_key(); });
}

bool NodeOps::has_work_for(std::uint32_t id) const { return qps_.find_to(id, has_work); }

// A single queue pair shares nothing.
std::span<SharedReversePath> NodeOps::shared_paths_from(std::uint32_t id) {
  Peer& peer = peers_[id];
  if (peer.queue_pairs < 2) return {};
  if (peer.reverse_paths.empty()) peer.reverse_paths.resize(context_.config.ports);
  return peer.reverse_paths;
}

// Requests of peers, and their answers -------------------------------------------------------------------------------

// Anybody who can forge a peer's address can ask as often as they like; answering costs a send. What one peer is said
// to ask takes nothing from the share that each of the others has for itself.
// spec: answers-bounded
bool NodeOps::may_answer(Time now, TokenBucket& own, TokenBucket& shared, std::uint32_t count) {
  const std::uint32_t rate = context_.config.answers_per_s;
  if (rate == 0 || own.take(now, rate / 10, count) || shared.take(now, rate, count)) return true;
  ++context_.event_log.stats.requests_unanswered;
  return false;
}

bool NodeOps::may_answer_at_length(Time now, std::uint32_t peer, std::uint32_t bytes) {
  return may_answer(now, peers_[peer].long_answers, long_allowance_,
                    (bytes + bytes_of_an_answer - 1) / bytes_of_an_answer);
}

void NodeOps::handle_request(Time now, const wire::Packet& packet, const Arrival& arrival) {
  const auto& request = std::get<wire::EndpointRequest>(packet.body);
  EndpointStats& stats = context_.event_log.stats;
  ++stats.endpoint_requests;
  Peer& peer = peers_[arrival.peer];
  const auto id = static_cast<std::uint16_t>(packet.bth.psn);
  const Serial<16> ticks(request.timestamp.ticks);
  const bool is_update = request.op == wire::EndpointOp::port_status_update;
  const bool is_new = is_update && !peer.received.find(id);
  stats.port_updates_received += is_update;
  // An update from before we are connected to a peer would be forgotten when we are. It repeats what is not answered.
  if (is_update && !has_working_qp(arrival.peer)) return;
  const QueuePair* keyed_qp = is_update ? first_qp_with_key(arrival.peer, request.key) : nullptr;
  if (!keyed_qp && !may_answer(now, peer.answers, allowance_)) return;
  if (is_update && !keyed_qp) keyed_qp = qp_with_key(arrival.peer, request.key);
  if (is_update && !keyed_qp)
    return context_.refuse(now, RefusedPacket::unproven, stats.refused_unproven, &packet.bth, arrival);
  if (QueuePair* pair = first_qp_to(arrival.peer)) pair->note_arrival(arrival.port, arrival.entropy);
  // Of two that are both new, the one that was sent later counts. The wire's clock is short: should this be the newest
  // after all, it is repeated until it is answered.
  if (is_new && now - peer.received_at < half_clock && ticks - peer.received_ticks < 0) return;
  const std::uint32_t ports = from_wire(request.port_status_mask) & all_ports();
  // This cannot be true: it came by some port. If it is true of ports that are down here, it is repeated.
  // spec: last-port
  if (is_new && (ports == 0 || (up_ports_ && !(ports & up_ports_))))
    return context_.refuse(now, RefusedPacket::last_port, stats.refused_last_port, &packet.bth, arrival);
  if (answers_.size() >= max_answers) answers_.pop();
  const std::uint64_t key = !is_update ? request.key : keyed_qp->peer_port_key();  // a nonce goes back as it came
  answers_.push({arrival.peer, arrival.qpn, id, arrival.port, request.op, request.timestamp, key, now});
  // Copies travel on every plane and may overtake each other; one of an old update must not undo a newer.
  if (!is_new) return;
  const bool is_change = peer.usable_ports != ports;
  peers_.on_update(peer, now, {id, ports}, ticks, all_ports());
  if (!is_change) return;
  Event e;
  e.at_ps = now.ps;
  e.type = EventType::peer_ports;
  e.code = arrival.peer;
  e.value = ports;
  context_.event_log.record(e);
  refresh_ports(now, arrival.peer);
}

bool NodeOps::send_any_answer(Time now, std::uint32_t free_ports, Transmit& out) {
  for (std::size_t turns = answers_.size(); turns; --turns) {
    const Answer answer = answers_.front();
    answers_.pop();
    if (send_answer(now, answer, free_ports, out)) return true;
  }
  return false;
}

// Back by the path it came, unless that is known to be broken; that the request arrived there is evidence too. A node
// that only answers never learns that the reverse path is broken. So where there is evidence that the peer does not
// receive what we send, a copy takes another path; the answer itself goes where it always does, lest a healthy path
// fail to prove itself.
// spec: probe-answers
bool NodeOps::send_answer(Time now, const Answer& answer, std::uint32_t free_ports, Transmit& out) {
  using Copy = Answer::Copy;
  QueuePair* pair = any_qp_to(answer.peer);
  Peer& peer = peers_[answer.peer];
  std::uint32_t open = pair ? pair->open_ports() : ~0u;
  // Where the peer has yet to show that it is there, nothing goes but back by the plane that the question came from.
  // That is open even if others are validated: they may be dead by now at both ends, and each would wait for the
  // other's answer.
  if (answer.copy != Copy::any_plane) open &= peer.validated_ports | 1u << answer.port;
  free_ports &= open;
  if (free_ports == 0) {
    if (up_ports_ & open) answers_.push(answer);  // they are only busy; but where all EVs are denied, nothing is said
    return false;
  }
  const std::uint8_t port = port_of(answer, pair, free_ports);
  // A peer that validates our addresses, and receives no answer, leaves no other trace. Where no plane works both ways,
  // or the path that answers take is dead, it would never end, but for a few copies that may take any plane, and others
  // that take another path.
  const auto push_copy = [&](Copy copy, std::uint8_t from) {
    answers_.push(answer);
    answers_.back().copy = copy;
    answers_.back().port = from;
  };
  if (answer.copy == Copy::none && pair) {
    const bool may_stray = context_.config.proves_addresses && peer.strays.take(now, strays_per_s);
    if (may_stray) push_copy(Copy::other_path, answer.port);
    const auto seems_unreachable = [now](const QueuePair& qp) { return qp.seems_unreachable(now); };
    if (may_stray || qps_.find_to(answer.peer, seems_unreachable))
      push_copy(may_stray ? Copy::any_plane : Copy::other_plane, port);
  }
  fill_response(answer.op, answer.id, answer.timestamp, answer.key, answer.peer, port, out);
  if (answer.op == wire::EndpointOp::ev_probe)
    std::get<wire::EndpointResponse>(out.packet.body).service_ns = service_ns(now - answer.asked_at);
  out.qpn = answer.qpn;
  if (pair) pair->address_reply(port, answer.copy != Copy::none, out);
  return true;
}

std::uint8_t NodeOps::port_of(const Answer& answer, QueuePair* pair, std::uint32_t free_ports) const {
  using Copy = Answer::Copy;
  const bool may_stray = answer.copy == Copy::any_plane;
  const std::uint32_t live = free_ports & (live_ports(answer.peer) | 1u << answer.port);
  const std::uint32_t ports = live && !may_stray ? live : free_ports;
  std::uint8_t port = answer.port;
  if (may_stray || answer.copy == Copy::other_plane) {
    // The number of the request decides, through a hash, lest every copy take the same plane.
    const std::uint32_t others = ports & ~(1u << port) ? ports & ~(1u << port) : ports;
    std::uint32_t skip = (answer.id * 0x9E3779B1u >> 16) % static_cast<std::uint32_t>(std::popcount(others));
    std::uint32_t left = others;
    for (; skip; --skip) left &= left - 1;
    port = static_cast<std::uint8_t>(std::countr_zero(left));
  } else if (pair && answer.copy == Copy::none) {
    port = pair->reply_port(port, ports);
  }
  return free_ports >> port & 1 ? port : static_cast<std::uint8_t>(std::countr_zero(free_ports));
}

// Answers of peers ---------------------------------------------------------------------------------------------------

void NodeOps::handle_response(Time now, const wire::Packet& packet, const Arrival& arrival) {
  ++context_.event_log.stats.endpoint_responses;
  const bool is_update = std::get<wire::EndpointResponse>(packet.body).op == wire::EndpointOp::port_status_update;
  return is_update ? handle_update_answer(now, packet, arrival) : handle_probe_answer(now, packet, arrival);
}

void NodeOps::handle_update_answer(Time now, const wire::Packet& packet, const Arrival& arrival) {
  const auto& response = std::get<wire::EndpointResponse>(packet.body);
  EndpointStats& stats = context_.event_log.stats;
  Peer& peer = peers_[arrival.peer];
  if (!first_qp_with_key(arrival.peer, response.key) && has_working_qp(arrival.peer)) {
    if (!may_answer(now, peer.answers, allowance_)) return;
    if (!qp_with_key(arrival.peer, response.key))
      return context_.refuse(now, RefusedPacket::unproven, stats.refused_unproven, &packet.bth, arrival);
  }
  const auto meaning = peers_.on_answer(peer, static_cast<std::uint16_t>(packet.bth.psn));
  const bool is_unknown = meaning == Peers::Answer::to_nothing;
  if (is_unknown)
    context_.refuse(now, RefusedPacket::unknown_answer, stats.refused_unknown_answer, &packet.bth, arrival);
  // A copy that was delayed, or an answer that was: which of them, only another update settles. What is unknown may be
  // very old, or forged: then it is repeated once a second at most, but it is sent.
  if (meaning == Peers::Answer::to_newest || (is_unknown && peer.update.is_pending())) return;
  if (peer.sent.empty() || !has_working_qp(arrival.peer)) return;
  const Time at = is_unknown ? std::max(now, peer.may_repeat_at) : now;
  peer.may_repeat_at = at + seconds(1);
  announce_to(at, peer);
}

void NodeOps::refuse_answer(Time now, const wire::Packet& packet, const Arrival& arrival) {
  EndpointStats& stats = context_.event_log.stats;
  const bool has_nonce = std::get<wire::EndpointResponse>(packet.body).key;
  if (path_validation_.on_wrong_answer(arrival.peer, has_nonce))
    context_.refuse(now, RefusedPacket::wrong_proof, stats.refused_wrong_proof, &packet.bth, arrival);
  else context_.refuse(now, RefusedPacket::unknown_answer, stats.refused_unknown_answer, &packet.bth, arrival);
}

void NodeOps::handle_probe_answer(Time now, const wire::Packet& packet, const Arrival& arrival) {
  const auto& response = std::get<wire::EndpointResponse>(packet.body);
  const auto id = static_cast<std::uint16_t>(packet.bth.psn);
  const std::uint16_t ticks = response.timestamp.ticks;
  if (const auto port = path_validation_.plane_of(now, arrival.peer, {response.key, id, ticks}))
    return confirm_path(now, arrival.peer, *port);
  if (path_validation_.is_past(now, arrival.peer, {response.key, id, ticks})) return;
  const auto probe = response.key ? std::nullopt : pending_probes_.take(id, arrival.peer, ticks);
  if (!probe) return refuse_answer(now, packet, arrival);
  if (probe->owner == PendingProbe::Owner::caller)
    return record_probe_answer(now, *probe, arrival, response.service_ns);
  if (probe->owner == PendingProbe::Owner::liveness) peers_[arrival.peer].pong_at = now;
  if (probe->owner != PendingProbe::Owner::queue_pair) return;
  if (QueuePair* pair = qps_.at(probe->slot)) {
    pair->on_probe_answer(now, probe->probe, now - probe->sent_at, shared_paths_from(probe->peer));
    scheduler_.schedule(now, probe->slot);
  }
}

void NodeOps::record_probe_answer(Time now, const PendingProbe& probe, const Arrival& arrival,
                                  std::uint32_t service_ns) {
  Event e;
  e.at_ps = now.ps;
  e.type = EventType::probe_answer;
  e.code = probe.peer;
  e.psn = probe.slot;
  e.ev = probe.probe.entropy;
  e.port = arrival.port;
  e.value = static_cast<std::uint64_t>((now - probe.sent_at).ps);
  e.took = service_ns;
  context_.event_log.record(e);
}

// Ports --------------------------------------------------------------------------------------------------------------

// spec: port-status
void NodeOps::set_port(Time now, std::uint32_t port, bool is_up) {
  if (port >= context_.config.ports || (up_ports_ >> port & 1) == static_cast<std::uint32_t>(is_up)) return;
  up_ports_ ^= 1u << port;
  Event e;
  e.at_ps = now.ps;
  e.type = EventType::port_state;
  e.port = static_cast<std::uint8_t>(port);
  e.code = is_up;
  context_.event_log.record(e);
  if (is_up) path_validation_.resume_all(now);
  else context_.event_log.stats.probes_unsent += caller_probes_.remove_port(port);
  peers_.announce(now, next_update_id_++, up_ports_);
  for (std::uint32_t peer = 0; peer < peers_.size(); ++peer) refresh_ports(now, peer);
}

void NodeOps::refresh_ports(Time now, std::uint32_t peer) {
  qps_.for_each_to(peer, [&](std::uint32_t slot, QueuePair& pair) {
    pair.set_ports(now, live_ports(peer), peers_[peer].validated_ports);
    scheduler_.schedule(now, slot);
  });
}

// What there is to say about ports: how ours are, and what we believe of a peer's. Either goes by planes too that the
// peer calls dead: the first is new to it, and the second may be wrong.
// spec: port-beliefs
bool NodeOps::poll_port_updates(Time now, std::uint32_t free_ports, Transmit& out) {
  constexpr auto op = wire::EndpointOp::port_status_update;
  for (std::uint32_t id = 0; id < peers_.size(); ++id) {
    Peer& peer = peers_[id];
    for (RepeatTimer* timer : {&peer.update, &peer.reminder}) {
      if (timer->at > now) continue;
      const bool is_reminder = timer == &peer.reminder;
      QueuePair* pair = any_qp_to(id);
      std::uint32_t ports = timer->ports & peer.validated_ports & free_ports & (pair ? pair->open_ports() : ~0u);
      if (is_reminder && !has_working_qp(id)) ports = 0;
      const auto port = static_cast<std::uint8_t>(std::countr_zero(ports));
      timer->ports = ports ? timer->ports & ~(1u << port) : 0;
      if (is_reminder && ports) {
        const auto ticks = static_cast<std::uint16_t>(peer.received_ticks.value);
        fill_response(op, peer.received_id, wire::Timestamp{ticks}, key_for(id), id, port, out);
      } else if (ports) {
        fill_request(now, op, peer.update_id, id, port, 0, out);
        ++context_.event_log.stats.port_updates_sent;
      }
      if (pair && ports) pair->address_reply(port, is_reminder || timer->is_again, out);
      if (timer->ports == 0) peers_.end_round(peer, *timer, now, up_ports_);
      if (ports) return true;
    }
  }
  return false;
}

// Probes -------------------------------------------------------------------------------------------------------------

void NodeOps::fill_request(Time now, wire::EndpointOp op, std::uint16_t id, std::uint32_t peer, std::uint8_t port,
                           std::uint32_t entropy, Transmit& out) const {
  fill_header(wire::Opcode::endpoint_request, id, peer, port, entropy, TrafficClass::data_no_trim, out);
  auto& request = out.packet.body.emplace<wire::EndpointRequest>();
  request.op = op;
  request.timestamp.ticks = timestamp_ticks(now);
  if (op != wire::EndpointOp::port_status_update) return;
  request.port_status_mask = to_wire(peers_[peer].announced_ports);
  request.key = key_for(peer);
}

bool NodeOps::poll_ev_probe(Time now, std::uint32_t slot, QueuePair& pair, std::uint32_t free_ports, Transmit& out) {
  const auto wanted = pair.next_probe(now, free_ports, shared_paths_from(pair.peer()));
  if (!wanted) return false;
  const std::uint16_t id = pending_probes_.add({PendingProbe::Owner::queue_pair, 0, slot, pair.peer(), *wanted, now});
  fill_request(now, wire::EndpointOp::ev_probe, id, pair.peer(), wanted->port, wanted->entropy, out);
  out.qpn = pair.qpn();
  out.wide = pair.wide_of(*wanted);
  return true;
}

bool NodeOps::probe(std::uint32_t peer, std::uint8_t port, std::uint32_t entropy, std::uint32_t token,
                    TrafficClass traffic_class) {
  if (!peers_.contains(peer) || port >= context_.config.ports) return false;
  const PendingProbe probe{PendingProbe::Owner::caller, 0, token, peer, {no_ev, port, entropy}, Time{}, traffic_class};
  if (up_ports_ >> port & 1 && caller_probes_.add(probe)) return true;
  ++context_.event_log.stats.probes_unsent;
  return false;
}

// Whether the peer still has the keys of this queue pair is for the caller to see.
void NodeOps::ping(std::uint32_t qpn) {
  const QueuePair* pair = qps_.qp(qpn);
  if (!pair || !pair->is_working()) return;
  for (std::uint32_t left = up_ports_ & peers_[pair->peer()].validated_ports & pair->open_ports(); left;
       left &= left - 1) {
    const auto port = static_cast<std::uint8_t>(std::countr_zero(left));
    caller_probes_.add({PendingProbe::Owner::liveness, 0, qpn, pair->peer(), {no_ev, port, 0}, Time{}});
  }
}

Time NodeOps::pong_at(std::uint32_t qpn) const {
  const QueuePair* pair = qps_.qp(qpn);
  return pair ? peers_[pair->peer()].pong_at : Time::long_ago();
}

bool NodeOps::poll_caller_probe(Time now, std::uint32_t free_ports, Transmit& out) {
  auto next = caller_probes_.take(free_ports);
  if (!next) return false;
  PendingProbe& probe = *next;
  probe.sent_at = now;
  const std::uint16_t id = pending_probes_.add(probe);
  fill_request(now, wire::EndpointOp::ev_probe, id, probe.peer, probe.probe.port, probe.probe.entropy, out);
  if (probe.owner == PendingProbe::Owner::liveness) {
    if (QueuePair* pair = qps_.qp(probe.slot)) pair->address_reply(probe.probe.port, true, out);
    out.qpn = probe.slot;
    return true;
  }
  out.traffic_class = probe.traffic_class;
  if (const QueuePair* pair = first_qp_to(probe.peer)) out.wide = pair->wide_of(probe.probe.port, probe.probe.entropy);
  return true;
}

// Without anything under way nothing is waited for; the next write will probe.
void NodeOps::on_unreachable(Time now, std::uint32_t peer) {
  if (!peers_.contains(peer)) return;
  ++context_.event_log.stats.unreachable_reports;
  if (unreachable_probes_.contains(peer)) return;
  Duration timeout = unreachable_timeout;
  bool is_waited_for = false;
  qps_.for_each_to(peer, [&](std::uint32_t, const QueuePair& pair) {
    if (!has_work(pair)) return;
    is_waited_for = true;
    timeout = std::max(timeout, pair.requester().rtt().smoothed() * unreachable_round_trips);
  });
  if (is_waited_for) unreachable_probes_.add(now, peer, up_ports_, timeout);
}

bool NodeOps::poll_unreachable_probe(Time now, std::uint32_t free_ports, Transmit& out) {
  while (const auto next = unreachable_probes_.poll(now, free_ports, up_ports_)) {
    QueuePair* pair = any_qp_to(next->peer);
    const std::uint32_t ports = peers_[next->peer].validated_ports & (pair ? pair->open_ports() : ~0u);
    if (!(ports >> next->port & 1)) continue;
    unreachable_probes_.on_probed(next->peer);
    const std::uint16_t id = pending_probes_.add(
        {PendingProbe::Owner::liveness, 0, 0, next->peer, {no_ev, next->port, 0}, now});
    fill_request(now, wire::EndpointOp::ev_probe, id, next->peer, next->port, 0, out);
    if (pair) pair->address_reply(next->port, true, out);
    return true;
  }
  return false;
}

bool NodeOps::poll_challenge(Time now, std::uint32_t free_ports, Transmit& out) {
  const auto is_worth_it = [this](std::uint32_t peer) { return has_work_for(peer); };
  while (const auto next = path_validation_.poll(now, free_ports, up_ports_, is_worth_it)) {
    QueuePair* pair = any_qp_to(next->peer);
    if (!pair || !(pair->open_ports() >> next->port & 1)) continue;
    if (!unreachable_probes_.empty())
      unreachable_probes_.on_probed(next->peer);  // a peer that is not there answers this as little
    const auto token = path_validation_.issue_token(now, next->peer, next->port, echoes_nonces(next->peer));
    fill_request(now, wire::EndpointOp::ev_probe, token.id, next->peer, next->port, 0, out);
    auto& request = std::get<wire::EndpointRequest>(out.packet.body);
    request.timestamp.ticks = token.ticks;
    request.key = token.nonce;
    pair->address_reply(next->port, !next->is_first, out);
    return true;
  }
  return false;
}

// The peer is there, on this plane. What it is to know can be sent.
// spec: proof-of-address
void NodeOps::confirm_path(Time now, std::uint32_t id, std::uint8_t port) {
  Peer& peer = peers_[id];
  if (peer.validated_ports >> port & 1) return;
  peer.validated_ports |= 1u << port;
  path_validation_.on_validated(id, port);
  peers_.resend_update_now(peer, now, up_ports_);
  refresh_ports(now, id);
}

// Timeouts -----------------------------------------------------------------------------------------------------------

void NodeOps::handle_timeout(Time now) {
  while (const auto peer = unreachable_probes_.empty() ? std::nullopt : unreachable_probes_.poll_dead(now))
    give_up(now, *peer);
}

void NodeOps::give_up(Time now, std::uint32_t peer) {
  qps_.for_each_to(peer, [&](std::uint32_t slot, QueuePair& pair) {
    if (!has_work(pair)) return;
    pair.to_error(now, CompletionStatus::retry_exceeded);
    scheduler_.schedule(now, slot);
  });
}

Time NodeOps::deadline(Time handled_at) const {
  Time first = Time::never();
  if (!unreachable_probes_.empty()) first = unreachable_probes_.deadline(handled_at);
  if (!path_validation_.empty()) first = std::min(first, path_validation_.deadline(handled_at));
  return peers_.deadline() > handled_at ? std::min(first, peers_.deadline()) : first;
}

}  // namespace softmrc::proto
