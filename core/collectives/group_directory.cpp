#include "collectives/group_directory.h"

#include <algorithm>

namespace softmrc::collectives {

std::uint64_t GroupDirectory::number_of(Use use, std::uint32_t channel, std::uint32_t from, std::uint32_t to) const {
  return sip_hash(params.key, std::uint64_t{static_cast<std::uint8_t>(use)} << 56 | std::uint64_t{channel} << 48 |
                                  std::uint64_t{from} << 24 | to);
}

Psn GroupDirectory::first_psn(std::uint32_t channel, std::uint32_t from, std::uint32_t to, bool is_bulk) const {
  return Psn(static_cast<std::uint32_t>(number_of(is_bulk ? Use::bulk : Use::messages, channel, from, to)) & Psn::mask);
}

proto::RtrAttributes GroupDirectory::receiving(std::uint32_t channel, std::uint32_t peer, bool is_bulk,
                                               std::uint32_t node) const {
  proto::RtrAttributes rtr = params.receiving;
  rtr.peer = node;
  rtr.dest_qpn = members[peer].ends[channel].qpn(rank, is_bulk);
  rtr.first_psn = first_psn(channel, peer, rank, is_bulk);
  rtr.port_key = std::max<std::uint64_t>(1, number_of(Use::port_key, channel, rank, peer));
  rtr.peer_port_key = std::max<std::uint64_t>(1, number_of(Use::port_key, channel, peer, rank));
  return rtr;
}

proto::RtsAttributes GroupDirectory::sending(std::uint32_t channel, std::uint32_t peer, bool is_bulk) const {
  proto::RtsAttributes rts = params.sending;
  rts.first_psn = first_psn(channel, rank, peer, is_bulk);
  rts.mpr = members[peer].mpr;
  rts.max_wimm = members[peer].max_wimm;
  return rts;
}

}  // namespace softmrc::collectives
