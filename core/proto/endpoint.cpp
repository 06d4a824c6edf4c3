// Set-up, demultiplexing and polling.
#include "proto/endpoint.h"

#include <algorithm>

namespace softmrc::proto {
namespace {

MaybeError bad_moment(const char* field, std::uint64_t value, std::string expected) {
  return Error{Error::Kind::usage, field, std::to_string(value), std::move(expected)};
}

MaybeError bad_value(const char* field, std::uint64_t value, std::string expected) {
  return Error{Error::Kind::config, field, std::to_string(value), std::move(expected)};
}

}  // namespace

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
  return qps_.find_if([&](const QueuePair& pair) { return pair.uses(*cqs_[cq]); });
}

bool Endpoint::reserve(const QpnReservation& reserve, LazyAccept& owner) {
  if (reserve.first_qpn < 3 || reserve.last_qpn() > 0xFFFFFF || reservations_.overlap(reserve)) return false;
  bool is_taken = false;
  qps_.for_each_qpn([&](std::uint32_t qpn) { is_taken |= reserve.has_qpn(qpn); });
  if (is_taken) return false;
  for (std::uint32_t i = 0; i < reserve.rkeys; ++i)
    if (memory_.contains(reserve.first_rkey + i)) return false;
  reservations_.add(reserve, owner);
  return true;
}

MaybeError Endpoint::create_qp(std::uint32_t qpn, const LazyAccept* by) {
  if (qpn < 3 || qpn > 0xFFFFFF) return bad_value("qpn", qpn, "3 to 16777215");
  if (qps_.find(qpn) || reservations_.owner_of_qpn(qpn) != by)
    return bad_moment("qpn", qpn, "a number that is not in use");
  if (time_wait_) time_wait_->forget(qpn);
  qps_.add(qpn);
  return std::nullopt;
}

MaybeError Endpoint::modify_init(std::uint32_t qpn, const InitAttributes& a) {
  const auto slot = qps_.find(qpn);
  if (!slot) return bad_moment("qpn", qpn, "a queue pair that exists");
  if (qps_.at(*slot)) return bad_moment("qpn", qpn, "a queue pair in RESET, to go to INIT");
  if (!ev_profiles_.contains(a.ev_profile)) return bad_value("ev_profile", a.ev_profile, "a profile that was added");
  if (!cc_profiles_.contains(a.cc_profile)) return bad_value("cc_profile", a.cc_profile, "a profile that was added");
  if (!cqs_.contains(a.send_cq)) return bad_value("send_cq", a.send_cq, "a completion queue that was created");
  if (a.domain > last_domain_) return bad_value("domain", a.domain, "0, or a protection domain that was created");
  if (!cqs_.contains(a.recv_cq)) return bad_value("recv_cq", a.recv_cq, "a completion queue that was created");
  qps_.set(*slot, std::make_unique<QueuePair>(qpn, context_, ev_profiles_[a.ev_profile], cc_profiles_[a.cc_profile],
                                              memory_, *cqs_[a.send_cq], *cqs_[a.recv_cq], a));
  return std::nullopt;
}

// spec: rtr-refused
MaybeError Endpoint::modify_rtr(Time now, std::uint32_t qpn, const RtrAttributes& attributes) {
  QueuePair* pair = qp(qpn);
  if (!pair) return bad_moment("qpn", qpn, "a queue pair in INIT, to go to RTR");
  if (!has_peer(attributes.peer)) return bad_value("peer", attributes.peer, "a peer that was added");
  if (auto v = pair->check_rtr(attributes)) return v;
  node_ops_.before_rtr(now, attributes.peer);
  pair->to_rtr(attributes, now);
  node_ops_.on_rtr(now, *qps_.find(qpn));
  return std::nullopt;
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
  const auto slot = qps_.find(qpn);
  if (!slot) return false;
  if (const QueuePair* pair = qps_.at(*slot); pair && pair->has_peer()) {
    if (!time_wait_) time_wait_ = std::make_unique<TimeWait>();
    time_wait_->add(pair->time_wait_state(), now);
    if (pair->has_reply()) time_wait_->owe_ack(qpn, pair->responder().reply_trigger_port());
    node_ops_.on_destroy(*slot);
  }
  qps_.remove(*slot);
  drop_expired(now);
  return true;
}

void Endpoint::drop_expired(Time now) {
  if (!time_wait_) return;
  time_wait_->handle_timeout(now);
  while (const auto peer = time_wait_->poll_expired()) node_ops_.release_peer(*peer);
}

void Endpoint::enter_time_wait(Time now) {
  qps_.for_each_qpn([&](std::uint32_t qpn) { destroy_qp(now, qpn); });
  memory_ = Memory{};
}

