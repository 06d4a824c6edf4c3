#include "udp/capture_tap.h"

#include "udp/plane.h"

namespace softmrc::udp {

void CaptureTap::send(Time now, std::uint32_t socket, std::span<const GsoBatch> batches) {
  wire::Route route;
  for (const GsoBatch& batch : batches) {
    source_of(batch.to->storage, route.destination, route.destination_port);
    route.destination = *batch.address;
    route.source = plane_.plan.address;
    route.source_port = plane_.sockets[socket].port();
    batch.for_each_packet(pieces_, [&](const GsoBatch& packet) {
      capture_->record(plane_.number, route, batch.tos, {packet.pieces, packet.piece_count});
    });
  }
  inner_->send(now, socket, batches);
}

std::span<const GroBatch> CaptureTap::receive(Receiver& receiver) {
  const std::span<const GroBatch> messages = inner_->receive(receiver);
  wire::Route route;
  route.destination = plane_.plan.address;
  route.destination_port = plane_.sockets[0].port();
  for (const GroBatch& in : messages) {
    source_of(*in.from, route.source, route.source_port);
    for (std::size_t at = 0; at < in.bytes.size(); at += in.segment) {
      const wire::Bytes packet = in.bytes.subspan(at, std::min<std::size_t>(in.segment, in.bytes.size() - at));
      const iovec piece{const_cast<std::uint8_t*>(packet.data()), packet.size()};
      capture_->record(plane_.number, route, in.tos, {&piece, 1});
    }
  }
  return messages;
}

}  // namespace softmrc::udp
