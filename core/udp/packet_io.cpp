#include "udp/packet_io.h"

#include <algorithm>

namespace softmrc::udp {

GsoBatch GsoBatch::part(std::uint32_t begin, std::uint32_t end, std::vector<iovec>& into) const {
  into.clear();
  std::size_t at = 0;
  for (const iovec& piece : std::span(pieces, piece_count)) {
    const std::size_t from = std::max<std::size_t>(at, begin);
    const std::size_t until = std::min<std::size_t>(at + piece.iov_len, end);
    if (from < until) into.push_back({static_cast<std::uint8_t*>(piece.iov_base) + (from - at), until - from});
    at += piece.iov_len;
  }
  GsoBatch part = *this;
  part.pieces = into.data();
  part.piece_count = static_cast<std::uint32_t>(into.size());
  part.bytes = end - begin;
  part.packets = (part.bytes + segment - 1) / segment;
  part.segment = std::min(segment, part.bytes);
  return part;
}

OwnedGsoBatch::OwnedGsoBatch(std::uint32_t from, const GsoBatch& batch)
    : socket(from), segment(batch.segment), tos(batch.tos), to(*batch.to), address(*batch.address) {
  bytes.reserve(batch.bytes);
  for (const iovec& piece : std::span(batch.pieces, batch.piece_count)) {
    const auto* p = static_cast<const std::uint8_t*>(piece.iov_base);
    bytes.insert(bytes.end(), p, p + piece.iov_len);
  }
}

GsoBatch OwnedGsoBatch::batch() {
  piece_ = {bytes.data(), bytes.size()};
  const auto size = static_cast<std::uint32_t>(bytes.size());
  GsoBatch batch;
  batch.to = &to;
  batch.address = &address;
  batch.pieces = &piece_;
  batch.piece_count = 1;
  batch.segment = std::min(segment, size);
  batch.bytes = size;
  batch.packets = (size + segment - 1) / segment;
  batch.tos = tos;
  return batch;
}

}  // namespace softmrc::udp
