#include "collectives/stripes.h"

#include <algorithm>

#include "base/check.h"

namespace softmrc::collectives {
namespace {

constexpr std::uint64_t grain = 4096;  // so that elements stay whole, and nearly no page is two channels'

// What is cut is the part that a transfer is a piece of, into whole blocks; or it by itself, evenly.
struct Cut {
  std::uint64_t bytes = 0;
  Site site;
  std::uint64_t each = 0;
  std::uint32_t count = 1;

  Cut(std::uint64_t length, std::uint32_t channels, const Site& where)
      : bytes(length), site(where.blocks ? where : Site{0, length, 0}), each(length) {
    const std::uint64_t wanted = std::min<std::uint64_t>(channels, site.bytes / smallest_stripe);
    if (wanted < 2) return;
    each = ((bytes + wanted - 1) / wanted + grain - 1) / grain * grain;
    count = static_cast<std::uint32_t>(site.blocks ? std::min<std::uint64_t>(wanted, site.blocks)
                                                   : (bytes + each - 1) / each);
  }
  template <typename Transfer>
  static Cut of(const Transfer& transfer, std::uint32_t channels) {
    return {transfer.bytes, transfer.is_eager ? 1 : channels, transfer.site};
  }
  // Of the part, before this stripe.
  std::uint64_t edge(std::uint32_t stripe) const {
    if (stripe >= count) return site.bytes;
    return site.blocks ? begin_of_part(site.bytes, std::uint64_t{stripe} * site.blocks / count, site.blocks)
                       : stripe * each;
  }
  std::uint64_t at(std::uint32_t stripe) const {
    return std::clamp(edge(stripe), site.begin, site.begin + bytes) - site.begin;
  }
  std::uint64_t size(std::uint32_t stripe) const { return at(stripe + 1) - at(stripe); }
  bool has(std::uint32_t stripe) const { return size(stripe) > 0 || (bytes == 0 && stripe == 0); }
};

// What a whole operation's transfers are called in one of its stripes; -1 where they have no part in it.
struct Names {
  std::vector<std::int32_t> ins, outs;

  static std::int32_t of(const std::vector<std::int32_t>& names, std::int32_t whole) {
    return whole < 0 ? -1 : names[static_cast<std::size_t>(whole)];
  }
};

template <typename Transfers>
std::vector<std::int32_t> names_of(const Transfers& transfers, std::uint32_t stripe, std::uint32_t channels) {
  std::vector<std::int32_t> names;
  std::int32_t next = 0;
  for (const auto& transfer : transfers) names.push_back(Cut::of(transfer, channels).has(stripe) ? next++ : -1);
  return names;
}

std::unique_ptr<Operation> stripe_of(const Operation& whole, std::uint32_t stripe, std::uint32_t channels,
                                     std::uint64_t unit) {
  auto op = std::make_unique<Operation>();
  op->descriptor = whole.descriptor;
  const Names names{names_of(whole.ins, stripe, channels), names_of(whole.outs, stripe, channels)};
  for (std::size_t i = 0; i < whole.ins.size(); ++i) {
    if (names.ins[i] < 0) continue;
    Inbound& in = op->ins.emplace_back(whole.ins[i]);
    const Cut cut = Cut::of(in, channels);
    in.to += cut.at(stripe);
    if (in.local) in.local += cut.at(stripe);
    if (in.merge.to) {
      in.merge.to += cut.at(stripe);
      in.merge.left += cut.at(stripe);
      in.merge.right += cut.at(stripe);
    }
    in.index = 0;
    for (std::size_t other = 0; other + 1 < op->ins.size(); ++other)
      in.index += op->ins[other].peer == in.peer && op->ins[other].is_eager == in.is_eager;
    in.bytes = cut.size(stripe);
    in.slices = Slices(in.bytes, unit);
    in.feeds.clear();
    for (std::uint32_t out : whole.ins[i].feeds)
      if (names.outs[out] >= 0 && whole.outs[out].step < 0)
        in.feeds.push_back(static_cast<std::uint32_t>(names.outs[out]));
  }
  for (std::size_t i = 0; i < whole.outs.size(); ++i) {
    if (names.outs[i] < 0) continue;
    Outbound out = whole.outs[i];
    const Cut cut = Cut::of(out, channels);
    // What is passed on was cut in the same places as it came in.
    SOFTMRC_CHECK(out.after < 0 || whole.ins[static_cast<std::size_t>(out.after)].bytes == out.bytes);
    out.from += cut.at(stripe);
    out.bytes = cut.size(stripe);
    out.slices = Slices(out.bytes, unit);
    out.after = Names::of(names.ins, out.after);
    out.beside = Names::of(names.ins, out.beside);
    // A step waits for the last one before it that has a part in this stripe.
    if (out.step >= 0)
      out.step = static_cast<std::int32_t>(
          std::count_if(names.ins.begin(), names.ins.begin() + out.step, [](std::int32_t n) { return n >= 0; }));
    if (out.step > 0)
      op->ins[static_cast<std::size_t>(out.step) - 1].feeds.push_back(static_cast<std::uint32_t>(names.outs[i]));
    out.index = 0;
    for (const Outbound& other : op->outs) out.index += other.peer == out.peer && other.is_eager == out.is_eager;
    op->outs.push_back(out);
  }
  for (const Copy& copy : whole.copies) {
    const Cut cut(copy.bytes, channels, {});
    if (!cut.has(stripe)) continue;
    Copy& part = op->copies.emplace_back(copy);
    part.to += cut.at(stripe);
    part.from += cut.at(stripe);
    part.bytes = cut.size(stripe);
  }
  return op;
}

}  // namespace

std::vector<std::unique_ptr<Operation>> cut_into_stripes(std::unique_ptr<Operation> whole, std::uint32_t channels,
                                                         std::uint64_t unit) {
  std::vector<std::unique_ptr<Operation>> stripes;
  for (Inbound& in : whole->ins) in.total = in.bytes;
  for (Outbound& out : whole->outs) out.total = out.bytes;
  const auto is_cut = [&](const auto& transfer) { return Cut::of(transfer, channels).count > 1; };
  const bool is_whole = std::none_of(whole->ins.begin(), whole->ins.end(), is_cut) &&
                        std::none_of(whole->outs.begin(), whole->outs.end(), is_cut);
  if (is_whole || !whole->is_striped) {
    stripes.push_back(std::move(whole));
    return stripes;
  }
  for (std::uint32_t k = 0; k < channels; ++k) {
    auto stripe = stripe_of(*whole, k, channels, unit);
    const bool is_idle = stripe->ins.empty() && stripe->outs.empty() && stripe->copies.empty();
    stripes.push_back(k > 0 && is_idle ? nullptr : std::move(stripe));
  }
  SOFTMRC_CHECK(!whole->finish);  // it wants all there is, at once
  return stripes;
}

}  // namespace softmrc::collectives
