#include "collectives/shm_rings.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "collectives/error_text.h"

namespace softmrc::collectives {

ShmRings::Pair& ShmRings::pair(std::uint32_t p) {
  if (rings_.empty()) rings_.resize(directory_.members.size());
  if (!rings_[p]) rings_[p] = std::make_unique<Pair>();
  return *rings_[p];
}

void ShmRings::offer(proto::Endpoint& engine, Time now, std::uint32_t p) {
  if (!directory_.members[p].is_neighbour) return;
  Pair& rings = pair(p);
  if (std::exchange(rings.is_offered, true) || !(rings.from = ShmRing::make(connections_.draw_token()))) return;
  const ShmKey key = rings.from->key();
  MessageHeader header;
  header.type = MessageType::shm;
  router_.send(engine, now, p, header, {reinterpret_cast<const std::uint8_t*>(&key), sizeof key});
}

// Where it cannot be opened, data goes by the network as it does to others.
void ShmRings::on_offer(proto::Endpoint& engine, Time now, std::uint32_t p, std::span<const std::uint8_t> payload) {
  ShmKey key;
  if (!directory_.members[p].is_neighbour || payload.size() != sizeof key || to(p))
    return failures_.fail(engine, now, rank_name(p) + invalid_message);
  std::memcpy(&key, payload.data(), sizeof key);
  pair(p).to = ShmRing::open(key);
}

bool ShmRings::take(proto::Endpoint& engine, Time now, Inbound& in) {
  ShmRing* const ring = in.peer < rings_.size() && rings_[in.peer] ? rings_[in.peer]->from.get() : nullptr;
  const std::uint64_t at = in.arrived * in.slices.size;
  const std::uint64_t bytes = std::min(in.slices.size, in.bytes - at);
  const auto land = [&](std::uint64_t offset, const std::uint8_t* source, std::uint64_t size) {
    if (in.needs_placing()) in.place(at + offset, source, static_cast<std::uint32_t>(size));
    else std::memcpy(in.to + at + offset, source, size);
  };
  if (!ring || !ring->take(bytes, land)) {
    failures_.fail(engine, now, rank_name(in.peer) + " sent data that is not there");
    return false;
  }
  if (ring->is_awaited()) router_.send_empty(engine, now, in.peer);
  return true;
}

}  // namespace softmrc::collectives
