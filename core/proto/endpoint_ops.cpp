// Requests from node to node: EV probes and port status updates, asked and answered.
#include <algorithm>
#include <bit>

#include "proto/endpoint.h"

namespace softmrc::proto {
namespace {

// On the wire ports count from 1 and bit 0 is zero; here plane p is port p.
std::uint32_t to_wire(std::uint32_t ports) { return ports << 1; }
std::uint32_t from_wire(std::uint32_t mask) { return mask >> 1; }

// A probe not answered for this long gives its number back.
constexpr Duration probe_lifetime = milliseconds(50);

// Within this time of each other the wire's timestamps have an order.
constexpr Duration half_clock{wire::Timestamp::unit_ps << 15};

// Answers that wait for a port. A peer that floods us with requests must not make us hoard; it will ask again.
constexpr std::size_t max_answers = 1024;

// Probes of a caller that wait for one port.
constexpr std::size_t max_caller_probes = 1024;

// How long a peer that the network says is gone is asked to no avail, or as many round trips where those are longer.
constexpr Duration unreachable_timeout = milliseconds(400);
constexpr int unreachable_round_trips = 8;

// As an answer tells it: never 0, which says nothing.
// spec: probe-service-time
std::uint32_t service_ns(Duration took) {
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(took.ps / 1000, 1, 0xFFFFFFFF));
}

}  // namespace

// Whoever can forge a peer's address can ask as often as it likes; answering costs a send. What one peer is said to ask
// takes nothing from the share that each of the others has for itself.
// spec: answers-bounded
bool Endpoint::may_answer(Time now, TokenBucket& own, TokenBucket& shared, std::uint32_t count) {
  if (context_.config.answers_per_s == 0) return true;
  if (own.take(now, context_.config.answers_per_s / 10, count) ||
      shared.take(now, context_.config.answers_per_s, count))
    return true;
  ++context_.event_log.stats.requests_unanswered;
  return false;
}

bool Endpoint::may_answer_at_length(Time now, std::uint32_t peer, std::uint32_t bytes) {
  return may_answer(now, peers_[peer].long_answers, long_allowance_,
                    (bytes + bytes_of_an_answer - 1) / bytes_of_an_answer);
}

// A working queue pair to this peer whose key this is: it vouches for what is said about the peer's ports. One without
// a key vouches for anything, but only where none has one, or whoever connects without would unlock the others.
// spec: port-keys
const QueuePair* Endpoint::qp_with_key(std::uint32_t peer, std::uint64_t key) {
  const QueuePair* keyless = nullptr;
  bool has_keys = false;
  for (const Slot& slot : slots_) {
    const QueuePair* pair = slot.qp.get();
    if (!pair || pair->peer() != peer || !pair->is_working()) continue;
    if (pair->port_key() == 0) keyless = pair;
    else if (pair->port_key() == key) return pair;
    else has_keys = true;
  }
  return has_keys ? nullptr : keyless;
}

// The same at a glance, for what may be said at any rate: the first one's key.
const QueuePair* Endpoint::first_qp_with_key(std::uint32_t id, std::uint64_t key) {
  const Peer& peer = peers_[id];
  const QueuePair* first = peer.has_qp ? at(peer.first_qp) : nullptr;
  return first && first->is_working() && first->port_key() && first->port_key() == key ? first : nullptr;
}

// The peer may have closed its end of some connections and know their keys no more, so every round shows another one's.
std::uint64_t Endpoint::key_for(std::uint32_t id) const {
  const auto speaks = [&](const Slot& slot) { return slot.qp && slot.qp->peer() == id && slot.qp->is_working(); };
  const auto count = static_cast<std::uint32_t>(std::count_if(slots_.begin(), slots_.end(), speaks));
  if (count == 0) return 0;
  std::uint32_t skip = peers_[id].rounds % count;
  const auto slot = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& s) { return speaks(s) && skip-- == 0; });
  return slot->qp->peer_port_key();
}

