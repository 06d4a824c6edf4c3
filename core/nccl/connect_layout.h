// What the two ends of a connection exchange besides their queue pairs: where the other may write, and the layout of
// that memory, which has to be the same on both sides.
#pragma once

#include "nccl/comm.h"

namespace softmrc::nccl {

constexpr std::uint64_t too_long_mark = 1 << 16;
constexpr std::uint32_t layout_version = 1;

struct ConnectLayout {
  std::uint64_t va = 0;
  std::uint32_t rkey = 0;
};

inline host::Bytes encode_layout(const void* memory, std::uint32_t rkey) {
  host::ByteWriter out;
  for (const std::uint32_t number : {layout_version, slots, eager_slots, eager_bytes, 0x01020304u}) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(&number);
    out.raw({bytes, sizeof number});  // as this machine writes it, so that another byte order is noticed
  }
  out.number(static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(memory)));
  out.number(rkey);
  return out.take();
}

inline ConnectLayout decode_layout(std::span<const std::uint8_t> bytes) {
  host::ByteReader in(bytes);
  const host::Bytes own = encode_layout(nullptr, 0);
  const std::size_t fixed = own.size() - 12;
  if (!std::ranges::equal(in.raw(fixed), std::span(own).first(fixed)))
    throw host::HostError("has another version of the plugin, or another byte order");
  ConnectLayout shape;
  shape.va = in.number<std::uint64_t>();
  shape.rkey = in.number<std::uint32_t>();
  in.end();
  return shape;
}

}  // namespace softmrc::nccl
