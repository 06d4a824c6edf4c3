#include "wire/srv6.h"

#include <algorithm>

namespace softmrc::wire {
namespace {

constexpr std::uint8_t srh_type = 4;

std::string nth(const char* what, std::size_t i) { return std::string(what) + "[" + std::to_string(i) + "]"; }

std::optional<InvalidArgument> check_usids(std::span<const std::uint16_t> usids, std::size_t most) {
  if (usids.empty() || usids.size() > most)
    return InvalidArgument{"usids", std::to_string(usids.size()) + " entries",
                           "1 to " + std::to_string(most) + " entries"};
  for (std::size_t i = 0; i < usids.size(); ++i)
    if (usids[i] == 0) return InvalidArgument{nth("usids", i), "0", "1 to 65535; a zero uSID ends the carrier"};
  return std::nullopt;
}

constexpr std::uint32_t replace(std::uint32_t word, BitField field, std::uint32_t value) {
  const std::uint32_t mask = ones(field.width) << field.shift;
  return field.width ? (word & ~mask) | ((value << field.shift) & mask) : word;
}

std::optional<InvalidArgument> check_field(const char* name, BitField field, unsigned word_bits) {
  if (field.width == 0 && field.shift == 0) return std::nullopt;
  if (unsigned{field.shift} + field.width <= word_bits && field.width > 0) return std::nullopt;
  return InvalidArgument{
      name, "shift " + std::to_string(field.shift) + ", width " + std::to_string(field.width),
      "a field of 1 to " + std::to_string(word_bits) + " bits that ends within " + std::to_string(word_bits) + " bits"};
}

std::optional<InvalidArgument> check_fits(const char* name, std::uint32_t value, unsigned width) {
  if (value <= ones(width)) return std::nullopt;
  return InvalidArgument{name, std::to_string(value),
                         "0 to " + std::to_string(ones(width)) + ", the field has " + std::to_string(width) + " bits"};
}

}  // namespace

std::optional<InvalidArgument> build_carrier(std::uint32_t block, std::span<const std::uint16_t> usids, Ipv6& out) {
  if (auto invalid = check_usids(usids, max_usids)) return invalid;
  out = {};
  store32(out.data(), block);
  for (std::size_t i = 0; i < usids.size(); ++i) store16(out.data() + 4 + 2 * i, usids[i]);
  return std::nullopt;
}

Carrier split_carrier(const Ipv6& address) {
  Carrier c;
  c.block = load32(address.data());
  for (; c.count < max_usids; ++c.count) {
    const std::uint16_t usid = load16(address.data() + 4 + 2 * c.count);
    if (usid == 0) break;
    c.usids[c.count] = usid;
  }
  return c;
}

bool matches_usid(const Ipv6& address, std::uint32_t block, std::uint16_t usid) {
  return load32(address.data()) == block && load16(address.data() + 4) == usid;
}

Ipv6 shift_carrier(const Ipv6& address) {
  Ipv6 out{};
  std::copy(address.begin(), address.begin() + 4, out.begin());
  std::copy(address.begin() + 6, address.end(), out.begin() + 4);
  return out;
}

SrhError parse_srh(Bytes bytes, Srh& out, std::size_t& size) {
  if (bytes.size() < 8) return SrhError::truncated;
  const std::uint8_t* p = bytes.data();
  if (p[2] != srh_type) return SrhError::not_srh;
  size = 8u + 8u * p[1];
  if (bytes.size() < size) return SrhError::truncated;
  out = {};
  out.next_header = p[0];
  out.segments_left = p[3];
  out.flags = p[5];
  out.tag = load16(p + 6);
  const unsigned count = p[4] + 1u;
  if (count > max_segments) return SrhError::too_many_segments;
  if (8 + 16 * count > size) return SrhError::bad_length;
  // A reduced header leaves the first segment out, so that segments left may name one more than there are.
  if (out.segments_left > count) return SrhError::bad_segments_left;
  out.count = static_cast<std::uint8_t>(count);
  for (std::size_t i = 0; i < count; ++i) std::memcpy(out.segments[i].data(), p + 8 + 16 * i, 16);
  return SrhError::none;
}

void emit_srh(const Srh& srh, std::uint8_t* out) {
  out[0] = srh.next_header;
  out[1] = static_cast<std::uint8_t>(2 * srh.count);
  out[2] = srh_type;
  out[3] = srh.segments_left;
  out[4] = static_cast<std::uint8_t>(srh.count - 1);
  out[5] = srh.flags;
  store16(out + 6, srh.tag);
  for (std::size_t i = 0; i < srh.count; ++i) std::memcpy(out + 8 + 16 * i, srh.segments[i].data(), 16);
}

std::optional<InvalidArgument> build_path(std::uint32_t block, std::span<const std::uint16_t> usids, Path& out) {
  if (auto invalid = check_usids(usids, max_usids * (max_segments + 1))) return invalid;
  const std::size_t carriers = (usids.size() + max_usids - 1) / max_usids;
  out = {};
  Srh srh;
  srh.count = static_cast<std::uint8_t>(carriers - 1);
  srh.segments_left = srh.count;
  for (std::size_t i = 0; i < carriers; ++i) {
    const auto part = usids.subspan(i * max_usids, std::min(max_usids, usids.size() - i * max_usids));
    Ipv6& place = i == 0 ? out.destination : srh.segments[srh.count - i];
    if (auto invalid = build_carrier(block, part, place)) return invalid;
  }
  if (srh.count) out.srh = srh;
  return std::nullopt;
}

std::vector<std::uint16_t> path_usids(const Path& path) {
  std::vector<std::uint16_t> all;
  const auto append = [&all](const Ipv6& address) {
    const Carrier c = split_carrier(address);
    all.insert(all.end(), c.usids.begin(), c.usids.begin() + c.count);
  };
  append(path.destination);
  if (path.srh)
    for (std::size_t i = std::min(path.srh->segments_left, path.srh->count); i; --i) append(path.srh->segments[i - 1]);
  return all;
}

bool advance_path(Path& path) {
  const Ipv6 shifted = shift_carrier(path.destination);
  if (load16(shifted.data() + 4) != 0) {
    path.destination = shifted;
    return true;
  }
  if (!path.srh || path.srh->segments_left == 0 || path.srh->segments_left > path.srh->count) return false;
  path.destination = path.srh->segments[--path.srh->segments_left];
  return true;
}

std::optional<InvalidArgument> validate(const PathTemplate& path) {
  if (auto invalid = check_usids({path.usids.data(), std::min<std::size_t>(path.count, max_usids)}, max_usids))
    return invalid;
  if (path.count > max_usids)
    return InvalidArgument{"usids", std::to_string(path.count) + " entries", "1 to 6 entries"};
  if (auto invalid = check_field("plane_in_usid", path.plane_in_usid, 16)) return invalid;
  if (auto invalid = check_field("plane_in_block", path.plane_in_block, 32)) return invalid;
  if (auto invalid = check_field("uplink_in_t1", path.uplink_in_t1, 16)) return invalid;
  if (path.uplink_in_t1.width && path.t1 >= path.count)
    return InvalidArgument{"t1", std::to_string(path.t1),
                           "0 to " + std::to_string(path.count - 1) + ", the place of a uSID"};
  return std::nullopt;
}

std::optional<InvalidArgument> computed_destination(const PathTemplate& path, std::uint32_t plane, std::uint32_t uplink,
                                                    Ipv6& out) {
  if (auto invalid = validate(path)) return invalid;
  for (const BitField field : {path.plane_in_usid, path.plane_in_block})
    if (field.width)
      if (auto invalid = check_fits("plane", plane, field.width)) return invalid;
  if (path.uplink_in_t1.width)
    if (auto invalid = check_fits("uplink", uplink, path.uplink_in_t1.width)) return invalid;
  std::array<std::uint16_t, max_usids> usids = path.usids;
  for (std::size_t i = 0; i < path.count; ++i) {
    std::uint32_t usid = replace(usids[i], path.plane_in_usid, plane);
    if (i == path.t1) usid = replace(usid, path.uplink_in_t1, uplink);
    usids[i] = static_cast<std::uint16_t>(usid);
  }
  return build_carrier(replace(path.block, path.plane_in_block, plane), {usids.data(), path.count}, out);
}

}  // namespace softmrc::wire
