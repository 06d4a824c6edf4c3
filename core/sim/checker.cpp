#include "sim/checker.h"

#include <algorithm>

#include "base/check.h"

namespace softmrc::sim {

void Checker::plan(std::uint32_t source, std::uint32_t destination, std::uint32_t bytes) {
  flows_.push_back({packets_, source, destination, bytes});
  packets_ += (static_cast<std::uint64_t>(bytes) + mtu_ - 1) / mtu_;
  placed_.resize(packets_ / 64 + 1, 0);
}

void Checker::on_placed(std::uint32_t id, std::uint32_t source, std::uint32_t destination, std::uint64_t offset, std::uint32_t bytes) {
  SOFTMRC_CHECK(id < flows_.size());
  const Planned& flow = flows_[id];
  SOFTMRC_CHECK(source == flow.source && destination == flow.destination);
  SOFTMRC_CHECK(offset % mtu_ == 0 && offset < flow.bytes);
  SOFTMRC_CHECK(bytes == std::min<std::uint64_t>(mtu_, flow.bytes - offset));
  const std::uint64_t bit = bit_of(id, offset);
  SOFTMRC_CHECK(!has(bit));
  placed_[bit / 64] |= 1ull << (bit % 64);
  bytes_placed_ += bytes;
}

void Checker::on_delivered(std::uint32_t flow) const {
  SOFTMRC_CHECK(flow < flows_.size());
  for (std::uint64_t offset = 0; offset < flows_[flow].bytes; offset += mtu_) SOFTMRC_CHECK(is_placed(flow, offset));
}

void Checker::check_conserved(const Packets& p) { SOFTMRC_CHECK(p.sent == p.arrived + p.dropped + p.lost + p.under_way); }

}  // namespace softmrc::sim