void Endpoint::handle_request(Time now, const wire::Packet& packet, const Arrival& arrival) {
  const auto& request = std::get<wire::EndpointRequest>(packet.body);
  ++context_.event_log.stats.endpoint_requests;
  Peer& peer = peers_[arrival.peer];
  const auto id = static_cast<std::uint16_t>(packet.bth.psn);
  const Serial<16> ticks(request.timestamp.ticks);
  const bool is_update = request.op == wire::EndpointOp::port_status_update;
  const bool is_news = is_update && !peer.heard.find(id);
  context_.event_log.stats.port_updates_received += is_update;
  // What a peer says before we are connected to it would be forgotten when we are. It repeats what is not answered.
  if (is_update && !has_working_qp(arrival.peer)) return;
  const QueuePair* keyed_qp = is_update ? first_qp_with_key(arrival.peer, request.key) : nullptr;
  if (!keyed_qp && !may_answer(now, peer.answers, allowance_)) return;
  if (is_update && !keyed_qp) keyed_qp = qp_with_key(arrival.peer, request.key);
  if (is_update && !keyed_qp)
    return context_.refuse(now, RefusedPacket::unproven, context_.event_log.stats.refused_unproven, &packet.bth,
                           arrival);
  if (QueuePair* pair = peer.has_qp ? at(peer.first_qp) : nullptr) pair->note_arrival(arrival.port, arrival.entropy);
  // Of two that are both news, the one that was sent later counts. The wire's clock is short: should this be the newest
  // after all, it comes again until it is answered.
  if (is_news && now - peer.heard_at < half_clock && ticks - peer.heard_ticks < 0) return;
  const std::uint32_t all = (1u << context_.config.ports) - 1;
  const std::uint32_t ports = from_wire(request.port_status_mask) & all;
  // Nobody can say this who is right: it came by some port. If it is true of ports that are down here, it comes again.
  // spec: last-port
  if (is_news && (ports == 0 || (up_ports_ && !(ports & up_ports_))))
    return context_.refuse(now, RefusedPacket::last_port, context_.event_log.stats.refused_last_port, &packet.bth,
                           arrival);
  if (answers_.size() >= max_answers) answers_.pop();
  const std::uint64_t key = !is_update ? request.key : keyed_qp->peer_port_key();  // a nonce goes back as it came
  answers_.push({arrival.peer, arrival.qpn, id, arrival.port, request.op, request.timestamp, key, now});
  // Copies travel on every plane and may overtake each other; one of an update heard before must not undo a newer.
  if (!is_news) return;
  const bool is_change = peer.usable_ports != ports;
  peers_.on_update(peer, now, {id, ports}, ticks, all);
  if (!is_change) return;
  Event e;
  e.at_ps = now.ps;
  e.type = EventType::peer_ports;
  e.code = arrival.peer;
  e.value = ports;
  context_.event_log.record(e);
  refresh_ports(now, arrival.peer);
}

void Endpoint::handle_response(Time now, const wire::Packet& packet, const Arrival& arrival) {
  ++context_.event_log.stats.endpoint_responses;
  const bool is_update = std::get<wire::EndpointResponse>(packet.body).op == wire::EndpointOp::port_status_update;
  return is_update ? handle_update_answer(now, packet, arrival) : handle_probe_answer(now, packet, arrival);
}

void Endpoint::handle_update_answer(Time now, const wire::Packet& packet, const Arrival& arrival) {
  const auto& response = std::get<wire::EndpointResponse>(packet.body);
  Peer& peer = peers_[arrival.peer];
  if (!first_qp_with_key(arrival.peer, response.key) && has_working_qp(arrival.peer)) {
    if (!may_answer(now, peer.answers, allowance_)) return;
    if (!qp_with_key(arrival.peer, response.key))
      return context_.refuse(now, RefusedPacket::unproven, context_.event_log.stats.refused_unproven, &packet.bth,
                             arrival);
  }
  const auto meaning = peers_.on_answer(peer, static_cast<std::uint16_t>(packet.bth.psn));
  if (meaning == Peers::Answer::to_nothing)
    context_.refuse(now, RefusedPacket::unknown_answer, context_.event_log.stats.refused_unknown_answer, &packet.bth,
                    arrival);
  // A copy that was long on its way, or an answer that was: which of them, only saying it again settles. What is
  // unknown may be very old, or a stranger's: then it is said again once a second at most, but it is said.
  const bool is_unknown = meaning == Peers::Answer::to_nothing;
  if (meaning == Peers::Answer::to_newest || (is_unknown && peer.update.is_pending())) return;
  if (peer.said.empty() || !has_working_qp(arrival.peer)) return;
  const Time at = is_unknown ? std::max(now, peer.may_repeat_at) : now;
  peer.may_repeat_at = at + seconds(1);
  peers_.announce_to(peer, at, next_update_id_++, up_ports_);
}

