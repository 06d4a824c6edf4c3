#include "wire/pcapng.h"

#include <algorithm>

namespace softmrc::wire {
namespace {

constexpr std::uint32_t section_block = 0x0A0D0D0A;  // reads the same in either byte order
constexpr std::uint32_t interface_block = 1;
constexpr std::uint32_t simple_block = 3;
constexpr std::uint32_t enhanced_block = 6;
constexpr std::uint32_t byte_order_magic = 0x1A2B3C4D;
constexpr std::uint32_t pcap_magic_us = 0xA1B2C3D4;
constexpr std::uint32_t pcap_magic_ns = 0xA1B23C4D;

constexpr std::uint16_t opt_end = 0;
constexpr std::uint16_t opt_comment = 1;
constexpr std::uint16_t shb_application = 4;
constexpr std::uint16_t if_name = 2;
constexpr std::uint16_t if_description = 3;
constexpr std::uint16_t if_tsresol = 9;
constexpr std::uint16_t if_tsoffset = 14;
constexpr std::uint8_t nanoseconds = 9;

constexpr std::size_t padded(std::size_t n) { return (n + 3) & ~std::size_t{3}; }

// Builds one block. Its byte order is that of this machine (little-endian, see bytes.h), which readers learn from the
// section header.
class Block {
 public:
  Block(std::vector<std::uint8_t>& out, std::uint32_t type) : out_(out), start_(out.size()) {
    u32(type);
    u32(0);
  }
  // The total length goes both before and after the body, so that readers may walk backwards.
  void close() {
    const auto total = static_cast<std::uint32_t>(out_.size() - start_ + 4);
    std::memcpy(out_.data() + start_ + 4, &total, 4);
    u32(total);
  }
  Block& u16(std::uint16_t v) { return raw(&v, 2); }
  Block& u32(std::uint32_t v) { return raw(&v, 4); }
  Block& u64(std::uint64_t v) { return raw(&v, 8); }
  Block& data(Bytes bytes) {
    const std::size_t at = out_.size();
    out_.resize(at + padded(bytes.size()));
    std::copy(bytes.begin(), bytes.end(), out_.begin() + static_cast<std::ptrdiff_t>(at));
    return *this;
  }
  Block& option(std::uint16_t code, std::string_view value) {
    value = value.substr(0, 0xFFFF);
    u16(code).u16(static_cast<std::uint16_t>(value.size()));
    return data({reinterpret_cast<const std::uint8_t*>(value.data()), value.size()});
  }

 private:
  Block& raw(const void* p, std::size_t n) {
    const std::size_t at = out_.size();
    out_.resize(at + n);
    std::memcpy(out_.data() + at, p, n);
    return *this;
  }

  std::vector<std::uint8_t>& out_;
  std::size_t start_;
};

std::string text_of(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

// Ticks to nanoseconds. The high bit of `resolution` says that the rest is a power of two rather than of ten.
// Times beyond 64 bits wrap: such a capture is nonsense, but reading it must not be undefined.
std::uint64_t to_ns(std::uint64_t ticks, std::uint8_t resolution) {
  const unsigned exponent = resolution & 0x7F;
  if (resolution & 0x80) {
    if (exponent >= 64) return 0;
    const std::uint64_t whole = ticks >> exponent;
    const std::uint64_t part = exponent ? ticks & ((std::uint64_t{1} << exponent) - 1) : 0;
    // Only as many bits of the fraction as leave room for the multiplication.
    const unsigned spare = exponent > 34 ? exponent - 34 : 0;
    return whole * 1'000'000'000 + (((part >> spare) * 1'000'000'000) >> (exponent - spare));
  }
  for (unsigned i = exponent; i < nanoseconds; ++i) ticks *= 10;
  for (unsigned i = exponent; i > nanoseconds && ticks; --i) ticks /= 10;
  return ticks;
}

}  // namespace

PcapngWriter::PcapngWriter(std::string_view application) {
  Block block(bytes_, section_block);
  block.u32(byte_order_magic).u16(1).u16(0).u64(~std::uint64_t{0});  // version 1.0, length of the section unknown
  block.option(shb_application, application).option(opt_end, {}).close();
}

