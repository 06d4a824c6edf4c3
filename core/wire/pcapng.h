// Capture files. Writes pcapng: one section, one interface per plane, nanoseconds. Reads pcapng of either byte order,
// and the older pcap format, which is what tcpdump writes unless asked. Bytes in, bytes out; files are opened above.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "wire/bytes.h"

namespace softmrc::wire {

constexpr std::uint16_t linktype_ethernet = 1;
constexpr std::uint16_t linktype_raw = 101;

// What an interface is described as all of whose UDP packets are MRC's: no other port than theirs was listened at.
constexpr std::string_view mrc_on_any_port = "MRC on any UDP port";

class PcapngWriter {
 public:
  // The section header is written at once, so that even a capture without packets is a capture.
  explicit PcapngWriter(std::string_view application = "softmrc");

  // Returns the interface's number. All interfaces may be added at any time before their first packet.
  std::uint32_t add_interface(std::string_view name, std::string_view description = {},
                              std::uint16_t linktype = linktype_ethernet);
  // False: no such interface. `original_size` is the length on the wire where `frame` is only its beginning.
  bool write(std::uint32_t interface, std::uint64_t time_ns, Bytes frame, std::string_view comment = {},
             std::optional<std::uint32_t> original_size = std::nullopt);

  std::uint32_t interfaces() const { return interfaces_; }
  Bytes bytes() const { return bytes_; }
  // Hands over what was written since the last take.
  std::vector<std::uint8_t> take() { return std::exchange(bytes_, {}); }

 private:
  std::vector<std::uint8_t> bytes_;
  std::uint32_t interfaces_ = 0;
};

struct CaptureInterface {
  std::string name;
  std::string description;
  std::uint16_t linktype = linktype_ethernet;
  std::uint32_t snap_length = 0;  // 0: no limit
  std::uint8_t resolution = 6;    // if_tsresol, as it stands in the file
  std::int64_t offset_s = 0;
};

// One packet; `frame` points into the bytes that the reader was given.
struct CaptureRecord {
  std::uint32_t interface = 0;  // index into PcapngReader::interfaces(), across all sections
  std::uint64_t time_ns = 0;
  Bytes frame;
  std::uint32_t original_size = 0;
  std::string comment;
};

class PcapngReader {
 public:
  // The bytes must outlive the reader and its records.
  explicit PcapngReader(Bytes bytes) : bytes_(bytes) {}

  // False at the end, or at the first thing that cannot be read; then error() says what and where.
  bool next(CaptureRecord& out);
  const std::string& error() const { return error_; }
  const std::vector<CaptureInterface>& interfaces() const { return interfaces_; }

 private:
  struct Option {
    std::uint16_t code = 0;
    Bytes value;
  };

  bool begin();
  bool next_pcapng(CaptureRecord& out);
  bool next_pcap(CaptureRecord& out);
  bool read_section(Bytes block);
  bool read_interface(Bytes body);
  bool read_enhanced(Bytes body, CaptureRecord& out);
  bool read_simple(Bytes body, CaptureRecord& out);
  // Takes the option at the front of `rest`; false when there is none left or it does not fit.
  bool next_option(Bytes& rest, Option& out);
  bool fail(std::string what);

  std::uint16_t u16(const std::uint8_t* p) const;
  std::uint32_t u32(const std::uint8_t* p) const;

  enum class Format : std::uint8_t { unknown, pcapng, pcap };

  Bytes bytes_;
  std::size_t at_ = 0;
  Format format_ = Format::unknown;
  bool big_endian_ = false;
  bool nanoseconds_ = false;            // of a pcap file
  std::size_t section_interfaces_ = 0;  // where this section's interfaces begin
  std::vector<CaptureInterface> interfaces_;
  std::string error_;
};

}  // namespace softmrc::wire