void Endpoint::refuse_answer(Time now, const wire::Packet& packet, const Arrival& arrival) {
  const bool has_nonce = std::get<wire::EndpointResponse>(packet.body).key;
  if (path_validation_.on_wrong_answer(arrival.peer, has_nonce))
    context_.refuse(now, RefusedPacket::wrong_proof, context_.event_log.stats.refused_wrong_proof, &packet.bth,
                    arrival);
  else
    context_.refuse(now, RefusedPacket::unknown_answer, context_.event_log.stats.refused_unknown_answer, &packet.bth,
                    arrival);
}

void Endpoint::handle_probe_answer(Time now, const wire::Packet& packet, const Arrival& arrival) {
  const auto& response = std::get<wire::EndpointResponse>(packet.body);
  const auto id = static_cast<std::uint16_t>(packet.bth.psn);
  const std::uint16_t ticks = response.timestamp.ticks;
  if (const auto port = path_validation_.plane_of(now, arrival.peer, {response.key, id, ticks}))
    return confirm_path(now, arrival.peer, *port);
  if (path_validation_.is_past(now, arrival.peer, {response.key, id, ticks})) return;
  if (pending_probes_.empty() || response.key) return refuse_answer(now, packet, arrival);
  PendingProbe& pending = pending_probes_[id % pending_probes_.size()];
  if (pending.owner == PendingProbe::Owner::nobody || pending.id != id || pending.peer != arrival.peer ||
      ticks != timestamp_ticks(pending.sent_at))
    return refuse_answer(now, packet, arrival);
  const PendingProbe probe = pending;
  pending.owner = PendingProbe::Owner::settled;
  if (probe.owner == PendingProbe::Owner::caller) {
    Event e;
    e.at_ps = now.ps;
    e.type = EventType::probe_answer;
    e.code = probe.peer;
    e.psn = probe.slot;
    e.ev = probe.probe.entropy;
    e.port = arrival.port;
    e.value = static_cast<std::uint64_t>((now - probe.sent_at).ps);
    e.took = response.service_ns;
    context_.event_log.record(e);
    return;
  }
  if (probe.owner != PendingProbe::Owner::queue_pair) return;  // that something came has been noted
  if (QueuePair* pair = at(probe.slot)) {
    pair->on_probe_answer(now, probe.probe, now - probe.sent_at, shared_paths_from(probe.peer));
    after_input(now, probe.slot);
  }
}

// Numbers are drawn: an answer must not come from somebody who did not get the question. The table doubles when places
// are taken, again and again, by probes still worth awaiting.
std::uint16_t Endpoint::register_probe(const PendingProbe& probe) {
  constexpr int max_draws = 4;
  if (pending_probes_.empty()) pending_probes_.resize(16);
  std::uint16_t id = 0;
  const auto is_taken = [&] {
    const PendingProbe& old = pending_probes_[id % pending_probes_.size()];
    return old.is_awaited() && probe.sent_at - old.sent_at < probe_lifetime;
  };
  for (int draws = 0;; ++draws) {
    id = static_cast<std::uint16_t>(probe_ids_.bits() >> 48);
    if (!is_taken() || (draws >= max_draws && pending_probes_.size() == 65536)) break;
    if (draws < max_draws) continue;
    draws = 0;
    std::vector<PendingProbe> wider(pending_probes_.size() * 2);
    for (const PendingProbe& old : pending_probes_)
      if (old.owner != PendingProbe::Owner::nobody) wider[old.id % wider.size()] = old;
    pending_probes_ = std::move(wider);
  }
  PendingProbe& place = pending_probes_[id % pending_probes_.size()];
  place = probe;
  place.id = id;
  return id;
}

