#include "proto/departed.h"

#include <algorithm>
#include <bit>

namespace softmrc::proto {

void Departed::add(LastWord word, Time now) {
  if (order_.size() == most_kept) drop_oldest();
  if (free_places_.empty()) {
    free_places_.push_back(static_cast<std::uint32_t>(words_.size()));
    words_.emplace_back();
  }
  const std::uint32_t place = free_places_.back();
  free_places_.pop_back();
  word.until = now + lasts;
  places_.insert(word.qpn, place);
  words_[place] = std::move(word);
  order_.push(place);
}

// Its place stays taken until its turn to be dropped comes.
void Departed::forget(std::uint32_t qpn) {
  const auto place = places_.find(qpn);
  if (!place) return;
  places_.erase(qpn);
  dropped_.push(words_[*place].peer);
  words_[*place] = LastWord{};
}

void Departed::handle_timeout(Time now) {
  while (deadline() <= now) drop_oldest();
}

void Departed::drop_oldest() {
  const std::uint32_t place = order_.front();
  order_.pop();
  free_places_.push_back(place);
  forget(words_[place].qpn);
}

std::optional<std::uint32_t> Departed::poll_dropped() {
  if (dropped_.empty()) return std::nullopt;
  const std::uint32_t peer = dropped_.front();
  dropped_.pop();
  return peer;
}

Departed::Heard Departed::handle(const wire::Packet& packet, const Arrival& arrival) {
  const auto place = places_.find(packet.bth.dqp);
  if (!place) return Heard::not_ours;
  const LastWord& word = words_[*place];
  if (word.peer != arrival.peer) return Heard::wrong_peer;
  if (const auto* write = std::get_if<wire::Write>(&packet.body)) {
    const Psn psn(packet.bth.psn);
    const bool has_arrived = word.has_confirmed && psn - word.cack <= 0 && Msn(write->meth.msn) - Msn(word.confirmed) <= 0;
    owe_ack(word.qpn, arrival.port);
    if (has_arrived) return Heard::answered;
    answer({*place, word.qpn, psn, arrival.entropy, write->tseth.ticks, arrival.port, true});
    return Heard::refused;
  }
  if (!std::holds_alternative<wire::Probe>(packet.body)) return Heard::late_answer;
  // Who asks without data will send data if this is not enough.
  owe_ack(word.qpn, arrival.port);
  return Heard::answered;
}

void Departed::owe_ack(std::uint32_t qpn, std::uint8_t port) {
  const auto place = places_.find(qpn);
  if (place && words_[*place].has_confirmed) answer({*place, qpn, {}, 0, 0, port, false});
}

// These are bounded by the words that are kept, and no peer can make them more.
void Departed::repeat(std::uint32_t turn) {
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const std::uint32_t place = order_[i];
    const LastWord& word = words_[place];
    if (!word.has_confirmed) continue;
    const auto ports = std::max<std::size_t>(word.entropies.size(), 1);
    answers_.push({place, word.qpn, {}, 0, 0, static_cast<std::uint8_t>((place + turn) % ports), false});
  }
}

void Departed::answer(const Answer& answer) {
  if (answers_.size() >= most_answers) answers_.pop();
  answers_.push(answer);
}

void Departed::fill(const Answer& answer, std::uint32_t free_ports, Transmit& out) const {
  const LastWord& word = words_[answer.place];
  out.peer = word.peer;
  out.qpn = word.qpn;
  out.port = free_ports >> answer.port & 1 ? answer.port : static_cast<std::uint8_t>(std::countr_zero(free_ports));
  out.entropy = word.entropies.empty() ? 0 : word.entropies[out.port];
  out.wide = word.wide.empty() ? nullptr : &word.wide[out.port];
  out.traffic_class = TrafficClass::control;
  wire::Bth& bth = out.packet.bth;
  bth = wire::Bth{};
  bth.dqp = word.dest_qpn;
  if (!answer.is_refusal) {
    bth.opcode = wire::Opcode::acknowledge;
    bth.psn = word.cack.value;
    out.packet.body = wire::Aeth{wire::Syndrome::ack, word.confirmed};
    return;
  }
  bth.opcode = wire::Opcode::nack;
  bth.psn = answer.refused.value;
  wire::Nack& nack = out.packet.body.emplace<wire::Nack>();
  nack.reason = wire::NackReason::unexpected_event;
  nack.entropy = answer.entropy;
  nack.spdcid = static_cast<std::uint16_t>(word.qpn);
  nack.dpdcid = static_cast<std::uint16_t>(word.dest_qpn);
  nack.nack_psn = answer.refused.value;
  nack.tx_timestamp = answer.ticks;
}

}  // namespace softmrc::proto
