#include "host/offer.h"

#include <algorithm>
#include <set>

#include "host/handshake.h"
#include "proto/config.h"
#include "udp/socket.h"

namespace softmrc::host {
namespace {

[[noreturn]] void refuse(const std::string& why) {
  throw HandshakeRefused("sent an offer that makes no sense: " + why, "your offer makes no sense: " + why);
}

template <typename T>
T within(const std::string& what, T value, std::uint64_t least, std::uint64_t most) {
  if (value < least || value > most)
    refuse(what + " = " + std::to_string(value) + " is not allowed: a whole number from " + std::to_string(least) +
           " to " + std::to_string(most));
  return value;
}

template <typename T>
T number(ByteReader& in, const std::string& what, std::uint64_t least, std::uint64_t most) {
  return within(what, in.number<T>(), least, most);
}

struct Prefix {
  wire::Ipv6 bytes;
  unsigned bits;
};

constexpr Prefix no_hosts[] = {
    {{}, 80},                                          // unspecified, and IPv4-compatible
    {{0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF}, 96},        // IPv4-translated
    {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF}, 96},  // IPv4-mapped
    {{0, 0x64, 0xFF, 0x9B}, 96},                       // NAT64
    {{0x20, 0x01}, 32},                                // Teredo
    {{0x20, 0x02}, 16},                                // 6to4
    {{0xFF}, 8},                                       // multicast
};

bool is_in(const wire::Ipv6& address, const Prefix& prefix) {
  for (unsigned bit = 0; bit < prefix.bits; ++bit)
    if ((address[bit / 8] ^ prefix.bytes[bit / 8]) >> (7 - bit % 8) & 1) return false;
  return true;
}

udp::PeerPlane decode_plane(ByteReader& in, const std::string& name) {
  udp::PeerPlane plane;
  if (number<std::uint8_t>(in, name + ".family", 0, 1)) {
    wire::Ipv4 v4;
    std::ranges::copy(in.raw(v4.size()), v4.begin());
    plane.address = v4;
  } else {
    wire::Ipv6 v6;
    std::ranges::copy(in.raw(v6.size()), v6.begin());
    plane.address = v6;
  }
  if (!is_address_of_host(plane.address))
    refuse(name + ".address = " + udp::text_of(plane.address) +
           " is not allowed: the unicast address of a host, and no IPv4 address inside an IPv6 one");
  plane.port = number<std::uint16_t>(in, name + ".port", 1, 0xFFFF);
  const auto ports = number<std::uint16_t>(in, name + ".source_ports", 1, udp::max_sockets);
  for (std::uint16_t i = 0; i < ports; ++i)
    plane.source_ports.push_back(number<std::uint16_t>(in, name + ".source_ports", 1, 0xFFFF));
  if (std::ranges::find(plane.source_ports, plane.port) == plane.source_ports.end())
    refuse(name + ".source_ports lacks its port " + std::to_string(plane.port));
  return plane;
}

using Place = std::pair<wire::Ipv6, std::uint16_t>;

void decode_qp(ByteReader& in, std::size_t n, Offer& offer) {
  const std::string name = "qps[" + std::to_string(n) + "]";
  OfferedQp& qp = offer.qps.emplace_back();
  qp.qpn = number<std::uint32_t>(in, name + ".qpn", 3, 0xFFFFFF);
  qp.first_psn = number<std::uint32_t>(in, name + ".first_psn", 0, Psn::mask);
  qp.port_key = in.number<std::uint64_t>();
  const auto planes = number<std::uint8_t>(in, name + ".planes", 1, max_planes);
  std::set<Place> places;
  std::size_t ports = 0;
  for (std::uint8_t p = 0; p < planes; ++p) {
    qp.planes.push_back(decode_plane(in, name + ".planes[" + std::to_string(p) + "]"));
    for (const std::uint16_t port : qp.planes.back().source_ports)
      places.insert({qp.planes.back().address.bytes, port});
    ports += qp.planes.back().source_ports.size();
  }
  if (places.size() != ports) refuse(name + ".planes has an address and port twice");
}

OfferedRegion decode_region(ByteReader& in, std::size_t n) {
  const std::string name = "regions[" + std::to_string(n) + "]";
  OfferedRegion region;
  region.va = in.number<std::uint64_t>();
  region.length = number<std::uint64_t>(in, name + ".length", 1, std::uint64_t{1} << 63);
  region.rkey = in.number<std::uint32_t>();
  if (region.va + (region.length - 1) < region.va) refuse(name + " ends after 2^64");
  return region;
}

}  // namespace

