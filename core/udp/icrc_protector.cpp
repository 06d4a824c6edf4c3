#include "udp/icrc_protector.h"

#include <cstring>

#include "wire/icrc.h"

namespace softmrc::udp {
namespace {

// Padding and four zero bytes behind the payload. Returns how much of it is padding.
unsigned close_blank(OutgoingPacket& packet) {
  const unsigned pad = padding_of(packet.payload_size);
  std::memset(packet.front + packet.front_size, 0, 8);
  packet.tail_size = pad + static_cast<std::uint32_t>(wire::icrc_size);
  return pad;
}

// A packet that is too short to have one is left to the parser.
void strip(wire::MutableBytes& packet) {
  if (packet.size() >= wire::icrc_size) packet = packet.first(packet.size() - wire::icrc_size);
}

}  // namespace

std::uint32_t IcrcProtector::overhead() const { return static_cast<std::uint32_t>(wire::icrc_size); }

std::uint32_t IcrcProtector::seed_of(const OutgoingPacket& packet, std::size_t size) {
  Seed& seed = seeds_[(packet.source_port ^ size >> 2) % seeds_.size()];
  if (seed.peer != &packet.to || seed.source_port != packet.source_port || seed.size != size) {
    const wire::Route route{packet.from, packet.to.address, packet.source_port, packet.to.port};
    seed = {&packet.to, packet.source_port, size, wire::icrc_seed(route, size)};
  }
  return seed.state;
}

bool IcrcProtector::seal(Time, OutgoingPacket& packet) {
  const unsigned pad = close_blank(packet);
  std::uint8_t* tail = packet.front + packet.front_size;
  std::uint32_t state = seed_of(packet, packet.size());
  packet.front[wire::icrc_masked_byte] = 0xFF;
  state = wire::crc32_update(state, {packet.front, packet.front_size});
  packet.front[wire::icrc_masked_byte] = 0;
  if (packet.payload_size) state = wire::crc32_update(state, {packet.payload, packet.payload_size});
  if (pad) state = wire::crc32_update(state, {tail, pad});
  state = ~state;
  std::memcpy(tail + pad, &state, wire::icrc_size);
  return true;
}

void IcrcProtector::begin(const Origin& origin) {
  origin_ = origin;
  opened_size_ = 0;
}

// A trimmed packet has none.
proto::Integrity IcrcProtector::open(Time, wire::MutableBytes& packet, std::uint32_t&) {
  if (origin_.is_trimmed) return proto::Integrity::unchecked;
  if (opened_size_ != packet.size()) {
    opened_size_ = packet.size();
    opened_seed_ = wire::icrc_seed(origin_.route, opened_size_);
  }
  const bool is_good = wire::verify_from(opened_seed_, packet);
  strip(packet);
  return is_good ? proto::Integrity::verified : proto::Integrity::bad;
}

std::uint32_t NullProtector::overhead() const { return static_cast<std::uint32_t>(wire::icrc_size); }

bool NullProtector::seal(Time, OutgoingPacket& packet) {
  close_blank(packet);
  return true;
}

proto::Integrity NullProtector::open(Time, wire::MutableBytes& packet, std::uint32_t&) {
  if (!is_trimmed_) strip(packet);
  return proto::Integrity::unchecked;
}

}  // namespace softmrc::udp