void Endpoint::fill_request(Time now, wire::EndpointOp op, std::uint16_t id, std::uint32_t peer, std::uint8_t port,
                            std::uint32_t entropy, Transmit& out) {
  out.peer = peer;
  out.qpn = no_qpn;
  out.port = port;
  out.entropy = entropy;
  out.wide = nullptr;
  out.traffic_class = TrafficClass::data_no_trim;
  out.packet.bth = wire::Bth{};
  out.packet.bth.opcode = wire::Opcode::endpoint_request;
  out.packet.bth.dqp = wire::endpoint_qpn;
  out.packet.bth.psn = id;
  auto& request = out.packet.body.emplace<wire::EndpointRequest>();
  request.op = op;
  request.timestamp.ticks = timestamp_ticks(now);
  if (op != wire::EndpointOp::port_status_update) return;
  request.port_status_mask = to_wire(peers_[peer].announced_ports);
  request.key = key_for(peer);
}

// Whose paths the node takes to say something to this peer: of a queue pair that has any left.
QueuePair* Endpoint::any_qp_to(std::uint32_t id) {
  const Peer& peer = peers_[id];
  QueuePair* first = peer.has_qp ? at(peer.first_qp) : nullptr;
  if (!first || first->open_ports()) return first;
  for (Slot& slot : slots_)
    if (slot.qp && slot.qp->peer() == id && slot.qp->open_ports()) return slot.qp.get();
  return first;
}

// Alone, a queue pair shares with nobody.
std::span<SharedReversePath> Endpoint::shared_paths_from(std::uint32_t id) {
  Peer& peer = peers_[id];
  if (peer.queue_pairs < 2) return {};
  if (peer.ways.empty()) peer.ways.resize(context_.config.ports);
  return peer.ways;
}

bool Endpoint::seems_unreachable_by(std::uint32_t peer, Time now) {
  for (const Slot& slot : slots_)
    if (slot.qp && slot.qp->peer() == peer && slot.qp->seems_unreachable(now)) return true;
  return false;
}

// Back the way it came, unless that way is known to be broken; that the request arrived there is evidence too. Who only
// answers never learns that the way back is broken. So where there is evidence that the peer does not hear us, a copy
// takes another way; the answer itself goes where it always does, lest a healthy path fail to prove itself.
// spec: probe-answers
bool Endpoint::poll_answer(Time now, std::uint32_t free_ports, Transmit& out) {
  for (std::size_t turns = answers_.size(); turns; --turns) {
    const Answer answer = answers_.front();
    answers_.pop();
    if (send_answer(now, answer, free_ports, out)) return true;
  }
  return false;
}

bool Endpoint::send_answer(Time now, const Answer& answer, std::uint32_t free_ports, Transmit& out) {
  using Way = Answer::Way;
  QueuePair* pair = any_qp_to(answer.peer);
  std::uint32_t open = pair ? pair->open_ports() : ~0u;
  const bool strays = answer.way == Way::any_plane;
  // Where the peer has yet to show that it is there, nothing goes but back where the question came from. That way is
  // open even if others are validated: they may be dead by now at both ends, and each would wait for the other's
  // answer.
  Peer& peer = peers_[answer.peer];
  if (!strays) open &= peer.validated_ports | 1u << answer.port;
  free_ports &= open;
  if (free_ports == 0) {
    if (up_ports_ & open) answers_.push(answer);  // they are only busy; but where all EVs are denied, nothing is said
    return false;
  }
  const std::uint32_t live = free_ports & (live_ports(answer.peer) | 1u << answer.port);
  const std::uint32_t ports = live && !strays ? live : free_ports;
  std::uint8_t port = answer.port;
  if (strays || answer.way == Way::other_plane) {
    // The number of the request decides, through a hash, lest every copy take the same way.
    const std::uint32_t others = ports & ~(1u << port) ? ports & ~(1u << port) : ports;
    std::uint32_t skip = (answer.id * 0x9E3779B1u >> 16) % static_cast<std::uint32_t>(std::popcount(others));
    std::uint32_t left = others;
    for (; skip; --skip) left &= left - 1;
    port = static_cast<std::uint8_t>(std::countr_zero(left));
  } else if (pair && answer.way == Way::usual) {
    port = pair->reply_port(port, ports);
  }
  if (!(free_ports >> port & 1)) port = static_cast<std::uint8_t>(std::countr_zero(free_ports));
  // Who asks us for proof, and hears nothing, leaves no other trace. Where no plane works both ways, or the path that
  // answers take is dead, it would never end, but for a few copies that may take any plane, and others that take
  // another path.
  const auto copy = [&](Way way, std::uint8_t from) {
    answers_.push(answer);
    answers_.back().way = way;
    answers_.back().port = from;
  };
  if (answer.way == Way::usual && pair) {
    const bool may_stray = context_.config.proves_addresses && peer.strays.take(now, strays_per_s);
    if (may_stray) copy(Way::other_path, answer.port);
    if (may_stray || seems_unreachable_by(answer.peer, now)) copy(may_stray ? Way::any_plane : Way::other_plane, port);
  }
  fill_response(answer.op, answer.id, answer.timestamp, answer.key, answer.peer, port, out);
  if (answer.op == wire::EndpointOp::ev_probe)
    std::get<wire::EndpointResponse>(out.packet.body).service_ns = service_ns(now - answer.asked_at);
  out.qpn = answer.qpn;
  if (pair) pair->address_reply(port, answer.way != Way::usual, out);
  return true;
}

