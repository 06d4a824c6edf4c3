#include "proto/time_wait.h"

#include <algorithm>
#include <bit>

namespace softmrc::proto {

void TimeWait::add(TimeWaitState state, Time now) {
  if (order_.size() == max_kept) drop_oldest();
  if (free_places_.empty()) {
    free_places_.push_back(static_cast<std::uint32_t>(states_.size()));
    states_.emplace_back();
  }
  const std::uint32_t place = free_places_.back();
  free_places_.pop_back();
  state.until = now + lasts;
  places_.insert(state.qpn, place);
  states_[place] = std::move(state);
  order_.push(place);
}

// Its place stays taken until its turn to be dropped comes.
void TimeWait::forget(std::uint32_t qpn) {
  const auto place = places_.find(qpn);
  if (!place) return;
  places_.erase(qpn);
  dropped_.push(states_[*place].peer);
  states_[*place] = TimeWaitState{};
}

void TimeWait::handle_timeout(Time now) {
  while (deadline() <= now) drop_oldest();
}

void TimeWait::drop_oldest() {
  const std::uint32_t place = order_.front();
  order_.pop();
  free_places_.push_back(place);
  forget(states_[place].qpn);
}

std::optional<std::uint32_t> TimeWait::poll_expired() {
  if (dropped_.empty()) return std::nullopt;
  const std::uint32_t peer = dropped_.front();
  dropped_.pop();
  return peer;
}

TimeWait::Handled TimeWait::handle(const wire::Packet& packet, const Arrival& arrival) {
  const auto place = places_.find(packet.bth.dqp);
  if (!place) return Handled::not_ours;
  const TimeWaitState& state = states_[*place];
  if (state.peer != arrival.peer) return Handled::wrong_peer;
  if (const auto* write = std::get_if<wire::Write>(&packet.body)) {
    const Psn psn(packet.bth.psn);
    const bool has_arrived = state.has_confirmed && psn - state.cack <= 0 &&
                             Msn(write->meth.msn) - Msn(state.confirmed) <= 0;
    owe_ack(state.qpn, arrival.port);
    if (has_arrived) return Handled::answered;
    answer({*place, state.qpn, psn, arrival.entropy, write->tseth.ticks, arrival.port, true});
    return Handled::refused;
  }
  if (!std::holds_alternative<wire::Probe>(packet.body)) return Handled::late_answer;
  // Who asks without data will send data if this is not enough.
  owe_ack(state.qpn, arrival.port);
  return Handled::answered;
}

void TimeWait::owe_ack(std::uint32_t qpn, std::uint8_t port) {
  const auto place = places_.find(qpn);
  if (place && states_[*place].has_confirmed) answer({*place, qpn, {}, 0, 0, port, false});
}

// These are bounded by the states that are kept, and no peer can make them more.
void TimeWait::repeat(std::uint32_t turn) {
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const std::uint32_t place = order_[i];
    const TimeWaitState& state = states_[place];
    if (!state.has_confirmed) continue;
    const auto ports = std::max<std::size_t>(state.entropies.size(), 1);
    answers_.push({place, state.qpn, {}, 0, 0, static_cast<std::uint8_t>((place + turn) % ports), false});
  }
}

void TimeWait::answer(const Answer& answer) {
  if (answers_.size() >= max_answers) answers_.pop();
  answers_.push(answer);
}

void TimeWait::fill(const Answer& answer, std::uint32_t free_ports, Transmit& out) const {
  const TimeWaitState& state = states_[answer.place];
  out.peer = state.peer;
  out.qpn = state.qpn;
  out.port = free_ports >> answer.port & 1 ? answer.port : static_cast<std::uint8_t>(std::countr_zero(free_ports));
  out.entropy = state.entropies.empty() ? 0 : state.entropies[out.port];
  out.wide = state.wide.empty() ? nullptr : &state.wide[out.port];
  out.traffic_class = TrafficClass::control;
  wire::Bth& bth = out.packet.bth;
  bth = wire::Bth{};
  bth.dqp = state.dest_qpn;
  if (!answer.is_refusal) {
    bth.opcode = wire::Opcode::acknowledge;
    bth.psn = state.cack.value;
    out.packet.body = wire::Aeth{wire::Syndrome::ack, state.confirmed};
    return;
  }
  bth.opcode = wire::Opcode::nack;
  bth.psn = answer.refused.value;
  wire::Nack& nack = out.packet.body.emplace<wire::Nack>();
  nack.reason = wire::NackReason::unexpected_event;
  nack.entropy = answer.entropy;
  nack.spdcid = static_cast<std::uint16_t>(state.qpn);
  nack.dpdcid = static_cast<std::uint16_t>(state.dest_qpn);
  nack.nack_psn = answer.refused.value;
  nack.tx_timestamp = answer.ticks;
}

}  // namespace softmrc::proto
