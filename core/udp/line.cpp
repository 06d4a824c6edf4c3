#include "udp/line.h"

#include <algorithm>

namespace softmrc::udp {

Train Train::part(std::uint32_t begin, std::uint32_t end, std::vector<iovec>& into) const {
  into.clear();
  std::size_t at = 0;
  for (const iovec& piece : std::span(pieces, piece_count)) {
    const std::size_t from = std::max<std::size_t>(at, begin);
    const std::size_t until = std::min<std::size_t>(at + piece.iov_len, end);
    if (from < until) into.push_back({static_cast<std::uint8_t*>(piece.iov_base) + (from - at), until - from});
    at += piece.iov_len;
  }
  Train part = *this;
  part.pieces = into.data();
  part.piece_count = static_cast<std::uint32_t>(into.size());
  part.bytes = end - begin;
  part.packets = (part.bytes + segment - 1) / segment;
  part.segment = std::min(segment, part.bytes);
  return part;
}

KeptTrain::KeptTrain(std::uint32_t from, const Train& train)
    : socket(from), segment(train.segment), tos(train.tos), to(*train.to), address(*train.address) {
  bytes.reserve(train.bytes);
  for (const iovec& piece : std::span(train.pieces, train.piece_count)) {
    const auto* p = static_cast<const std::uint8_t*>(piece.iov_base);
    bytes.insert(bytes.end(), p, p + piece.iov_len);
  }
}

Train KeptTrain::train() {
  piece_ = {bytes.data(), bytes.size()};
  const auto size = static_cast<std::uint32_t>(bytes.size());
  Train train;
  train.to = &to;
  train.address = &address;
  train.pieces = &piece_;
  train.piece_count = 1;
  train.segment = std::min(segment, size);
  train.bytes = size;
  train.packets = (size + segment - 1) / segment;
  train.tos = tos;
  return train;
}

}  // namespace softmrc::udp
