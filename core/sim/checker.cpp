#include "sim/checker.h"

#include <algorithm>

#include "base/check.h"

namespace softmrc::sim {

void Checker::plan(std::uint32_t source, std::uint32_t destination, std::uint32_t bytes) {
  flows_.push_back({packets_, source, destination, bytes});
  packets_ += ((static_cast<std::uint64_t>(bytes) + mtu_ - 1) / mtu_ + 63) / 64 * 64;
  placed_.resize(packets_ / 64, 0);
}

void Checker::on_placed(Seen& seen, std::uint32_t id, std::uint32_t source, std::uint32_t destination,
                        std::uint64_t offset, std::uint32_t bytes) {
  SOFTMRC_CHECK(id < flows_.size());
  const Planned& flow = flows_[id];
  SOFTMRC_CHECK(source == flow.source && destination == flow.destination);
  SOFTMRC_CHECK(offset % mtu_ == 0 && offset < flow.bytes);
  SOFTMRC_CHECK(bytes == std::min<std::uint64_t>(mtu_, flow.bytes - offset));
  const std::uint64_t bit = bit_of(id, offset);
  SOFTMRC_CHECK(!has(bit));
  placed_[bit / 64] |= 1ull << (bit % 64);
  seen.bytes_placed += bytes;
}

void Checker::on_delivered(std::uint32_t flow) const {
  SOFTMRC_CHECK(flow < flows_.size());
  for (std::uint64_t offset = 0; offset < flows_[flow].bytes; offset += mtu_) SOFTMRC_CHECK(is_placed(flow, offset));
}

void Checker::on_landed(Seen& seen, std::uint32_t host, std::uint32_t rkey, std::uint64_t region, std::uint64_t va,
                        std::uint32_t bytes) const {
  SOFTMRC_CHECK(va % mtu_ == 0 && bytes > 0 && bytes <= mtu_);
  Seen::Landed& landed = seen.landed[static_cast<std::uint64_t>(host) << 32 | rkey];
  SOFTMRC_CHECK(region >= landed.region);
  if (region > landed.region) landed = {region, {}};
  std::vector<std::uint64_t>& bits = landed.bits;
  const std::uint64_t bit = va / mtu_;
  if (bits.size() <= bit / 64) bits.resize(bit / 64 + 1, 0);
  SOFTMRC_CHECK(!(bits[bit / 64] >> (bit % 64) & 1));
  bits[bit / 64] |= 1ull << (bit % 64);
  seen.bytes_landed += bytes;
}

bool Checker::has_landed(const Seen& seen, std::uint32_t host, std::uint32_t rkey, std::uint64_t va) const {
  const auto found = seen.landed.find(static_cast<std::uint64_t>(host) << 32 | rkey);
  const std::uint64_t bit = va / mtu_;
  if (found == seen.landed.end()) return false;
  const std::vector<std::uint64_t>& bits = found->second.bits;
  return bit / 64 < bits.size() && (bits[bit / 64] >> (bit % 64) & 1);
}

void Checker::check_expected(std::uint64_t landed) const { SOFTMRC_CHECK(landed == expected_); }

void Checker::check_result(collectives::Kind kind, std::uint32_t rank, std::uint32_t ranks,
                           std::span<const std::uint32_t> found) {
  using collectives::Kind;
  const auto sum = [ranks](std::uint64_t element) { return sample(ranks * (ranks - 1) / 2, element * ranks); };
  const std::uint64_t part = found.size() / ranks;
  for (std::uint64_t i = 0; i < found.size(); ++i) {
    switch (kind) {
      case Kind::all_reduce: SOFTMRC_CHECK(found[i] == sum(i)); break;
      case Kind::reduce_scatter: SOFTMRC_CHECK(found[i] == sum(rank * found.size() + i)); break;
      case Kind::all_gather: SOFTMRC_CHECK(found[i] == sample(static_cast<std::uint32_t>(i / part), i % part)); break;
      case Kind::all_to_all:
        SOFTMRC_CHECK(found[i] == sample(static_cast<std::uint32_t>(i / part), rank * part + i % part));
        break;
      default: break;
    }
  }
}

void Checker::check_conserved(const Packets& p) {
  SOFTMRC_CHECK(p.sent == p.arrived + p.dropped + p.lost + p.under_way);
}

}  // namespace softmrc::sim
