#include "proto/responder.h"

#include <algorithm>

namespace softmrc::proto {

void Responder::start(const RtrAttributes& attributes) {
  mpr_ = attributes.mpr_dest;
  max_wimm_ = attributes.max_wimm_dest;
  expected_ = attributes.first_psn;
  highest_ = expected_ - 1;
  promised_ = expected_;
}

// spec: window mpr-dynamic
CompletionStatus Responder::on_write(Time now, const wire::Bth& bth, const wire::Write& write, const Arrival& arrival) {
  const Trigger trigger{Psn(bth.psn), arrival.entropy, write.tseth.ticks, arrival.port};
  const std::int32_t offset = trigger.psn - expected_;
  ++context_.stats.packets_received;
  if (offset >= edge() - expected_) {
    ++context_.stats.packets_out_of_window;
    context_.refused(now, RefusedPacket::out_of_window, bth.psn, arrival.entropy, arrival.port);
    acks_.nack(trigger, wire::NackReason::psn_out_of_window);
    return CompletionStatus::success;
  }
  const std::uint32_t size = static_cast<std::uint32_t>(write.payload_size + data_headers + nominal_overhead);
  received_bytes_ += size;
  const bool is_old = offset < 0;
  const bool is_seen = is_old || (trigger.psn - highest_ <= 0 && received_.test(trigger.psn.value));
  if (is_seen) {
    ++context_.stats.packets_duplicate;
    if (is_old && has_released_) acks_.ack(arrival.port);
    acks_.on_packet(now, trigger, size, true, arrival.congestion);
    return CompletionStatus::success;
  }
  if (const auto status = accept(now, bth, write, trigger); status != CompletionStatus::success) return status;
  const bool must = bth.ack_request || bth.retransmission || (is_first_packet_ && config_.sack_first_packet);
  is_first_packet_ = false;
  acks_.on_packet(now, trigger, size, must, arrival.congestion);
  return CompletionStatus::success;
}

// Lengths and addresses that no honest segmentation of this MTU produces.
bool Responder::is_well_formed(const wire::Bth& bth, const wire::Write& write) const {
  const std::uint32_t length = write.reth.dmalen;
  if (write.payload_size > length || write.payload_size > context_.mtu) return false;
  if (!wire::is_last(bth.opcode)) return write.payload_size == context_.mtu && length > context_.mtu;
  if (wire::is_first(bth.opcode)) return write.payload_size == length;
  const std::uint32_t tail = length % context_.mtu;
  return length > context_.mtu && write.payload_size == (tail ? tail : context_.mtu);
}

Responder::Part Responder::part_of(const wire::Bth& bth, const wire::Write& write) const {
  Part part;
  part.msn = write.meth.msn;
  part.rqmsn = write.meth.rqmsn;
  part.packets = packets_of(write.reth.dmalen, context_.mtu);
  part.is_first = wire::is_first(bth.opcode);
  part.is_last = wire::is_last(bth.opcode);
  part.has_imm = wire::has_imm(bth.opcode);
  return part;
}

// Messages follow each other by number, each whole and from its first packet to its last, and writes with immediate
// have a separate numbering.
// spec: message-order
bool Responder::is_next(const Part& part) const {
  if (part.msn != released_messages_ || part.is_first != (position_ == 0)) return false;
  if (position_ && (part.packets != message_.packets || part.rqmsn != message_.rqmsn)) return false;
  if (part.is_last != (position_ + 1 == part.packets)) return false;
  return !part.has_imm || part.rqmsn == next_rqmsn_;
}

// spec: placement zero-length
CompletionStatus Responder::accept(Time now, const wire::Bth& bth, const wire::Write& write, const Trigger& trigger) {
  if (!is_well_formed(bth, write)) return refuse(now, trigger, wire::Syndrome::invalid_request);
  const bool brings_imm = wire::has_imm(bth.opcode);
  const std::uint16_t ahead = static_cast<std::uint16_t>(write.meth.rqmsn - next_rqmsn_);
  if (brings_imm && ahead >= max_wimm_) return refuse(now, trigger, wire::Syndrome::invalid_request);
  if (brings_imm) {
    immediates_.reserve(next_rqmsn_, ahead + 1u);
    if (immediates_[write.meth.rqmsn].present) return refuse(now, trigger, wire::Syndrome::invalid_request);
  }
  // A message without bytes names no memory.
  if (write.reth.dmalen &&
      !memory_.place(context_.domain, write.reth.rkey, write.reth.va, write.payload, write.payload_size))
    return refuse(now, trigger, wire::Syndrome::remote_access);

  const std::uint32_t span = static_cast<std::uint32_t>(trigger.psn - expected_) + 1;
  const std::uint32_t psn = trigger.psn.value;
  const Part part = part_of(bth, write);
  received_.reserve(expected_.value, span);
  unreported_.reserve(expected_.value >> 6, span / 64 + 2);
  received_.set(psn);
  if (trigger.psn != expected_) {
    unreported_.set(psn >> 6);  // what is released at once, cack reports
    parts_.reserve(expected_.value, span);
    parts_[psn] = part;
  }
  if (trigger.psn - highest_ > 0) highest_ = trigger.psn;
  ++out_of_order_;
  if (brings_imm) {
    immediates_[write.meth.rqmsn] = {write.imm, write.reth.dmalen, trigger.psn, write.meth.msn, true};
  }
  ++context_.stats.packets_placed;
  context_.stats.bytes_placed += write.payload_size;
  if (context_.event_log().traces(EventType::packet_placed)) [[unlikely]] {
    Event e = context_.event(EventType::packet_placed, now);
    e.psn = psn;
    e.code = write.reth.rkey;
    e.value = write.reth.va;
    e.ev = write.payload_size;
    e.port = trigger.port;
    context_.event_log().trace(e);
  }
  return trigger.psn == expected_ ? release(now, trigger, part) : CompletionStatus::success;
}

// spec: nak
CompletionStatus Responder::refuse(Time now, const Trigger& trigger, wire::Syndrome syndrome) {
  const bool access = syndrome == wire::Syndrome::remote_access;
  ++(access ? context_.event_log().stats.refused_remote_access : context_.event_log().stats.refused_invalid_request);
  const RefusedPacket why = access ? RefusedPacket::remote_access : RefusedPacket::invalid_request;
  context_.refused(now, why, trigger.psn.value, trigger.entropy, trigger.port);
  acks_.nak(trigger, syndrome);
  return CompletionStatus::local_protocol;
}

// The window's low edge moves over everything that is there, from the packet that came now; whole messages are
// confirmed, immediates get their turn.
// spec: in-order immediates transport-ack
CompletionStatus Responder::release(Time now, const Trigger& trigger, Part part) {
  const std::uint32_t count = received_.run(expected_.value);
  received_.clear_run(expected_.value, count);
  const Psn before = expected_;
  const Psn until = expected_ + count;
  const std::uint16_t messages = released_messages_;
  auto verdict = wire::Syndrome::ack;
  while (true) {
    if (!is_next(part)) {
      verdict = wire::Syndrome::invalid_request;
    } else if (part.has_imm && !complete_immediate(expected_)) {
      verdict = wire::Syndrome::remote_operation;
    } else {
      if (position_++ == 0) message_ = part;
      if (part.is_last) {
        ++released_messages_;
        position_ = 0;
      }
    }
    ++expected_;
    if (verdict != wire::Syndrome::ack || expected_ == until) break;
    part = parts_[expected_.value];
  }
  expected_ = until;
  if (promised_ - expected_ < 0) promised_ = expected_;
  out_of_order_ -= count;
  unreported_.clear_run(before.value >> 6, ((expected_.value >> 6) - (before.value >> 6)) & (Psn::mask >> 6));
  if (released_messages_ != messages) {
    has_released_ = true;
    acks_.ack(trigger.port);
  }
  return verdict == wire::Syndrome::ack ? CompletionStatus::success : refuse(now, trigger, verdict);
}

// False when no receive is posted for it.
bool Responder::complete_immediate(Psn psn) {
  Immediate& imm = immediates_[next_rqmsn_];
  SOFTMRC_CHECK(imm.present && imm.psn == psn);
  if (receives_.empty()) return false;
  Completion c;
  c.wr_id = receives_.front();
  c.qpn = context_.qpn;
  c.length = imm.length;
  c.imm = imm.value;
  c.kind = CompletionKind::receive_imm;
  c.msn = imm.msn;
  completions_.push(c);
  receives_.pop();
  imm.present = false;
  ++next_rqmsn_;
  ++context_.stats.immediates_received;
  return true;
}

// A switch cut the payload off; the header alone shows that the path works and that this packet must be retransmitted.
// spec: trim-nack
void Responder::on_trimmed(Time now, const wire::Bth& bth, const wire::Write& write, const Arrival& arrival) {
  const Trigger trigger{Psn(bth.psn), arrival.entropy, write.tseth.ticks, arrival.port};
  const std::int32_t offset = trigger.psn - expected_;
  if (offset >= edge() - expected_) return;
  ++context_.stats.packets_trimmed;
  if (!config_.trim_nack) return;
  if (offset < 0 || (trigger.psn - highest_ <= 0 && received_.test(trigger.psn.value))) {
    acks_.on_packet(now, trigger, 0, true, false);
    return;
  }
  acks_.nack(trigger,
             arrival.trim == Trim::trimmed_last_hop ? wire::NackReason::trimmed_last_hop : wire::NackReason::trimmed);
}

// spec: reliability-probe
void Responder::on_probe(const wire::Probe& probe, const Arrival& arrival) {
  acks_.on_probe({expected_ - 1, arrival.entropy, probe.timestamp.ticks, arrival.port}, probe.probe_id);
  if (has_released_) acks_.ack(arrival.port);
}

// spec: unexpected-event
void Responder::refuse_in_error(const wire::Bth& bth, const Arrival& arrival) {
  // A probe has no number; what its sender waits for does.
  const Psn psn = wire::is_write(bth.opcode) ? Psn(bth.psn) : expected_;
  if (has_released_)
    acks_.nak({psn, arrival.entropy, 0, arrival.port}, wire::Syndrome::ack);  // what arrived before, did
  acks_.nack({psn, arrival.entropy, 0, arrival.port}, wire::NackReason::unexpected_event);
}

void Responder::set_penalty(std::uint8_t penalty) {
  if (penalty_ && !penalty) restores_left_ = 16;
  penalty_ = penalty;
}

void Responder::fail() {
  while (!receives_.empty()) {
    Completion c;
    c.wr_id = receives_.front();
    c.qpn = context_.qpn;
    c.kind = CompletionKind::receive_imm;
    c.status = CompletionStatus::flushed;
    completions_.push(c);
    receives_.pop();
  }
}

std::uint8_t Responder::take_reply(Time now, Transmit& out) {
  const Reply reply = acks_.take();
  wire::Bth& bth = out.packet.bth;
  bth = wire::Bth{};
  bth.dqp = context_.dest_qpn;
  out.peer = context_.peer;
  out.qpn = context_.qpn;
  out.traffic_class = TrafficClass::control;
  switch (reply.kind) {
    case Reply::Kind::sack:
      fill_sack(now, reply, out);
      ++context_.stats.sacks_sent;
      break;
    case Reply::Kind::nack: {
      bth.opcode = wire::Opcode::nack;
      bth.psn = reply.trigger.psn.value;
      wire::Nack& nack = out.packet.body.emplace<wire::Nack>();
      nack.reason = reply.reason;
      nack.entropy = reply.trigger.entropy;
      nack.spdcid = static_cast<std::uint16_t>(context_.qpn);
      nack.dpdcid = static_cast<std::uint16_t>(context_.dest_qpn);
      nack.nack_psn = reply.trigger.psn.value;
      nack.tx_timestamp = reply.trigger.ticks;
      ++context_.stats.nacks_sent;
      if (context_.event_log().traces(EventType::nack_sent)) [[unlikely]] {
        Event e = context_.event(EventType::nack_sent, now);
        e.psn = nack.nack_psn;
        e.ev = nack.entropy;
        e.code = static_cast<std::uint32_t>(nack.reason);
        context_.event_log().trace(e);
      }
      break;
    }
    case Reply::Kind::ack: {
      bth.opcode = wire::Opcode::acknowledge;
      bth.psn = (expected_ - 1).value;
      wire::Aeth& aeth = out.packet.body.emplace<wire::Aeth>();
      aeth.syndrome = reply.syndrome;
      aeth.msn = static_cast<std::uint16_t>(released_messages_ - 1);
      ++context_.stats.acks_sent;
      break;
    }
  }
  return reply.trigger.port;
}

void Responder::fill_sack(Time now, const Reply& reply, Transmit& out) {
  const Psn cack = expected_ - 1;
  out.packet.bth.opcode = wire::Opcode::sack;
  out.packet.bth.psn = cack.value;
  wire::Sack& sack = out.packet.body.emplace<wire::Sack>();
  sack.mark = reply.mark;
  sack.answers_probe = reply.answers_probe;
  const std::int32_t offset = std::clamp(reply.trigger.psn - cack, -32768, 32767);
  sack.ack_psn_offset = reply.answers_probe ? static_cast<std::int16_t>(reply.probe_id)
                                            : static_cast<std::int16_t>(offset);
  sack.entropy = reply.trigger.entropy;
  sack.spdcid = static_cast<std::uint16_t>(context_.qpn);
  sack.dpdcid = static_cast<std::uint16_t>(context_.dest_qpn);
  sack.cack_psn = cack.value;
  sack.mpr = context_.dynamic_mpr ? static_cast<std::uint8_t>(mpr_) : 0;
  fill_bitmap(reply, sack);
  if (!has_news()) acks_.on_all_reported(reply);
  sack.cc.tx_timestamp = reply.trigger.ticks;
  sack.cc.ooo_count = static_cast<std::uint16_t>(std::min(out_of_order_, 0x7FFFu));
  sack.cc.rcv_cwnd_pen = penalty_;
  if (restores_left_ && !penalty_) {
    sack.cc.restore_cwnd = true;
    --restores_left_;
  }
  sack.cc.rcvd_bytes = static_cast<std::uint32_t>((received_bytes_ + 255) / 256) & 0xFFFFFF;
  if (context_.event_log().traces(EventType::sack_sent)) [[unlikely]] {
    Event e = context_.event(EventType::sack_sent, now);
    e.psn = cack.value;
    e.ev = sack.entropy;
    e.value = sack.bitmap;
    context_.event_log().trace(e);
  }
}

// spec: sack-all-news
bool Responder::has_news() const {
  if (out_of_order_ == 0) return false;
  const std::uint32_t first = expected_.value >> 6;
  const std::uint32_t blocks = (((highest_.value >> 6) - first) & (Psn::mask >> 6)) + 1;
  return unreported_.distance_to_set(first, blocks) < blocks;
}

// Which 64 PSNs a SACK reports: blocks with news take turns; without news, the block that holds the trigger, or else
// what comes right after cack, in case the SACK that reported it before was lost.
// spec: sack-bitmap
Psn Responder::choose_base(const Reply& reply) {
  constexpr std::uint32_t block_mask = Psn::mask >> 6;
  const std::uint32_t first = expected_.value >> 6;
  const std::uint32_t blocks = (((highest_.value >> 6) - first) & block_mask) + 1;
  const std::uint32_t skipped = (next_block_ - first) & block_mask;
  std::uint32_t found = blocks;
  if (skipped < blocks) {
    const std::uint32_t distance = unreported_.distance_to_set(next_block_, blocks - skipped);
    if (distance < blocks - skipped) found = skipped + distance;
  }
  if (found == blocks) found = unreported_.distance_to_set(first, blocks);
  if (found == blocks) {
    const bool inside = reply.trigger.psn - expected_ >= 0 && reply.trigger.psn - highest_ <= 0;
    return inside ? Psn(reply.trigger.psn.value & ~63u) : expected_;
  }
  const std::uint32_t block = (first + found) & block_mask;
  next_block_ = (block + 1) & block_mask;
  unreported_.clear(block);
  return Psn(block << 6);
}

void Responder::fill_bitmap(const Reply& reply, wire::Sack& sack) {
  if (out_of_order_ == 0) {
    sack.sack_offset = 1;
    sack.bitmap = 0;
    return;
  }
  const Psn base = choose_base(reply);
  sack.sack_offset = static_cast<std::int16_t>(base - (expected_ - 1));
  sack.bitmap = received_.window(base.value);
}

}  // namespace softmrc::proto