std::uint32_t PcapngWriter::add_interface(std::string_view name, std::string_view description, std::uint16_t linktype) {
  Block block(bytes_, interface_block);
  block.u16(linktype).u16(0).u32(0);  // no limit on the captured length
  block.option(if_name, name);
  if (!description.empty()) block.option(if_description, description);
  const char resolution = nanoseconds;
  block.option(if_tsresol, {&resolution, 1}).option(opt_end, {}).close();
  return interfaces_++;
}

bool PcapngWriter::write(std::uint32_t interface, std::uint64_t time_ns, Bytes frame, std::string_view comment,
                         std::optional<std::uint32_t> original_size) {
  if (interface >= interfaces_) return false;
  const auto size = static_cast<std::uint32_t>(frame.size());
  Block block(bytes_, enhanced_block);
  block.u32(interface).u32(static_cast<std::uint32_t>(time_ns >> 32)).u32(static_cast<std::uint32_t>(time_ns));
  block.u32(size).u32(original_size.value_or(size)).data(frame);
  if (!comment.empty()) block.option(opt_comment, comment).option(opt_end, {});
  block.close();
  return true;
}

std::uint16_t PcapngReader::u16(const std::uint8_t* p) const {
  const std::uint16_t big = load16(p);
  return big_endian_ ? big : static_cast<std::uint16_t>(big << 8 | big >> 8);
}

std::uint32_t PcapngReader::u32(const std::uint8_t* p) const {
  const std::uint32_t big = load32(p);
  return big_endian_ ? big : __builtin_bswap32(big);
}

bool PcapngReader::fail(std::string what) {
  error_ = std::move(what) + " at byte " + std::to_string(at_);
  return false;
}

bool PcapngReader::next(CaptureRecord& out) {
  if (!error_.empty()) return false;
  if (format_ == Format::unknown && !begin()) return false;
  return format_ == Format::pcapng ? next_pcapng(out) : next_pcap(out);
}

bool PcapngReader::begin() {
  if (bytes_.size() < 4) return fail("not a capture: shorter than a file's first word");
  const std::uint32_t first = load32(bytes_.data());
  if (first == section_block) {
    format_ = Format::pcapng;
    return true;
  }
  const std::uint32_t swapped = __builtin_bswap32(first);
  big_endian_ = first == pcap_magic_us || first == pcap_magic_ns;
  if (!big_endian_ && swapped != pcap_magic_us && swapped != pcap_magic_ns)
    return fail("not a capture: the file begins like neither pcapng nor pcap,");
  if (bytes_.size() < 24) return fail("truncated: the pcap file header ends early");
  nanoseconds_ = (big_endian_ ? first : swapped) == pcap_magic_ns;
  CaptureInterface only;
  only.snap_length = u32(bytes_.data() + 16);
  only.linktype = static_cast<std::uint16_t>(u32(bytes_.data() + 20));
  interfaces_.push_back(only);
  format_ = Format::pcap;
  at_ = 24;
  return true;
}

bool PcapngReader::next_pcap(CaptureRecord& out) {
  if (at_ == bytes_.size()) return false;
  if (bytes_.size() - at_ < 16) return fail("truncated: a packet header ends early");
  const std::uint8_t* p = bytes_.data() + at_;
  const std::uint32_t size = u32(p + 8);
  if (size > bytes_.size() - at_ - 16) return fail("truncated: a packet ends early");
  out = {};
  out.time_ns = std::uint64_t{u32(p)} * 1'000'000'000 + std::uint64_t{u32(p + 4)} * (nanoseconds_ ? 1 : 1000);
  out.frame = bytes_.subspan(at_ + 16, size);
  out.original_size = u32(p + 12);
  at_ += 16 + size;
  return true;
}

// Walks over blocks until one is a packet. Blocks of unknown type are skipped, as the format asks of its readers.
bool PcapngReader::next_pcapng(CaptureRecord& out) {
  while (at_ < bytes_.size()) {
    const Bytes rest = bytes_.subspan(at_);
    if (rest.size() < 12) return fail("truncated: a block header ends early");
    if (load32(rest.data()) == section_block && !read_section(rest)) return false;
    const std::uint32_t type = u32(rest.data());
    const std::size_t total = u32(rest.data() + 4);
    if (total < 12 || total % 4 != 0) return fail("a block of impossible length " + std::to_string(total));
    if (total > rest.size()) return fail("truncated: a block ends early");
    if (u32(rest.data() + total - 4) != total) return fail("a block whose two lengths differ");
    const Bytes body = rest.subspan(8, total - 12);
    bool is_packet = false;
    if (type == interface_block && !read_interface(body)) return false;
    if (type == enhanced_block) is_packet = read_enhanced(body, out);
    if (type == simple_block) is_packet = read_simple(body, out);
    if (!error_.empty()) return false;
    at_ += total;
    if (is_packet) return true;
  }
  return false;
}