bool is_address_of_host(const wire::Address& address) {
  const wire::Ipv6& bytes = address.bytes;
  if (address.is_v4) return bytes[0] != 0 && bytes[0] < 224;
  constexpr wire::Ipv6 loopback{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  return bytes == loopback || std::ranges::none_of(no_hosts, [&](const Prefix& one) { return is_in(bytes, one); });
}

Bytes encode(const Offer& offer) {
  ByteWriter out;
  out.number(offer.mtu);
  out.number(static_cast<std::uint8_t>(offer.icrc));
  out.number(static_cast<std::uint8_t>(offer.is_encrypted));
  out.number(static_cast<std::uint8_t>(offer.cipher));
  out.number(offer.max_wimm);
  out.number(offer.mpr);
  out.number(static_cast<std::uint8_t>(offer.qps.size()));
  for (const OfferedQp& qp : offer.qps) {
    out.number(qp.qpn);
    out.number(qp.first_psn);
    out.number(qp.port_key);
    out.number(static_cast<std::uint8_t>(qp.planes.size()));
    for (const udp::PeerPlane& plane : qp.planes) {
      out.number(static_cast<std::uint8_t>(plane.address.is_v4));
      out.raw({plane.address.bytes.data(), plane.address.size()});
      out.number(plane.port);
      out.number(static_cast<std::uint16_t>(plane.source_ports.size()));
      for (const std::uint16_t port : plane.source_ports) out.number(port);
    }
  }
  out.number(static_cast<std::uint16_t>(offer.regions.size()));
  for (const OfferedRegion& region : offer.regions) {
    out.number(region.va);
    out.number(region.length);
    out.number(region.rkey);
  }
  out.raw(offer.more);
  return out.take();
}

Offer decode_offer(std::span<const std::uint8_t> bytes) {
  ByteReader in(bytes);
  Offer offer;
  try {
    offer.mtu = number<std::uint32_t>(in, "mtu", smallest_mtu, largest_mtu);
    offer.icrc = number<std::uint8_t>(in, "icrc", 0, 1);
    offer.is_encrypted = number<std::uint8_t>(in, "encrypted", 0, 1);
    offer.cipher = static_cast<crypto::Cipher>(number<std::uint8_t>(in, "cipher", 0, 1));
    offer.max_wimm = number<std::uint32_t>(in, "max_wimm", 1, 16'384);
    offer.mpr = number<std::uint32_t>(in, "mpr", proto::smallest_mpr, 255);
    const auto qps = number<std::uint8_t>(in, "qps", 1, max_offered_qps);
    for (std::uint8_t i = 0; i < qps; ++i) decode_qp(in, i, offer);
    const auto regions = number<std::uint16_t>(in, "regions", 0, max_offered_regions);
    for (std::uint16_t i = 0; i < regions; ++i) offer.regions.push_back(decode_region(in, i));
  } catch (const HandshakeRefused&) {
    throw;
  } catch (const HostError& why) {
    refuse(std::string("it ") + why.what());
  }
  const auto more = in.rest();
  offer.more.assign(more.begin(), more.end());
  return offer;
}

void check_offer(const Offer& offer, const LocalEnd& own) {
  const auto differ = [](const std::string& both) { throw HandshakeRefused("does not match: " + both, both); };
  if (offer.icrc != own.icrc) differ("ICRC is on at one side and off at the other; set icrc alike");
  if (offer.is_encrypted != own.is_encrypted)
    differ("packets are encrypted at one side and not at the other; set seal alike");
  std::set<Place> places;
  for (const udp::PeerPlane& plane : own.reached_at)
    for (const std::uint16_t port : plane.source_ports) places.insert({plane.address.bytes, port});
  for (const OfferedQp& qp : offer.qps) {
    if (qp.planes.size() != own.planes.size())
      differ("the connecting sides have " + counted(qp.planes.size(), "plane") + " and " +
             counted(own.planes.size(), "plane") + "; name as many on every host (SOFTMRC_PLANES)");
    for (std::size_t p = 0; p < own.planes.size(); ++p) {
      const wire::Address &theirs = qp.planes[p].address, &ours = own.planes[p].address;
      if (theirs.is_v4 != ours.is_v4) differ("a plane is IPv4 on one side and IPv6 on the other");
      if (is_loopback(theirs) != is_loopback(ours))
        differ("plane " + std::to_string(p) + " is at " + udp::text_of(theirs) + " and at " + udp::text_of(ours) +
               ": only one is on loopback");
      for (const std::uint16_t port : qp.planes[p].source_ports)
        if (places.contains({theirs.bytes, port}))
          differ(
              "the offer names this side's own address and port: a device does not connect to itself, make a "
              "second one");
    }
  }
}

}  // namespace softmrc::host
