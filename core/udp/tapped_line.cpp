#include "udp/tapped_line.h"

#include "udp/plane.h"

namespace softmrc::udp {

void TappedLine::send(Time now, std::uint32_t socket, std::span<const Train> trains) {
  wire::Route route;
  for (const Train& train : trains) {
    source_of(train.to->storage, route.destination, route.destination_port);
    route.destination = *train.address;
    route.source = plane_.plan.address;
    route.source_port = plane_.sockets[socket].port();
    train.for_each_packet(pieces_, [&](const Train& packet) {
      capture_->record(plane_.number, route, train.tos, {packet.pieces, packet.piece_count});
    });
  }
  inner_->send(now, socket, trains);
}

std::span<const Incoming> TappedLine::receive(Receiver& receiver) {
  const std::span<const Incoming> messages = inner_->receive(receiver);
  wire::Route route;
  route.destination = plane_.plan.address;
  route.destination_port = plane_.sockets[0].port();
  for (const Incoming& in : messages) {
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