void Endpoint::fill_response(wire::EndpointOp op, std::uint16_t id, wire::Timestamp timestamp, std::uint64_t key,
                             std::uint32_t peer, std::uint8_t port, Transmit& out) {
  out.peer = peer;
  out.qpn = no_qpn;
  out.port = port;
  out.entropy = 0;
  out.wide = nullptr;
  out.traffic_class = TrafficClass::control;
  out.packet.bth = wire::Bth{};
  out.packet.bth.opcode = wire::Opcode::endpoint_response;
  out.packet.bth.dqp = wire::endpoint_qpn;
  out.packet.bth.psn = id;
  out.packet.body = wire::EndpointResponse{op, timestamp, key, 0};
}

// spec: port-status
void Endpoint::set_port(Time now, std::uint32_t port, bool is_up) {
  if (port >= context_.config.ports || (up_ports_ >> port & 1) == static_cast<std::uint32_t>(is_up)) return;
  up_ports_ ^= 1u << port;
  Event e;
  e.at_ps = now.ps;
  e.type = EventType::port_state;
  e.port = static_cast<std::uint8_t>(port);
  e.code = is_up;
  context_.event_log.record(e);
  if (!is_up && caller_ports_ >> port & 1) {
    context_.event_log.stats.probes_unsent += caller_probes_[port].size();
    caller_probes_[port].clear();
    caller_ports_ &= ~(1u << port);
  }
  if (is_up) path_validation_.resume_all(now);
  peers_.announce(now, next_update_id_++, up_ports_);
  for (std::uint32_t peer = 0; peer < peers_.size(); ++peer) refresh_ports(now, peer);
}

// Doubts about the one before it, and answers to what that was asked, say nothing of it.
void Endpoint::reset_peer(Time now, std::uint32_t id) {
  Peer& peer = peers_[id];
  peers_.reset(peer);
  unreachable_probes_.remove(id);
  path_validation_.remove(id);
  for (PendingProbe& probe : pending_probes_)
    if (probe.peer == id && probe.is_awaited() && probe.owner != PendingProbe::Owner::caller)
      probe.owner = PendingProbe::Owner::settled;
  if (context_.config.proves_addresses) peer.validated_ports = 0;
  if (peer.has_qp) peers_.announce_to(peer, now, next_update_id_++, up_ports_);
  refresh_ports(now, id);
}

// What waits to be sent to it, or to be heard from it, must not become another's who is given its number.
// spec: peer-life
void Endpoint::release_peer(std::uint32_t id) {
  if (!peers_.release(id)) return;
  ++context_.event_log.stats.peers_forgotten;
  unreachable_probes_.remove(id);
  path_validation_.forget(id);
  answers_.remove_if([id](const Answer& answer) { return answer.peer == id; });
  for (std::uint32_t port = 0; port < caller_probes_.size(); ++port) {
    caller_probes_[port].remove_if([id](const PendingProbe& probe) { return probe.peer == id; });
    if (caller_probes_[port].empty()) caller_ports_ &= ~(1u << port);
  }
  for (PendingProbe& probe : pending_probes_)
    if (probe.peer == id) probe = PendingProbe{};
}