bool PcapngReader::read_section(Bytes block) {
  if (block.size() < 28) return fail("truncated: a section header ends early");
  const std::uint32_t magic = load32(block.data() + 8);
  big_endian_ = magic == byte_order_magic;
  if (!big_endian_ && __builtin_bswap32(magic) != byte_order_magic)
    return fail("a section header without a byte order");
  if (const unsigned major = u16(block.data() + 12); major != 1)
    return fail("pcapng version " + std::to_string(major) + ", which is not known here,");
  section_interfaces_ = interfaces_.size();
  return true;
}

bool PcapngReader::next_option(Bytes& rest, Option& out) {
  if (rest.size() < 4) return false;
  out.code = u16(rest.data());
  const std::size_t size = u16(rest.data() + 2);
  if (out.code == opt_end || size > rest.size() - 4) return false;
  out.value = rest.subspan(4, size);
  rest = rest.subspan(std::min(rest.size(), 4 + padded(size)));
  return true;
}

bool PcapngReader::read_interface(Bytes body) {
  if (body.size() < 8) return fail("an interface block that is too short");
  CaptureInterface made;
  made.linktype = u16(body.data());
  made.snap_length = u32(body.data() + 4);
  Bytes rest = body.subspan(8);
  for (Option option; next_option(rest, option);) {
    if (option.code == if_name) made.name = text_of(option.value);
    if (option.code == if_description) made.description = text_of(option.value);
    if (option.code == if_tsresol && option.value.size() == 1) made.resolution = option.value[0];
    if (option.code == if_tsoffset && option.value.size() == 8) {
      const std::uint64_t big = load64(option.value.data());
      made.offset_s = static_cast<std::int64_t>(big_endian_ ? big : __builtin_bswap64(big));
    }
  }
  interfaces_.push_back(std::move(made));
  return true;
}

bool PcapngReader::read_enhanced(Bytes body, CaptureRecord& out) {
  if (body.size() < 20) return fail("a packet block that is too short");
  const std::size_t interface = u32(body.data());
  if (interface >= interfaces_.size() - section_interfaces_)
    return fail("a packet of interface " + std::to_string(interface) + ", which the section does not have,");
  const std::uint32_t size = u32(body.data() + 12);
  if (size > body.size() - 20) return fail("a packet longer than its block");
  out = {};
  out.interface = static_cast<std::uint32_t>(section_interfaces_ + interface);
  const CaptureInterface& from = interfaces_[out.interface];
  const std::uint64_t ticks = std::uint64_t{u32(body.data() + 4)} << 32 | u32(body.data() + 8);
  out.time_ns = to_ns(ticks, from.resolution) + static_cast<std::uint64_t>(from.offset_s) * 1'000'000'000;
  out.frame = body.subspan(20, size);
  out.original_size = u32(body.data() + 16);
  Bytes rest = body.subspan(std::min(body.size(), 20 + padded(size)));
  for (Option option; next_option(rest, option);)
    if (option.code == opt_comment) out.comment = text_of(option.value);
  return true;
}

// A simple packet knows neither time nor interface: it is the first one's. Its length is cut by that one's limit.
bool PcapngReader::read_simple(Bytes body, CaptureRecord& out) {
  if (body.size() < 4) return fail("a packet block that is too short");
  if (interfaces_.size() == section_interfaces_) return fail("a packet before any interface");
  out = {};
  out.interface = static_cast<std::uint32_t>(section_interfaces_);
  out.original_size = u32(body.data());
  const std::uint32_t limit = interfaces_[section_interfaces_].snap_length;
  const std::uint32_t size = limit ? std::min(out.original_size, limit) : out.original_size;
  if (size > body.size() - 4) return fail("a packet longer than its block");
  out.frame = body.subspan(4, size);
  return true;
}

}  // namespace softmrc::wire
