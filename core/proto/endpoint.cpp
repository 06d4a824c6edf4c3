// Set-up, demultiplexing and polling. Requests from node to node are in endpoint_ops.cpp.
#include "proto/endpoint.h"

#include <algorithm>

namespace softmrc::proto {
namespace {

MaybeError bad_moment(const char* field, std::uint64_t value, std::string allowed) {
  return Error{Error::Kind::usage, field, std::to_string(value), std::move(allowed)};
}

MaybeError bad_value(const char* field, std::uint64_t value, std::string allowed) {
  return Error{Error::Kind::config, field, std::to_string(value), std::move(allowed)};
}

}  // namespace

Endpoint::Endpoint(const EndpointConfig& config)
    : context_(config),
      probe_ids_(config.seed, "probes"),
      up_ports_((1u << config.ports) - 1),
      path_validation_({config.secret, config.seed}) {
  // Another process at the same address would otherwise begin with the same ids.
  next_update_id_ = static_cast<std::uint16_t>(Prng(config.seed, "updates").bits() >> 48);
}

MaybeError Endpoint::add_ev_profile(std::shared_ptr<const EvProfile> profile, std::uint32_t& id) {
  if (auto v = validate(*profile, context_.config.ports)) return v;
  id = ev_profiles_.add(std::move(profile));
  return std::nullopt;
}

MaybeError Endpoint::add_cc_profile(std::shared_ptr<const CcProfile> profile, std::uint32_t& id) {
  if (auto v = validate(*profile)) return v;
  id = cc_profiles_.add(std::move(profile));
  return std::nullopt;
}

std::uint32_t Endpoint::create_cq() { return cqs_.add(std::make_unique<CompletionQueue>()); }

MaybeError Endpoint::destroy_cq(std::uint32_t cq) {
  if (!cqs_.contains(cq)) return bad_moment("cq", cq, "a completion queue that was created");
  if (is_cq_in_use(cq)) return bad_moment("cq", cq, "a queue that no queue pair uses any longer");
  cqs_.remove(cq);
  return std::nullopt;
}

bool Endpoint::is_cq_in_use(std::uint32_t cq) const {
  for (const Slot& slot : slots_)
    if (slot.qp && slot.qp->uses(*cqs_[cq])) return true;
  return false;
}

bool Endpoint::remove_peer(std::uint32_t peer) {
  if (!peers_.contains(peer) || peers_[peer].claims == 0) return false;
  --peers_[peer].claims;
  release_peer(peer);
  return true;
}

bool Endpoint::reserve(const QpnReservation& reserve, LazyAccept& owner) {
  if (reserve.first_qpn < 3 || reserve.last_qpn() > 0xFFFFFF || reservations_.overlap(reserve)) return false;
  for (const Slot& slot : slots_)
    if (slot.qpn && reserve.has_qpn(slot.qpn)) return false;
  for (std::uint32_t i = 0; i < reserve.rkeys; ++i)
    if (memory_.contains(reserve.first_rkey + i)) return false;
  reservations_.add(reserve, owner);
  return true;
}

MaybeError Endpoint::create_qp(std::uint32_t qpn, const LazyAccept* by) {
  if (qpn < 3 || qpn > 0xFFFFFF) return bad_value("qpn", qpn, "3 to 16777215");
  if (qpns_.find(qpn) || reservations_.owner_of_qpn(qpn) != by)
    return bad_moment("qpn", qpn, "a number that is not in use");
  std::uint32_t slot = static_cast<std::uint32_t>(slots_.size());
  if (free_slots_.empty()) {
    slots_.emplace_back();
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  if (time_wait_) time_wait_->forget(qpn);
  slots_[slot].qpn = qpn;
  qpns_.insert(qpn, slot);
  return std::nullopt;
}

MaybeError Endpoint::modify_init(std::uint32_t qpn, const InitAttributes& a) {
  const auto slot = qpns_.find(qpn);
  if (!slot) return bad_moment("qpn", qpn, "a queue pair that exists");
  if (at(*slot)) return bad_moment("qpn", qpn, "a queue pair in RESET, to go to INIT");
  if (!ev_profiles_.contains(a.ev_profile)) return bad_value("ev_profile", a.ev_profile, "a profile that was added");
  if (!cc_profiles_.contains(a.cc_profile)) return bad_value("cc_profile", a.cc_profile, "a profile that was added");
  if (!cqs_.contains(a.send_cq)) return bad_value("send_cq", a.send_cq, "a completion queue that was created");
  if (a.domain > last_domain_) return bad_value("domain", a.domain, "0, or a protection domain that was created");
  if (!cqs_.contains(a.recv_cq)) return bad_value("recv_cq", a.recv_cq, "a completion queue that was created");
  slots_[*slot].qp = std::make_unique<QueuePair>(qpn, context_, ev_profiles_[a.ev_profile], cc_profiles_[a.cc_profile],
                                                 memory_, *cqs_[a.send_cq], *cqs_[a.recv_cq], a);
  return std::nullopt;
}

// spec: rtr-refused
MaybeError Endpoint::modify_rtr(Time now, std::uint32_t qpn, const RtrAttributes& attributes) {
  QueuePair* pair = qp(qpn);
  if (!pair) return bad_moment("qpn", qpn, "a queue pair in INIT, to go to RTR");
  if (!peers_.contains(attributes.peer)) return bad_value("peer", attributes.peer, "a peer that was added");
  if (auto v = pair->check_rtr(attributes)) return v;
  Peer& peer = peers_[attributes.peer];
  // Nobody here has been in touch with it: it may have been restarted since.
  if (peer.is_known && !has_working_qp(attributes.peer)) reset_peer(now, attributes.peer);
  pair->to_rtr(attributes, now);
  ++peer.refs;
  ++peer.queue_pairs;
  const bool is_new = !peer.is_known;
  peer.is_known = true;
  if (is_new && context_.config.proves_addresses) {
    peer.validated_ports = 0;
    path_validation_.add(now, attributes.peer, (1u << context_.config.ports) - 1);
  }
  pair->set_ports(now, live_ports(attributes.peer), peer.validated_ports);
  if (!peer.has_qp) {
    peer.first_qp = *qpns_.find(qpn);
    peer.has_qp = true;
  }
  // It may have begun anew without our noticing, and believe that every port is up.
  const std::uint32_t all = (1u << context_.config.ports) - 1;
  const bool is_due = up_ports_ != all || (peer.announced_ports & all) != up_ports_ ||
                      (is_new && context_.config.announces_ports);
  if (is_due) peers_.announce_to(peer, now, next_update_id_++, up_ports_);
  return std::nullopt;
}

bool Endpoint::has_working_qp(std::uint32_t peer) {
  const auto works = [&](const QueuePair* pair) { return pair && pair->peer() == peer && pair->is_working(); };
  if (peers_[peer].has_qp && works(at(peers_[peer].first_qp))) return true;
  return std::any_of(slots_.begin(), slots_.end(), [&](const Slot& slot) { return works(slot.qp.get()); });
}

MaybeError Endpoint::modify_rts(Time now, std::uint32_t qpn, const RtsAttributes& attributes) {
  QueuePair* pair = qp(qpn);
  if (!pair) return bad_moment("qpn", qpn, "a queue pair in RTR, to go to RTS");
  return pair->to_rts(attributes, now);
}

MaybeError Endpoint::modify_error(Time now, std::uint32_t qpn) {
  QueuePair* pair = qp(qpn);
  if (!pair) return bad_moment("qpn", qpn, "a queue pair that left RESET");
  pair->to_error(now, CompletionStatus::flushed);
  return std::nullopt;
}

bool Endpoint::destroy_qp(Time now, std::uint32_t qpn) {
  const auto slot = qpns_.find(qpn);
  if (!slot) return false;
  if (const QueuePair* pair = at(*slot); pair && pair->has_peer()) {
    if (!time_wait_) time_wait_ = std::make_unique<TimeWait>();
    time_wait_->add(pair->time_wait_state(), now);  // which holds the peer in the queue pair's place
    if (pair->has_reply()) time_wait_->owe_ack(qpn, pair->responder().reply_trigger_port());
    Peer& peer = peers_[pair->peer()];
    --peer.queue_pairs;
    if (peer.first_qp == *slot) {
      peer.has_qp = false;
      for (std::uint32_t i = 0; i < slots_.size(); ++i) {
        const QueuePair* other = at(i);
        if (i == *slot || !other || !other->has_peer() || other->peer() != pair->peer()) continue;
        peer.first_qp = i;
        peer.has_qp = true;
        break;
      }
      if (!peer.has_qp) peers_.stop_announcing(peer);
    }
  }
  for (PendingProbe& probe : pending_probes_)
    if (probe.owner == PendingProbe::Owner::queue_pair && probe.slot == *slot)
      probe.owner = PendingProbe::Owner::settled;
  slots_[*slot] = Slot{};
  free_slots_.push_back(*slot);
  qpns_.erase(qpn);
  drop_expired(now);
  return true;
}

void Endpoint::drop_expired(Time now) {
  if (!time_wait_) return;
  time_wait_->handle_timeout(now);
  while (const auto peer = time_wait_->poll_expired()) release_peer(*peer);
}

void Endpoint::enter_time_wait(Time now) {
  for (std::size_t slot = 0; slot < slots_.size(); ++slot)
    if (slots_[slot].qpn) destroy_qp(now, slots_[slot].qpn);
  memory_ = Memory{};
}

QueuePair* Endpoint::qp(std::uint32_t qpn) {
  const auto slot = qpns_.find(qpn);
  return slot ? at(*slot) : nullptr;
}

std::optional<QpState> Endpoint::qp_state(std::uint32_t qpn) const {
  const auto slot = qpns_.find(qpn);
  if (!slot) return std::nullopt;
  const QueuePair* pair = slots_[*slot].qp.get();
  return pair ? pair->state() : QpState::reset;
}

void Endpoint::refuse_damaged(Time now, const Arrival& arrival) {
  EndpointStats& stats = context_.event_log.stats;
  switch (arrival.integrity) {
    case Integrity::unchecked:
    case Integrity::verified: return;
    case Integrity::bad: return context_.refuse(now, RefusedPacket::bad_icrc, stats.refused_bad_icrc, nullptr, arrival);
    case Integrity::unsealed:
      return context_.refuse(now, RefusedPacket::unsealed, stats.refused_unsealed, nullptr, arrival);
    case Integrity::forged: return context_.refuse(now, RefusedPacket::forged, stats.refused_forged, nullptr, arrival);
    case Integrity::replayed:
      return context_.refuse(now, RefusedPacket::replayed, stats.refused_replayed, nullptr, arrival);
  }
}

void Endpoint::handle_datagram(Time now, wire::Bytes bytes, const Arrival& arrival, const wire::ParseOptions& options) {
  ++context_.event_log.stats.datagrams_received;
  if (is_refused(arrival.integrity)) return refuse_damaged(now, arrival);
  wire::Packet packet;
  if (wire::parse(bytes, options, packet) != wire::ParseError::none)
    return context_.refuse(now, RefusedPacket::malformed, context_.event_log.stats.refused_malformed, nullptr, arrival);
  handle_packet(now, packet, arrival);
}

// spec: bad-input
void Endpoint::handle_packet(Time now, const wire::Packet& packet, const Arrival& arrival) {
  if (!unreachable_probes_.empty()) [[unlikely]]
    unreachable_probes_.on_heard(arrival.peer);
  if (arrival.port >= context_.config.ports || (arrival.trim != Trim::none && !wire::is_write(packet.bth.opcode)))
    return context_.refuse(now, RefusedPacket::malformed, context_.event_log.stats.refused_malformed, &packet.bth,
                           arrival);
  const bool may_be_new = !path_validation_.empty() && peers_.contains(arrival.peer);
  if (may_be_new && !(peers_[arrival.peer].validated_ports >> arrival.port & 1)) [[unlikely]]
    path_validation_.on_heard(now, arrival.peer);
  if (packet.bth.dqp == wire::endpoint_qpn) {
    if (!peers_.contains(arrival.peer))
      return context_.refuse(now, RefusedPacket::unknown_peer, context_.event_log.stats.refused_unknown_peer,
                             &packet.bth, arrival);
    reservations_.for_each_owner([&](LazyAccept& owner) {
      if (!peers_[arrival.peer].has_qp) owner.on_first_packet(*this, now, arrival.peer, wire::endpoint_qpn);
    });
    if (packet.bth.opcode == wire::Opcode::endpoint_request) return handle_request(now, packet, arrival);
    if (packet.bth.opcode == wire::Opcode::endpoint_response) return handle_response(now, packet, arrival);
  }
  auto slot = qpns_.find(packet.bth.dqp);
  if (!slot && !reservations_.empty()) [[unlikely]]
    slot = on_first_packet(now, packet, arrival);
  const bool is_node_operation = std::holds_alternative<wire::EndpointRequest>(packet.body) ||
                                 std::holds_alternative<wire::EndpointResponse>(packet.body);
  const auto heard = slot || is_node_operation || !time_wait_ ? TimeWait::Handled::not_ours
                                                              : time_wait_->handle(packet, arrival);
  if (heard == TimeWait::Handled::answered || heard == TimeWait::Handled::refused)
    ++context_.event_log.stats.departed_answers;
  if (heard == TimeWait::Handled::answered) return;
  if (heard == TimeWait::Handled::late_answer) {
    ++context_.event_log.stats.late_answers;
    return;
  }
  if (heard == TimeWait::Handled::wrong_peer)
    return context_.refuse(now, RefusedPacket::wrong_peer, context_.event_log.stats.refused_wrong_peer, &packet.bth,
                           arrival);
  if (!slot || is_node_operation)
    return context_.refuse(now, RefusedPacket::unknown_qp, context_.event_log.stats.refused_unknown_qp, &packet.bth,
                           arrival);
  QueuePair* pair = at(*slot);
  if (!pair)
    return context_.refuse(now, RefusedPacket::wrong_state, context_.event_log.stats.refused_wrong_state, &packet.bth,
                           arrival);
  pair->handle(now, packet, arrival);
  after_input(now, *slot);
}

// What is no question is an answer to nothing that such a queue pair has said.
std::optional<std::uint32_t> Endpoint::on_first_packet(Time now, const wire::Packet& packet, const Arrival& arrival) {
  if (!std::holds_alternative<wire::Write>(packet.body) && !std::holds_alternative<wire::Probe>(packet.body))
    return std::nullopt;
  LazyAccept* owner = reservations_.owner_of_qpn(packet.bth.dqp);
  if (!owner) return std::nullopt;
  owner->on_first_packet(*this, now, arrival.peer, packet.bth.dqp);
  return qpns_.find(packet.bth.dqp);
}

void Endpoint::end_batch(Time now) {
  context_.in_batch = false;
  for (; !batch_list_.empty(); batch_list_.pop()) {
    const std::uint32_t slot = batch_list_.front();
    QueuePair* pair = at(slot);
    if (!pair) continue;
    pair->in_batch_list = false;
    pair->end_batch(now);
    after_input(now, slot);
  }
}

void Endpoint::handle_stall(Time now) {
  for (Slot& slot : slots_)
    if (slot.qp) slot.qp->requester().on_stall(now);
}

void Endpoint::list(std::uint32_t slot) {
  QueuePair& pair = *at(slot);
  if (!pair.in_reply_list && pair.has_reply()) {
    pair.in_reply_list = true;
    reply_list_.push(slot);
  }
  if (!pair.in_data_list) {
    pair.in_data_list = true;
    data_list_.push(slot);
  }
  if (context_.in_batch && !pair.in_batch_list) {
    pair.in_batch_list = true;
    batch_list_.push(slot);
  }
}

void Endpoint::after_input(Time now, std::uint32_t slot) {
  list(slot);
  arm(now, slot);
}

// A probe that is already due waits for a port, which poll_data offers it; a timer for it would only spin.
void Endpoint::arm(Time now, std::uint32_t slot) {
  QueuePair& pair = *at(slot);
  const Time deadline = pair.deadline(now);
  if (deadline >= pair.armed_at) return;
  pair.armed_at = deadline;
  timers_.push(deadline, slot);
}

void Endpoint::wake(Time now, std::uint32_t qpn) {
  const auto slot = qpns_.find(qpn);
  if (slot && at(*slot)) after_input(now, *slot);
}

MaybeError Endpoint::find_ev(std::uint32_t qpn, std::uint32_t ev, QueuePair*& pair) {
  pair = qp(qpn);
  if (!pair) return bad_moment("qpn", qpn, "a queue pair that left RESET");
  pair->build_evs();
  const std::uint32_t count = pair->requester().evs().size();
  return ev < count ? std::nullopt : bad_value("ev", ev, "an index below " + std::to_string(count));
}

MaybeError Endpoint::deny_ev(Time now, std::uint32_t qpn, std::uint32_t ev) {
  QueuePair* pair = nullptr;
  if (auto v = find_ev(qpn, ev, pair)) return v;
  pair->deny_ev(now, static_cast<std::uint16_t>(ev));
  wake(now, qpn);
  return std::nullopt;
}

MaybeError Endpoint::allow_ev(Time now, std::uint32_t qpn, std::uint32_t ev) {
  QueuePair* pair = nullptr;
  if (auto v = find_ev(qpn, ev, pair)) return v;
  pair->allow_ev(now, static_cast<std::uint16_t>(ev));
  wake(now, qpn);
  return std::nullopt;
}

MaybeError Endpoint::replace_ev(Time now, std::uint32_t qpn, std::uint32_t ev, const EvValue& value) {
  QueuePair* pair = nullptr;
  if (auto v = find_ev(qpn, ev, pair)) return v;
  if (auto v = pair->replace_ev(now, static_cast<std::uint16_t>(ev), value)) return v;
  wake(now, qpn);
  return std::nullopt;
}

void Endpoint::handle_timeout(Time now) {
  handled_at_ = now;
  while (!timers_.empty() && timers_.front().at <= now) {
    const auto entry = timers_.pop();
    QueuePair* pair = entry.slot < slots_.size() ? at(entry.slot) : nullptr;
    if (!pair || pair->armed_at != entry.at) continue;
    pair->armed_at = Time::never();
    pair->handle_timeout(now);
    after_input(now, entry.slot);
  }
  while (const auto peer = unreachable_probes_.empty() ? std::nullopt : unreachable_probes_.poll_dead(now))
    give_up(now, *peer);
  drop_expired(now);
}

Time Endpoint::poll_timeout() {
  while (!timers_.empty()) {
    const QueuePair* pair = at(timers_.front().slot);
    if (pair && pair->armed_at == timers_.front().at) break;
    timers_.pop();
  }
  Time first = timers_.empty() ? Time::never() : timers_.front().at;
  if (!unreachable_probes_.empty()) first = std::min(first, unreachable_probes_.deadline(handled_at_));
  if (time_wait_) first = std::min(first, time_wait_->deadline());
  if (!path_validation_.empty()) first = std::min(first, path_validation_.deadline(handled_at_));
  return peers_.deadline() > handled_at_ ? std::min(first, peers_.deadline()) : first;
}

PostStatus Endpoint::post_write(Time now, std::uint32_t qpn, const WorkRequest& request) {
  const auto slot = qpns_.find(qpn);
  if (!slot || !at(*slot)) return PostStatus::wrong_state;
  const PostStatus status = at(*slot)->post(now, request);
  if (status != PostStatus::ok) return status;
  if (context_.config.proves_addresses && peers_[at(*slot)->peer()].validated_ports == 0)
    path_validation_.resume(now, at(*slot)->peer());
  after_input(now, *slot);
  return PostStatus::ok;
}

PostStatus Endpoint::post_receive(std::uint32_t qpn, std::uint64_t wr_id) {
  QueuePair* pair = qp(qpn);
  return pair ? pair->post_receive(wr_id) : PostStatus::wrong_state;
}

PostStatus Endpoint::post_receives(std::uint32_t qpn, std::uint64_t wr_id, std::uint32_t count) {
  QueuePair* pair = qp(qpn);
  return pair ? pair->post_receives(wr_id, count) : PostStatus::wrong_state;
}

bool Endpoint::poll_transmit(Time now, std::uint32_t free_ports, Transmit& out) {
  free_ports &= up_ports_;
  if (free_ports == 0) return false;
  if (!answers_.empty() && poll_answer(now, free_ports, out)) return true;
  if (time_wait_ && time_wait_->has_answer()) {
    const auto live = [this](std::uint32_t peer) { return live_ports(peer) & peers_[peer].validated_ports; };
    if (time_wait_->poll(free_ports, live, out)) return true;
  }
  if (!reply_list_.empty() && poll_replies(now, free_ports, out)) return true;
  if (peers_.deadline() <= now && poll_port_updates(now, free_ports, out)) return true;
  if (path_validation_.deadline() <= now && poll_challenge(now, free_ports, out)) return true;
  if (!unreachable_probes_.empty() && poll_unreachable_probe(now, free_ports, out)) return true;
  if (caller_ports_ && poll_caller_probe(now, free_ports, out)) return true;
  return !data_list_.empty() && poll_data(now, free_ports, out);
}

bool Endpoint::poll_replies(Time now, std::uint32_t free_ports, Transmit& out) {
  for (std::size_t turns = reply_list_.size(); turns; --turns) {
    const std::uint32_t slot = reply_list_.front();
    QueuePair* pair = at(slot);
    if (pair && pair->poll_reply(now, free_ports, out)) {
      if (!pair->has_reply()) {
        pair->in_reply_list = false;
        reply_list_.pop();
      }
      return true;
    }
    reply_list_.pop();
    if (!pair) continue;
    if (pair->has_reply()) reply_list_.push(slot);  // its ports are busy: let others go first
    else pair->in_reply_list = false;
  }
  return false;
}

// Round robin over the queue pairs, a spray quantum at a time.
bool Endpoint::poll_data(Time now, std::uint32_t free_ports, Transmit& out) {
  for (std::size_t turns = data_list_.size(); turns; --turns) {
    const std::uint32_t slot = data_list_.front();
    QueuePair* pair = at(slot);
    if (!pair) {
      data_list_.pop();
      continue;
    }
    const bool may_probe = pair->is_probe_due(now);
    if (const auto wanted = may_probe ? pair->next_probe(now, free_ports, shared_paths_from(pair->peer()))
                                      : std::nullopt) {
      const std::uint16_t id = register_probe({PendingProbe::Owner::queue_pair, 0, slot, pair->peer(), *wanted, now});
      fill_request(now, wire::EndpointOp::ev_probe, id, pair->peer(), wanted->port, wanted->entropy, out);
      out.qpn = slots_[slot].qpn;
      out.wide = pair->wide_of(*wanted);
      arm(now, slot);
      return true;
    }
    const auto result = pair->poll_data(now, free_ports, out);
    if (result == Requester::Poll::sent) {
      // Where packets were in flight before, a timer runs that sending can only make later.
      if (pair->requester().packets_in_flight() <= 1) arm(now, slot);
      if (burst_left_ == 0) burst_left_ = pair->requester().spray_quantum();
      if (--burst_left_ == 0 && data_list_.size() > 1) {
        data_list_.pop();
        data_list_.push(slot);
      }
      return true;
    }
    burst_left_ = 0;
    data_list_.pop();
    arm(now, slot);
    if (result == Requester::Poll::no_port || pair->is_probe_due(now)) data_list_.push(slot);
    else pair->in_data_list = false;
  }
  return false;
}

std::size_t Endpoint::poll_completions(std::uint32_t cq, std::span<Completion> out) {
  if (!cqs_.contains(cq)) return 0;
  CompletionQueue& queue = *cqs_[cq];
  std::size_t count = 0;
  while (count < out.size() && !queue.empty()) {
    out[count++] = queue.front();
    queue.pop();
  }
  return count;
}

bool Endpoint::poll_event(Event& out) {
  if (context_.event_log.queue().empty()) return false;
  out = context_.event_log.queue().front();
  context_.event_log.queue().pop();
  return true;
}

}  // namespace softmrc::proto
