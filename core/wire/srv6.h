// SRv6 compressed segments (uSID, format F3216): a path written into an IPv6 destination address.
//
//    0              32      48      64      80      96     112     128
//    +---------------+-------+-------+-------+-------+-------+-------+
//    |     block     | uSID1 | uSID2 | uSID3 | uSID4 | uSID5 | uSID6 |   a carrier; a zero uSID ends it
//    +---------------+-------+-------+-------+-------+-------+-------+
//
// A switch whose route matches the first 48 bits (uN: the block and its own uSID) shifts everything after the block
// left by 16 bits, fills with zero, and looks the new first 48 bits up. When nothing is left in the carrier, the next
// carrier comes out of the segment routing header (SRH). Decides the bytes of a path; which path is the caller's.
// spec: usid-carrier usid-shift
#pragma once

#include <optional>
#include <vector>

#include "wire/invalid.h"
#include "wire/route.h"

namespace softmrc::wire {

constexpr std::size_t max_usids = 6;     // in one carrier
constexpr std::size_t max_segments = 8;  // in one SRH: 48 uSIDs or more is no path that we know
constexpr std::uint8_t srh_protocol = 43;

struct Carrier {
  std::uint32_t block = 0;
  std::uint8_t count = 0;
  std::array<std::uint16_t, max_usids> usids{};

  bool operator==(const Carrier&) const = default;
};

// Up to six uSIDs behind a block. None of them is zero, since zero ends the carrier.
std::optional<InvalidArgument> build_carrier(std::uint32_t block, std::span<const std::uint16_t> usids, Ipv6& out);
// The uSIDs up to the first zero. Whatever follows a zero is not a uSID (it may be a host part) and is not reported.
Carrier split_carrier(const Ipv6& address);

// uN: does a route to `block` and `usid` match, and what is the address after the shift.
bool matches_usid(const Ipv6& address, std::uint32_t block, std::uint16_t usid);
Ipv6 shift_carrier(const Ipv6& address);

// The segment routing header, without TLVs.
//
//    +---------------+---------------+---------------+---------------+
//  0 |  next header  |  length / 8   |   type = 4    | segments left |
//    +---------------+---------------+---------------+---------------+
//  4 |  last entry   |     flags     |              tag              |
//    +---------------+---------------+-------------------------------+
//  8 |       segments, 16 bytes each, the last one of the path first |
//    +---------------------------------------------------------------+
struct Srh {
  std::uint8_t next_header = 41;
  std::uint8_t segments_left = 0;
  std::uint8_t flags = 0;
  std::uint16_t tag = 0;
  std::uint8_t count = 0;
  std::array<Ipv6, max_segments> segments{};  // in the order of the wire

  bool operator==(const Srh&) const = default;
  std::size_t size() const { return 8 + 16u * count; }
};

enum class SrhError : std::uint8_t { none, truncated, not_srh, too_many_segments, bad_length, bad_segments_left };

// Reads the SRH at the front of `bytes`; `size` is how many bytes it took, TLVs (which are skipped) included.
[[nodiscard]] SrhError parse_srh(Bytes bytes, Srh& out, std::size_t& size);
// Writes srh.size() bytes.
void emit_srh(const Srh& srh, std::uint8_t* out);

// Where an outer header points, and what it carries to go on from there.
struct Path {
  Ipv6 destination{};
  std::optional<Srh> srh;

  bool operator==(const Path&) const = default;
};

// A path of any length: the first six uSIDs in the destination, the rest in carriers of an SRH. The SRH is "reduced":
// the first carrier is not repeated in it, as with the kernel's encap.red.
std::optional<InvalidArgument> build_path(std::uint32_t block, std::span<const std::uint16_t> usids, Path& out);
// All uSIDs still ahead, in the order of travel.
std::vector<std::uint16_t> path_usids(const Path& path);
// What a uN switch does to a path that has reached it. False: the path ends here.
bool advance_path(Path& path);

constexpr std::uint32_t ones(unsigned width) { return width >= 32 ? ~0u : (1u << width) - 1; }

// A path computed from a template of one destination (T0 | T1 | T0 | dst): the plane goes into every uSID (or into the
// block, one block a plane), the number of the T0's uplink into the uSID of the T1.
struct BitField {
  std::uint8_t shift = 0;  // of the lowest bit
  std::uint8_t width = 0;  // 0: the field is not there

  bool operator==(const BitField&) const = default;
};

struct PathTemplate {
  std::uint32_t block = 0;
  std::array<std::uint16_t, max_usids> usids{};
  std::uint8_t count = 0;
  BitField plane_in_usid;  // the same place in every uSID
  BitField plane_in_block;
  BitField uplink_in_t1;
  std::uint8_t t1 = 1;  // which uSID is the T1's, counting from 0
};

std::optional<InvalidArgument> validate(const PathTemplate& path);
// `plane` and `uplink` replace the bits of their fields.
std::optional<InvalidArgument> computed_destination(const PathTemplate& path, std::uint32_t plane, std::uint32_t uplink,
                                                    Ipv6& out);

}  // namespace softmrc::wire
