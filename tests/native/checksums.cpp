#include <array>
#include <vector>

#include "base/prng.h"
#include "portable.h"
#include "wire/icrc.h"

namespace softmrc::native {
namespace {

// No table, no trick: one bit at a time.
std::uint32_t divide_bits(std::uint32_t state, wire::Bytes bytes) {
  for (const std::uint8_t byte : bytes) {
    state ^= byte;
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ (state & 1 ? 0xEDB88320u : 0);
  }
  return state;
}

}  // namespace

Hash checksums() {
  constexpr std::array methods = {wire::CrcMethod::automatic, wire::CrcMethod::table, wire::CrcMethod::carryless};
  Hash hash;
  Prng prng(1, "checksums");
  std::vector<std::uint8_t> data(5000);
  for (auto& byte : data) byte = static_cast<std::uint8_t>(prng.bits());
  for (std::size_t size = 0; size < data.size(); size += size < 600 ? 1 : 97) {
    const wire::Bytes bytes(data.data() + prng.below(64) % (data.size() - size), size);
    const auto start = static_cast<std::uint32_t>(prng.bits());
    const std::uint32_t expected = divide_bits(start, bytes);
    for (const wire::CrcMethod method : methods)
      require(wire::crc32_update(start, bytes, method) == expected, "every way to a CRC leads to the same number");
    hash.add(expected);
  }
  for (int i = 0; i < 200; ++i) {
    wire::Route route;
    route.source.is_v4 = route.destination.is_v4 = i % 2;
    for (auto* address : {&route.source, &route.destination})
      for (std::size_t b = 0; b < address->size(); ++b) address->bytes[b] = static_cast<std::uint8_t>(prng.bits());
    route.source_port = static_cast<std::uint16_t>(prng.bits());
    std::vector<std::uint8_t> packet(data.begin(), data.begin() + 16 + 4 * prng.below(1000));
    require(wire::append_icrc(route, packet) && wire::verify(route, packet), "what was appended verifies");
    require(wire::verify_from(wire::icrc_seed(route, packet.size()), packet), "and does so from a seed");
    hash.add({packet.data() + packet.size() - 4, 4});
    packet[5 + prng.below(static_cast<std::uint32_t>(packet.size() - 5))] ^= static_cast<std::uint8_t>(
        1u << prng.below(8));
    require(!wire::verify(route, packet), "a bit that flips is noticed");
  }
  return hash;
}

}  // namespace softmrc::native