void Endpoint::refresh_ports(Time now, std::uint32_t peer) {
  for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) {
    QueuePair* pair = at(slot);
    if (!pair || pair->peer() != peer) continue;
    pair->set_ports(now, live_ports(peer), peers_[peer].validated_ports);
    after_input(now, slot);
  }
}

// What there is to say about ports: how ours are, and what we believe of a peer's. Either goes by planes too that the
// peer calls dead: the first is news to it, and the second may be wrong.
// spec: port-beliefs
bool Endpoint::poll_port_updates(Time now, std::uint32_t free_ports, Transmit& out) {
  constexpr auto op = wire::EndpointOp::port_status_update;
  for (std::uint32_t id = 0; id < peers_.size(); ++id) {
    Peer& peer = peers_[id];
    for (RepeatTimer* words : {&peer.update, &peer.reminder}) {
      if (words->at > now) continue;
      QueuePair* pair = any_qp_to(id);
      std::uint32_t ports = words->ports & peer.validated_ports & free_ports & (pair ? pair->open_ports() : ~0u);
      if (words == &peer.reminder && !has_working_qp(id)) ports = 0;
      const auto port = static_cast<std::uint8_t>(std::countr_zero(ports));
      words->ports = ports ? words->ports & ~(1u << port) : 0;
      if (words == &peer.reminder && ports) {
        fill_response(op, peer.heard_id, wire::Timestamp{static_cast<std::uint16_t>(peer.heard_ticks.value)},
                      key_for(id), id, port, out);
      } else if (ports) {
        fill_request(now, op, peer.update_id, id, port, 0, out);
        ++context_.event_log.stats.port_updates_sent;
      }
      if (pair && ports) pair->address_reply(port, words == &peer.reminder || words->is_again, out);
      if (words->ports == 0) peers_.end_round(peer, *words, now, up_ports_);
      if (ports) return true;
    }
  }
  return false;
}

bool Endpoint::probe(Time, std::uint32_t peer, std::uint8_t port, std::uint32_t entropy, std::uint32_t token,
                     TrafficClass traffic_class) {
  if (!peers_.contains(peer) || port >= context_.config.ports) return false;
  if (caller_probes_.empty()) caller_probes_.resize(context_.config.ports);
  auto& waiting = caller_probes_[port];
  if (!(up_ports_ >> port & 1) || waiting.size() >= max_caller_probes) {
    ++context_.event_log.stats.probes_unsent;
    return false;
  }
  waiting.push({PendingProbe::Owner::caller, 0, token, peer, {no_ev, port, entropy}, Time{}, traffic_class});
  caller_ports_ |= 1u << port;
  return true;
}

// A doubt of the caller's about one queue pair: whether the peer still has its keys is for the caller to see.
void Endpoint::ping(std::uint32_t qpn) {
  const QueuePair* pair = qp(qpn);
  if (!pair || !pair->is_working()) return;
  if (caller_probes_.empty()) caller_probes_.resize(context_.config.ports);
  for (std::uint32_t left = up_ports_ & peers_[pair->peer()].validated_ports & pair->open_ports(); left;
       left &= left - 1) {
    const auto port = static_cast<std::uint8_t>(std::countr_zero(left));
    if (caller_probes_[port].size() >= max_caller_probes) continue;
    caller_probes_[port].push({PendingProbe::Owner::suspect, 0, qpn, pair->peer(), {no_ev, port, 0}, Time{}});
    caller_ports_ |= 1u << port;
  }
}

bool Endpoint::poll_caller_probe(Time now, std::uint32_t free_ports, Transmit& out) {
  const std::uint32_t ports = caller_ports_ & free_ports;
  if (ports == 0) return false;
  const auto port = static_cast<std::uint32_t>(std::countr_zero(ports));
  auto& waiting = caller_probes_[port];
  PendingProbe probe = waiting.front();
  waiting.pop();
  if (waiting.empty()) caller_ports_ &= ~(1u << port);
  probe.sent_at = now;
  const std::uint16_t id = register_probe(probe);
  fill_request(now, wire::EndpointOp::ev_probe, id, probe.peer, probe.probe.port, probe.probe.entropy, out);
  if (probe.owner == PendingProbe::Owner::suspect) {
    if (QueuePair* pair = qp(probe.slot)) pair->address_reply(probe.probe.port, true, out);
    out.qpn = probe.slot;
    return true;
  }
  out.traffic_class = probe.traffic_class;
  const Peer& peer = peers_[probe.peer];
  if (const QueuePair* pair = peer.has_qp ? at(peer.first_qp) : nullptr)
    out.wide = pair->wide_of(probe.probe.port, probe.probe.entropy);
  return true;
}

