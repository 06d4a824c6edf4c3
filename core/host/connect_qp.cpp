#include "host/connect_qp.h"

#include <algorithm>

#include "crypto/cipher_choice.h"
#include "host/sealing.h"
#include "proto/views.h"
#include "wire/entropy.h"

namespace softmrc::host {
namespace {

// Switches shorten a carrier in flight without rewriting the UDP checksum; a socket writes no routing header.
proto::MaybeError check_carriers(proto::Endpoint& engine, std::uint32_t qpn, std::span<const udp::PeerPlane> planes) {
  const proto::QueuePair* const pair = engine.qp(qpn);
  if (!pair || !pair->ev_profile().is_wide()) return {};
  const auto values = proto::view_ev_values(engine, qpn);
  const auto views = proto::view_evs(engine, qpn);
  for (std::size_t i = 0; values && views && i < values->size(); ++i) {
    const wire::Path path = wire::path_of((*values)[i]);
    const std::uint8_t plane = (*views)[i].port;
    if (path.srh || plane >= planes.size() ||
        udp::address_sum(path.destination) != udp::address_sum(planes[plane].address.bytes))
      return proto::Error{proto::Error::Kind::config, "ev_profile.entries", "a path to another host",
                          "paths of one carrier that leaves the checksum towards the peer as it is"};
  }
  return {};
}

}  // namespace

std::uint32_t payload_with(std::uint32_t own_mtu, const Offer& theirs) {
  return std::min(own_mtu, theirs.mtu) / payload_unit * payload_unit;
}

proto::MaybeError connect_qp(udp::Device& device, const DeviceSettings& settings, const LocalQp& end,
                             const Offer& theirs, std::size_t number, const QpTerms& terms) {
  const OfferedQp& far = theirs.qps.at(number);
  udp::Lane& lane = device.lane_of(end.qpn);
  auto problem = lane.with_engine([&](proto::Endpoint& engine, Time) {
    for (std::uint32_t n = 0; n < terms.receives; ++n) engine.post_receive(end.qpn, 0);
    return check_carriers(engine, end.qpn, far.planes);
  });
  if (problem) return problem;
  proto::RtrAttributes rtr;
  rtr.peer = end.peer;
  rtr.dest_qpn = far.qpn;
  rtr.first_psn = Psn(far.first_psn);
  rtr.mtu = payload_with(terms.mtu, theirs);
  rtr.mpr_dest = settings.mpr;
  rtr.max_wimm_dest = settings.max_wimm;
  if (far.port_key) {
    rtr.port_key = end.port_key;
    rtr.peer_port_key = far.port_key;
  }
  udp::SealKeys keys;
  if (terms.root)
    keys = packet_keys(*terms.root, terms.is_connector, {crypto::faster_cipher(), end.qpn}, {theirs.cipher, far.qpn});
  if ((problem = device.modify_rtr(end.qpn, rtr, terms.root ? &keys : nullptr))) return problem;
  proto::RtsAttributes rts;
  rts.first_psn = Psn(end.first_psn);
  rts.max_wimm = std::min(settings.max_wimm, theirs.max_wimm);
  rts.mpr = std::min(settings.mpr, theirs.mpr);
  rts.timeout = settings.timeout;
  rts.retry_linear = settings.retry_linear;
  rts.retry_exponential = settings.retry_exponential;
  rts.max_send_wr = settings.max_send_wr;
  return lane.with_engine([&](proto::Endpoint& engine, Time now) { return engine.modify_rts(now, end.qpn, rts); });
}

}  // namespace softmrc::host
