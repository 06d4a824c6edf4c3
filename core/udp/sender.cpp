#include "udp/sender.h"

#include <algorithm>

#include "wire/sealed.h"

namespace softmrc::udp {
namespace {

// Room for a header, the padding and ICRC of the packet before it; or for an encrypted packet without its payload.
constexpr std::size_t scratch_per_packet = wire::max_header_size + std::max<std::size_t>(8, wire::sealed_data_overhead);

}  // namespace

Sender::Sender(const SenderConfig& plan, std::vector<Plane>& planes, const PeerBook& peers, ProtectorTable& seals)
    : plan_(plan),
      planes_(planes),
      peers_(peers),
      protectors_(seals),
      packets_(std::make_unique<Pending[]>(batch_packets)) {
  for (std::uint32_t p = 0; p < planes_.size(); ++p) {
    first_queue_.push_back(static_cast<std::uint32_t>(queues_.size()));
    for (std::uint32_t s = 0; s < planes_[p].sockets.size(); ++s) {
      SocketQueue queue;
      queue.plane = static_cast<std::uint8_t>(p);
      queue.socket = static_cast<std::uint8_t>(s);
      queues_.push_back(queue);
    }
  }
  active_.reserve(queues_.size());
  batches_.reserve(batch_packets);
  pieces_.resize(batch_packets * 3);
  scratch_.resize(batch_packets * scratch_per_packet);
  along_.resize(batch_packets);
}

std::uint8_t Sender::tos_of(proto::TrafficClass traffic_class) const {
  const std::uint8_t ecn = plan_.ecn ? 2 : 0;
  if (const auto own = proto::dscp_of(traffic_class)) [[unlikely]]
    return static_cast<std::uint8_t>(*own << 2 | ecn);
  switch (traffic_class) {
    case proto::TrafficClass::data: return static_cast<std::uint8_t>(plan_.dscp.trimmable << 2 | ecn);
    case proto::TrafficClass::data_no_trim: return static_cast<std::uint8_t>(plan_.dscp.no_trim << 2 | ecn);
    case proto::TrafficClass::data_retransmit: return static_cast<std::uint8_t>(plan_.dscp.trimmable_retx << 2 | ecn);
    case proto::TrafficClass::control: return static_cast<std::uint8_t>(plan_.dscp.control << 2);
    case proto::TrafficClass::own: break;  // has been dealt with
  }
  return 0;
}

void Sender::take() {
  Pending& pending = packets_[count_];
  const Plane& plane = planes_[pending.transmit.port];
  const std::uint32_t at = first_queue_[pending.transmit.port] + plane.socket_of(pending.transmit.entropy);
  SocketQueue& queue = queues_[at];
  pending.next = none;
  if (queue.first == none) {
    queue.first = count_;
    active_.push_back(at);
  } else {
    packets_[queue.last].next = count_;
  }
  queue.last = count_++;
}

// Encrypted packets are made here whole, and not from the user's memory.
void Sender::make_room_for_payloads() {
  constexpr std::size_t longest = 1 << 15;
  scratch_.resize(batch_packets * scratch_per_packet + max_gathered_bytes + longest);
}

// Not behind a packet that is shorter than the others.
bool Sender::joins_last(const Plane& plane, const proto::Transmit& transmit, const PeerPlane& peer, std::uint32_t size,
                        std::uint8_t tos) const {
  if (batches_.empty() || !plane.has_gso) return false;
  const GsoBatch& batch = batches_.back();
  return batch.address == &peer.address && batch.tos == tos && size <= batch.segment &&
         batch.bytes == batch.packets * batch.segment && batch.packets < max_gso_segments &&
         batch.bytes + size <= max_gso_bytes && last_wide_ == transmit.wide;
}

GsoBatch& Sender::start_batch(const proto::Transmit& transmit, const PeerPlane& peer, std::uint32_t size,
                              std::uint8_t tos) {
  GsoBatch batch;
  batch.to = &peer.to;
  if (transmit.wide) {
    Destination& along = along_[batches_.size()];
    along = destination_of(wire::path_of(*transmit.wide).destination, peer.port, 0);
    batch.to = &along;
  }
  batch.address = &peer.address;
  // Pieces of one GSO batch lie side by side, and so do GSO batches.
  batch.pieces = batches_.empty() ? pieces_.data() : batches_.back().pieces + batches_.back().piece_count;
  batch.segment = size;
  batch.tos = tos;
  last_wide_ = transmit.wide;
  batches_.push_back(batch);
  return batches_.back();
}

std::uint32_t Sender::append(const SocketQueue& queue, const proto::Transmit& transmit, Time now) {
  const Plane& plane = planes_[queue.plane];
  const auto* write = std::get_if<wire::Write>(&transmit.packet.body);
  const PeerPlane& peer = peers_.plane(transmit.peer, queue.plane);
  std::uint8_t* front = scratch_.data() + scratch_used_;
  const auto header_size = static_cast<std::uint32_t>(wire::emit_headers(transmit.packet, front));
  OutgoingPacket packet{
      transmit, plane.plan.address, plane.sockets[queue.socket].port(), peer,
      front,    header_size,        write ? write->payload : nullptr,   write ? write->payload_size : 0};
  if (!protectors_.of(transmit.peer).seal(now, packet)) [[unlikely]] {
    ++planes_[queue.plane].stats.keyless;
    return 0;
  }
  scratch_used_ += packet.front_size + packet.tail_size;
  const std::uint32_t size = packet.size();
  const std::uint8_t tos = tos_of(transmit.traffic_class);

  const bool joins = joins_last(plane, transmit, peer, size, tos);
  GsoBatch& batch = joins ? batches_.back() : start_batch(transmit, peer, size, tos);
  if (joins) {
    batch.pieces[batch.piece_count - 1].iov_len += packet.front_size;  // it follows what was before it in the scratch
  } else {
    batch.pieces[batch.piece_count++] = {front, packet.front_size};
  }
  if (packet.payload_size) {
    batch.pieces[batch.piece_count++] = {const_cast<std::uint8_t*>(packet.payload), packet.payload_size};
    batch.pieces[batch.piece_count++] = {front + packet.front_size, packet.tail_size};
  } else {
    batch.pieces[batch.piece_count - 1].iov_len += packet.tail_size;
  }
  batch.bytes += size;
  ++batch.packets;
  return size;
}

// A few GSO batches leave at once, which saves calls; not more, since the checksum has just brought their payloads into
// the cache that the kernel's copy will read them from.
void Sender::send_queue(SocketQueue& queue, Time now) {
  std::size_t gathered = 0;
  for (std::uint32_t at = queue.first; at != none; at = packets_[at].next) {
    const std::uint32_t size = append(queue, packets_[at].transmit, now);
    gathered += size;
    if (gathered + size <= max_gathered_bytes && packets_[at].next != none) continue;
    if (!batches_.empty()) planes_[queue.plane].io().send(now, queue.socket, batches_);
    batches_.clear();
    scratch_used_ = 0;
    gathered = 0;
  }
  queue.first = queue.last = none;
}

// Data first: acknowledgements alone would wake a peer that waits for the data.
void Sender::flush(Time now) {
  if (protectors_.has_sessions() && scratch_.size() < max_gathered_bytes) [[unlikely]]
    make_room_for_payloads();
  for (const bool control : {false, true}) {
    for (std::uint32_t at : active_) {
      SocketQueue& queue = queues_[at];
      if (queue.first == none) continue;
      const bool is_control = packets_[queue.first].transmit.traffic_class == proto::TrafficClass::control;
      if (is_control == control) send_queue(queue, now);
    }
  }
  active_.clear();
  count_ = 0;
}

}  // namespace softmrc::udp
