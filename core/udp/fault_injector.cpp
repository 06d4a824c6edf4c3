#include "udp/fault_injector.h"

#include <algorithm>

#include "wire/sealed.h"

namespace softmrc::udp {
namespace {

// Bytes of IP and UDP headers.
constexpr std::uint32_t around_udp(bool is_v4) { return (is_v4 ? 20 : 40) + 8; }

}  // namespace

void FaultInjector::set_up(std::uint64_t seed, std::uint64_t index, const wire::DscpMap& dscp) {
  prng_ = Prng(seed, "fault", index);
  trimmed_tos_ = static_cast<std::uint8_t>(dscp.trimmed << 2);
}

bool FaultInjector::swallows(std::uint32_t bytes) {
  if (faults_.black_hole || (faults_.mtu && bytes > faults_.mtu)) {
    ++stats_.swallowed;
    return true;
  }
  return chance(faults_.drop, stats_.dropped);
}

// Calls back with what is left of a GSO batch when some of its packets have vanished: each run of bytes without a gap.
template <typename F>
void FaultInjector::for_each_run(std::uint32_t bytes, std::uint32_t segment, std::uint32_t around, F f) {
  std::uint32_t begin = 0;
  for (std::uint32_t at = 0; at < bytes; at += segment) {
    if (!swallows(std::min(segment, bytes - at) + around)) continue;
    if (begin < at) f(begin, at);
    begin = at + segment;
  }
  if (begin < bytes) f(begin, bytes);
}

void FaultInjector::send(Time now, std::uint32_t socket, std::span<const GsoBatch> batches) {
  for (const GsoBatch& batch : batches) {
    const std::uint32_t around = around_udp(batch.to->storage.ss_family == AF_INET);
    if (faults_.needs_copy()) {
      batch.for_each_packet(pieces_, [&](const GsoBatch& packet) {
        if (!swallows(packet.bytes + around)) hold(now, OwnedGsoBatch(socket, packet));
      });
    } else {
      for_each_run(batch.bytes, batch.segment, around, [&](std::uint32_t begin, std::uint32_t end) {
        const GsoBatch part = batch.part(begin, end, pieces_);
        inner_->send(now, socket, {&part, 1});
      });
    }
  }
  release(now, now);
}

// What is left has no ICRC, and is marked so; an encrypted one keeps the tag of its headers.
void FaultInjector::trim(OwnedGsoBatch& packet) {
  if (wire::is_sealed(packet.bytes)) {
    const std::size_t clear = wire::clear_size(packet.bytes, false);
    if (!clear || !wire::is_write(static_cast<wire::Opcode>(packet.bytes[0])) || !chance(faults_.trim, stats_.trimmed))
      return;
    packet.bytes.resize(clear + wire::seal_front);
    packet.tos = trimmed_tos_;
    return;
  }
  wire::Packet found;
  if (wire::parse(packet.bytes, {}, found) != wire::ParseError::none || !wire::is_write(found.bth.opcode)) return;
  if (!chance(faults_.trim, stats_.trimmed)) return;
  std::vector<std::uint8_t> left(wire::max_header_size);
  left.resize(wire::emit_trimmed(found, left.data()));
  packet.bytes = std::move(left);
  packet.tos = trimmed_tos_;
}

void FaultInjector::hold(Time now, OwnedGsoBatch packet) {
  constexpr std::uint8_t congestion_experienced = 3;
  if (faults_.trim > 0) trim(packet);
  Time at = now + faults_.delay;
  if (chance(faults_.duplicate, stats_.duplicated)) push(at, packet);
  if (chance(faults_.mark, stats_.marked)) packet.tos |= congestion_experienced;
  if (chance(faults_.corrupt, stats_.corrupted)) {
    const std::uint32_t bit = prng_.below(static_cast<std::uint32_t>(packet.bytes.size() * 8));
    packet.bytes[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
  }
  if (chance(faults_.reorder, stats_.reordered))
    at = at + Duration{static_cast<std::int64_t>(prng_.unit() * static_cast<double>(faults_.reorder_delay.ps))};
  push(at, std::move(packet));
}

void FaultInjector::push(Time at, OwnedGsoBatch packet) {
  if (held_.size() >= max_held) {
    ++stats_.dropped;
    return;
  }
  held_.push({at, order_++, std::move(packet)});
}

void FaultInjector::release(Time now, Time until) {
  while (!held_.empty() && held_.top().at <= until) {
    OwnedGsoBatch packet = std::move(const_cast<Held&>(held_.top()).packet);
    held_.pop();
    const GsoBatch batch = packet.batch();
    inner_->send(now, packet.socket, {&batch, 1});
  }
}

void FaultInjector::send_delayed(Time now) {
  inner_->send_delayed(now);
  release(now, now);
}

Time FaultInjector::deadline() const {
  return std::min(inner_->deadline(), held_.empty() ? Time::never() : held_.top().at);
}

std::span<const GroBatch> FaultInjector::receive(Receiver& receiver) {
  incoming_.clear();
  for (const GroBatch& in : inner_->receive(receiver)) {
    const std::uint32_t around = around_udp(in.from->ss_family == AF_INET);
    for_each_run(static_cast<std::uint32_t>(in.bytes.size()), in.segment, around,
                 [&](std::uint32_t begin, std::uint32_t end) {
      incoming_.push_back(in);
      incoming_.back().bytes = in.bytes.subspan(begin, end - begin);
    });
  }
  return incoming_;
}

bool FaultInjector::next_error(std::uint32_t socket, SendError& out) {
  const bool has_one = inner_->next_error(socket, out);
  if (faults_.black_hole) out.is_port_unreachable = false;
  return has_one;
}

}  // namespace softmrc::udp