std::optional<QpState> Endpoint::qp_state(std::uint32_t qpn) const {
  const auto slot = qps_.find(qpn);
  if (!slot) return std::nullopt;
  const QueuePair* pair = qps_.at(*slot);
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
  EndpointStats& stats = context_.event_log.stats;
  const auto refuse = [&](RefusedPacket why, std::uint64_t& counter) {
    context_.refuse(now, why, counter, &packet.bth, arrival);
  };
  node_ops_.on_arrival(arrival.peer);
  if (arrival.port >= context_.config.ports || (arrival.trim != Trim::none && !wire::is_write(packet.bth.opcode)))
    return refuse(RefusedPacket::malformed, stats.refused_malformed);
  node_ops_.on_packet(now, arrival);
  if (packet.bth.dqp == wire::endpoint_qpn) {
    if (!has_peer(arrival.peer)) return refuse(RefusedPacket::unknown_peer, stats.refused_unknown_peer);
    reservations_.for_each_owner([&](LazyAccept& owner) {
      if (!node_ops_.has_qp_to(arrival.peer)) owner.on_first_packet(*this, now, arrival.peer, wire::endpoint_qpn);
    });
    if (packet.bth.opcode == wire::Opcode::endpoint_request) return node_ops_.handle_request(now, packet, arrival);
    if (packet.bth.opcode == wire::Opcode::endpoint_response) return node_ops_.handle_response(now, packet, arrival);
  }
  auto slot = qps_.find(packet.bth.dqp);
  if (!slot && !reservations_.empty()) [[unlikely]]
    slot = on_first_packet(now, packet, arrival);
  const bool is_node_operation = std::holds_alternative<wire::EndpointRequest>(packet.body) ||
                                 std::holds_alternative<wire::EndpointResponse>(packet.body);
  if (!slot && !is_node_operation && time_wait_) {
    using Handled = TimeWait::Handled;
    const Handled handled = time_wait_->handle(packet, arrival);
    stats.departed_answers += handled == Handled::answered || handled == Handled::refused;
    stats.late_answers += handled == Handled::late_answer;
    if (handled == Handled::answered || handled == Handled::late_answer) return;
    if (handled == Handled::wrong_peer) return refuse(RefusedPacket::wrong_peer, stats.refused_wrong_peer);
  }
  if (!slot || is_node_operation) return refuse(RefusedPacket::unknown_qp, stats.refused_unknown_qp);
  QueuePair* pair = qps_.at(*slot);
  if (!pair) return refuse(RefusedPacket::wrong_state, stats.refused_wrong_state);
  pair->handle(now, packet, arrival);
  scheduler_.schedule(now, *slot);
}

// What is no question is an answer to nothing that such a queue pair has said.
std::optional<std::uint32_t> Endpoint::on_first_packet(Time now, const wire::Packet& packet, const Arrival& arrival) {
  if (!std::holds_alternative<wire::Write>(packet.body) && !std::holds_alternative<wire::Probe>(packet.body))
    return std::nullopt;
  LazyAccept* owner = reservations_.owner_of_qpn(packet.bth.dqp);
  if (!owner) return std::nullopt;
  owner->on_first_packet(*this, now, arrival.peer, packet.bth.dqp);
  return qps_.find(packet.bth.dqp);
}

void Endpoint::handle_stall(Time now) {
  qps_.for_each([now](std::uint32_t, QueuePair& pair) { pair.requester().on_stall(now); });
}

void Endpoint::wake(Time now, std::uint32_t qpn) {
  const auto slot = qps_.find(qpn);
  if (slot && qps_.at(*slot)) scheduler_.schedule(now, *slot);
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
  scheduler_.handle_timeout(now);
  node_ops_.handle_timeout(now);
  drop_expired(now);
}

Time Endpoint::poll_timeout() {
  const Time first = std::min(scheduler_.poll_timeout(), node_ops_.deadline(handled_at_));
  return time_wait_ ? std::min(first, time_wait_->deadline()) : first;
}

PostStatus Endpoint::post_write(Time now, std::uint32_t qpn, const WorkRequest& request) {
  const auto slot = qps_.find(qpn);
  if (!slot || !qps_.at(*slot)) return PostStatus::wrong_state;
  const PostStatus status = qps_.at(*slot)->post(now, request);
  if (status != PostStatus::ok) return status;
  node_ops_.on_post(now, qps_.at(*slot)->peer());
  scheduler_.schedule(now, *slot);
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
  free_ports &= up_ports();
  if (free_ports == 0) return false;
  if (node_ops_.poll_answer(now, free_ports, out)) return true;
  if (time_wait_ && time_wait_->has_answer()) {
    const auto usable = [this](std::uint32_t peer) { return node_ops_.usable_ports(peer); };
    if (time_wait_->poll(free_ports, usable, out)) return true;
  }
  if (scheduler_.has_reply() && scheduler_.poll_reply(now, free_ports, out)) return true;
  if (node_ops_.poll_request(now, free_ports, out)) return true;
  return scheduler_.poll_data(now, free_ports, out, [&](std::uint32_t slot, QueuePair& pair) {
    return node_ops_.poll_ev_probe(now, slot, pair, free_ports, out);
  });
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
