#include "wire/entropy.h"

namespace softmrc::wire {
namespace {

constexpr std::uint32_t ones(unsigned width) { return width >= 32 ? ~0u : (1u << width) - 1; }

std::string up_to(std::uint32_t most) { return "0 to " + std::to_string(most); }

Invalid invalid_field(std::size_t i, const char* member, std::uint64_t value, std::string allowed) {
  return {"fields[" + std::to_string(i) + "]." + member, std::to_string(value), std::move(allowed)};
}

std::optional<Invalid> validate_field(std::size_t i, const EvField& f) {
  if (f.width == 0 || f.width > max_field_bits) return invalid_field(i, "width", f.width, "1 to 32 bits");
  const std::uint32_t most = ones(f.width);
  if (f.init_val > most) return invalid_field(i, "init_val", f.init_val, up_to(most));
  if (f.mask > most) return invalid_field(i, "mask", f.mask, up_to(most));
  if (f.max > most) return invalid_field(i, "max", f.max, up_to(most));
  if (f.min > f.max) return invalid_field(i, "min", f.min, up_to(f.max) + ", no more than max");
  return std::nullopt;
}

// Appends the low `width` bits of `value`, most significant first.
void append_bits(EvValue& out, unsigned& at, std::uint32_t value, unsigned width) {
  for (unsigned i = width; i; --i, ++at)
    if ((value >> (i - 1)) & 1) out.bytes[at / 8] = static_cast<std::uint8_t>(out.bytes[at / 8] | 0x80u >> at % 8);
}

std::optional<Invalid> validate_widths(std::span<const std::uint8_t> widths) {
  unsigned total = 0;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    if (widths[i] == 0 || widths[i] > 32)
      return Invalid{"widths[" + std::to_string(i) + "]", std::to_string(widths[i]), "1 to 32 bits"};
    total += widths[i];
  }
  if (widths.empty() || total > 32) return Invalid{"widths", std::to_string(total) + " bits", "1 to 32 bits in all"};
  return std::nullopt;
}

}  // namespace

unsigned entropy_bits(std::span<const EvField> fields) {
  unsigned bits = 0;
  for (const EvField& f : fields) bits += static_cast<unsigned>(std::popcount(f.mask));
  return bits;
}

std::optional<Invalid> validate(std::span<const EvField> fields, unsigned format_bits, unsigned ev_bits) {
  if (format_bits == 0 || format_bits > max_entry_bits)
    return Invalid{"format_bits", std::to_string(format_bits), "1 to 256; an entry is at most 32 bytes"};
  if (ev_bits > 32) return Invalid{"ev_bits", std::to_string(ev_bits), up_to(32)};
  unsigned total = 0;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (auto invalid = validate_field(i, fields[i])) return invalid;
    total += fields[i].width;
  }
  if (total > format_bits)
    return Invalid{"fields", std::to_string(total) + " bits", "at most the format's " + std::to_string(format_bits)};
  if (const unsigned used = entropy_bits(fields); used > ev_bits)
    return Invalid{"fields", std::to_string(used) + " mask bits", "at most the EV's " + std::to_string(ev_bits)};
  return std::nullopt;
}

std::optional<Invalid> expand(std::uint32_t ev, std::span<const EvField> fields, unsigned format_bits, EvValue& out,
                              unsigned ev_bits) {
  if (auto invalid = validate(fields, format_bits, ev_bits)) return invalid;
  if (ev > ones(ev_bits)) return Invalid{"ev", std::to_string(ev), up_to(ones(ev_bits))};
  out = {};
  out.bits = format_bits;
  unsigned at = 0;
  unsigned next = ev_bits;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const EvField& f = fields[i];
    std::uint32_t value = f.init_val;
    for (unsigned bit = f.width; bit--;) {
      if (!((f.mask >> bit) & 1)) continue;
      --next;
      value = (value & ~(1u << bit)) | ((ev >> next) & 1) << bit;
    }
    if (value < f.min || value > f.max)
      return invalid_field(i, "value", value, std::to_string(f.min) + " to " + std::to_string(f.max));
    append_bits(out, at, value, f.width);
  }
  return std::nullopt;
}

std::optional<Invalid> pack_stev(std::span<const std::uint8_t> widths, std::span<const std::uint32_t> values,
                                 std::uint32_t& ev) {
  if (auto invalid = validate_widths(widths)) return invalid;
  if (values.size() != widths.size())
    return Invalid{"values", std::to_string(values.size()) + " entries", std::to_string(widths.size()) + " entries"};
  std::uint64_t packed = 0;
  unsigned left = 32;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    if (values[i] > ones(widths[i]))
      return Invalid{"values[" + std::to_string(i) + "]", std::to_string(values[i]), up_to(ones(widths[i]))};
    left -= widths[i];
    packed |= static_cast<std::uint64_t>(values[i]) << left;
  }
  ev = static_cast<std::uint32_t>(packed);
  return std::nullopt;
}

std::optional<Invalid> unpack_stev(std::span<const std::uint8_t> widths, std::uint32_t ev,
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

const Path* path_of(std::uint32_t ev, std::span<const Path> paths) { return ev < paths.size() ? &paths[ev] : nullptr; }

std::optional<std::uint32_t> ev_of_path(const Path& path, std::span<const Path> paths) {
  for (std::size_t i = 0; i < paths.size(); ++i)
    if (paths[i] == path) return static_cast<std::uint32_t>(i);
  return std::nullopt;
}

}  // namespace softmrc::wire
