#include "wire/entropy.h"

#include <cstring>

namespace softmrc::wire {
namespace {

std::string up_to(std::uint32_t most) { return "0 to " + std::to_string(most); }

InvalidArgument invalid_field(std::size_t i, const char* member, std::uint64_t value, std::string expected) {
  return {"fields[" + std::to_string(i) + "]." + member, std::to_string(value), std::move(expected)};
}

std::optional<InvalidArgument> validate_field(std::size_t i, const EvField& f, unsigned format_width) {
  if (f.width == 0 || f.width > max_field_bits) return invalid_field(i, "width", f.width, "1 to 32 bits");
  if (f.width > format_width)
    return invalid_field(i, "width", f.width,
                         "at most widths[" + std::to_string(i) + "] = " + std::to_string(format_width));
  const std::uint32_t most = ones(f.width);
  if (f.init_val > most) return invalid_field(i, "init_val", f.init_val, up_to(most));
  if (f.mask > most) return invalid_field(i, "mask", f.mask, up_to(most));
  const auto bits = static_cast<unsigned>(std::popcount(f.mask));
  if (f.max > ones(bits))
    return invalid_field(i, "max", f.max, up_to(ones(bits)) + ", the mask has " + std::to_string(bits) + " bits");
  if (f.min > f.max) return invalid_field(i, "min", f.min, up_to(f.max) + ", no more than max");
  return std::nullopt;
}

bool bit_at(const EvBytes& bytes, unsigned at) { return at < 8 * ev_bytes && bytes[at / 8] & 0x80u >> at % 8; }

// Writes the low `width` bits of `value` from bit `at` on, most significant first.
void put_bits(EvBytes& bytes, unsigned at, std::uint32_t value, unsigned width) {
  for (unsigned i = width; i; --i, ++at)
    if ((value >> (i - 1)) & 1) bytes[at / 8] = static_cast<std::uint8_t>(bytes[at / 8] | 0x80u >> at % 8);
}

std::optional<InvalidArgument> validate_widths(std::span<const std::uint8_t> widths) {
  unsigned total = 0;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    if (widths[i] == 0 || widths[i] > 32)
      return InvalidArgument{"widths[" + std::to_string(i) + "]", std::to_string(widths[i]), "1 to 32 bits"};
    total += widths[i];
  }
  if (widths.empty() || total > 32)
    return InvalidArgument{"widths", std::to_string(total) + " bits", "1 to 32 bits in all"};
  return std::nullopt;
}

}  // namespace

unsigned entropy_bits(std::span<const EvField> fields) {
  unsigned bits = 0;
  for (const EvField& f : fields) bits += static_cast<unsigned>(std::popcount(f.mask));
  return bits;
}

std::optional<InvalidArgument> validate(const EvLayout& layout, unsigned room) {
  const auto& [widths, fields] = layout;
  unsigned total = 0;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    if (widths[i] == 0 || widths[i] > 8 * ev_bytes)
      return InvalidArgument{"widths[" + std::to_string(i) + "]", std::to_string(widths[i]), "1 to 256 bits"};
    total += widths[i];
  }
  if (total == 0 || total > room)
    return InvalidArgument{"widths", std::to_string(total) + " bits", "1 to " + std::to_string(room) + " bits in all"};
  if (fields.size() > widths.size())
    return InvalidArgument{"fields", std::to_string(fields.size()) + " entries",
                           "at most one for each of the " + std::to_string(widths.size()) + " widths"};
  for (std::size_t i = 0; i < fields.size(); ++i)
    if (auto invalid = validate_field(i, fields[i], widths[i])) return invalid;
  return std::nullopt;
}

EvBytes expand(const EvLayout& layout, const EvBytes& ev) {
  EvBytes out{};
  unsigned end = 0;
  unsigned next = 0;
  for (std::size_t i = 0; i < layout.fields.size(); ++i) {
    const EvField& f = layout.fields[i];
    std::uint32_t value = f.init_val & ~f.mask;
    for (unsigned bit = f.width; bit--;)
      if (f.mask >> bit & 1) value |= std::uint32_t{bit_at(ev, next++)} << bit;
    end += layout.widths[i];
    put_bits(out, end - f.width, value, f.width);
  }
  return out;
}

EvBytes spell(std::span<const EvField> fields, std::span<const std::uint32_t> values) {
  EvBytes out{};
  unsigned at = 0;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const auto bits = static_cast<unsigned>(std::popcount(fields[i].mask));
    put_bits(out, at, values[i], bits);
    at += bits;
  }
  return out;
}

std::uint32_t carried_ev(EvFormat format, const EvBytes& expanded) {
  return format == EvFormat::udp ? load16(expanded.data()) : load32(expanded.data());
}

EvBytes ev_bytes_of(EvFormat format, std::uint32_t carried) {
  EvBytes out{};
  if (format == EvFormat::udp) store16(out.data(), static_cast<std::uint16_t>(carried));
  else store32(out.data(), carried);
  return out;
}

std::optional<InvalidArgument> pack_stev(std::span<const std::uint8_t> widths, std::span<const std::uint32_t> values,
                                         std::uint32_t& ev) {
  if (auto invalid = validate_widths(widths)) return invalid;
  if (values.size() != widths.size())
    return InvalidArgument{"values", std::to_string(values.size()) + " entries",
                           std::to_string(widths.size()) + " entries"};
  std::uint64_t packed = 0;
  unsigned left = 32;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    if (values[i] > ones(widths[i]))
      return InvalidArgument{"values[" + std::to_string(i) + "]", std::to_string(values[i]), up_to(ones(widths[i]))};
    left -= widths[i];
    packed |= static_cast<std::uint64_t>(values[i]) << left;
  }
  ev = static_cast<std::uint32_t>(packed);
  return std::nullopt;
}

std::optional<InvalidArgument> unpack_stev(std::span<const std::uint8_t> widths, std::uint32_t ev,
                                           std::vector<std::uint32_t>& values) {
  if (auto invalid = validate_widths(widths)) return invalid;
  values.clear();
  unsigned left = 32;
  for (const std::uint8_t width : widths) {
    left -= width;
    values.push_back(static_cast<std::uint32_t>((static_cast<std::uint64_t>(ev) >> left) & ones(width)));
  }
  return std::nullopt;
}

Path path_of(const EvBytes& expanded) {
  Path path;
  std::memcpy(path.destination.data(), expanded.data(), 16);
  Ipv6 segment;
  std::memcpy(segment.data(), expanded.data() + 16, 16);
  if (segment == Ipv6{}) return path;
  Srh srh;
  srh.count = srh.segments_left = 1;
  srh.segments[0] = segment;
  path.srh = srh;
  return path;
}

std::optional<InvalidArgument> ev_of_path(const Path& path, EvBytes& out) {
  out = {};
  std::memcpy(out.data(), path.destination.data(), 16);
  if (!path.srh) return std::nullopt;
  if (path.srh->count != 1 || path.srh->segments_left != 1)
    return InvalidArgument{
        "path",
        std::to_string(path.srh->count) + " segments, " + std::to_string(path.srh->segments_left) + " of them left",
        "a destination and at most one segment, which is left"};
  std::memcpy(out.data() + 16, path.srh->segments[0].data(), 16);
  return std::nullopt;
}

}  // namespace softmrc::wire