// Nobody is waited for where nothing is under way; the next write will ask.
void Endpoint::on_unreachable(Time now, std::uint32_t peer) {
  if (!peers_.contains(peer)) return;
  ++context_.event_log.stats.unreachable_reports;
  if (unreachable_probes_.contains(peer)) return;
  Duration patience = unreachable_timeout;
  bool is_waited_for = false;
  for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) {
    const QueuePair* pair = at(slot);
    if (!pair || pair->state() != QpState::rts || pair->peer() != peer || !pair->requester().has_work()) continue;
    is_waited_for = true;
    patience = std::max(patience, pair->requester().rtt().smoothed() * unreachable_round_trips);
  }
  if (is_waited_for) unreachable_probes_.add(now, peer, up_ports_, patience);
}

bool Endpoint::poll_unreachable_probe(Time now, std::uint32_t free_ports, Transmit& out) {
  while (const auto next = unreachable_probes_.poll(now, free_ports, up_ports_)) {
    QueuePair* pair = any_qp_to(next->peer);
    const std::uint32_t ports = peers_[next->peer].validated_ports & (pair ? pair->open_ports() : ~0u);
    if (!(ports >> next->port & 1)) continue;
    unreachable_probes_.on_probed(next->peer);
    const std::uint16_t id = register_probe(
        {PendingProbe::Owner::suspect, 0, 0, next->peer, {no_ev, next->port, 0}, now});
    fill_request(now, wire::EndpointOp::ev_probe, id, next->peer, next->port, 0, out);
    if (pair) pair->address_reply(next->port, true, out);
    return true;
  }
  return false;
}

// A peer that gives keys for ports is of our make, and sends nonces back.
bool Endpoint::echoes_nonces(std::uint32_t peer) const {
  return std::any_of(slots_.begin(), slots_.end(), [peer](const Slot& slot) {
    return slot.qp && slot.qp->peer() == peer && slot.qp->is_working() && slot.qp->peer_port_key();
  });
}

bool Endpoint::has_work_for(std::uint32_t peer) const {
  return std::any_of(slots_.begin(), slots_.end(), [peer](const Slot& slot) {
    return slot.qp && slot.qp->state() == QpState::rts && slot.qp->peer() == peer && slot.qp->requester().has_work();
  });
}

bool Endpoint::poll_challenge(Time now, std::uint32_t free_ports, Transmit& out) {
  const auto is_worth_it = [this](std::uint32_t peer) { return has_work_for(peer); };
  while (const auto next = path_validation_.poll(now, free_ports, up_ports_, is_worth_it)) {
    QueuePair* pair = any_qp_to(next->peer);
    if (!pair || !(pair->open_ports() >> next->port & 1)) continue;
    if (!unreachable_probes_.empty())
      unreachable_probes_.on_probed(next->peer);  // who is not there answers this as little
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

// The peer is there, on this plane. What it was to be told can be said.
// spec: proof-of-address
void Endpoint::confirm_path(Time now, std::uint32_t id, std::uint8_t port) {
  Peer& peer = peers_[id];
  if (peer.validated_ports >> port & 1) return;
  peer.validated_ports |= 1u << port;
  path_validation_.on_validated(id, port);
  peers_.resend_update_now(peer, now, up_ports_);
  refresh_ports(now, id);
}

void Endpoint::give_up(Time now, std::uint32_t peer) {
  for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) {
    QueuePair* pair = at(slot);
    if (!pair || pair->state() != QpState::rts || pair->peer() != peer || !pair->requester().has_work()) continue;
    pair->to_error(now, CompletionStatus::retry_exceeded);
    after_input(now, slot);
  }
}

}  // namespace softmrc::proto
