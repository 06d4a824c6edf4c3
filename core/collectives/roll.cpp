#include "collectives/roll.h"

#include <algorithm>

namespace softmrc::collectives {

std::uint64_t Roll::number_of(Use use, std::uint32_t strand, std::uint32_t from, std::uint32_t to) const {
  return sip_hash(terms.key, std::uint64_t{static_cast<std::uint8_t>(use)} << 56 | std::uint64_t{strand} << 48 | std::uint64_t{from} << 24 | to);
}

Psn Roll::first_psn(std::uint32_t strand, std::uint32_t from, std::uint32_t to, bool is_bulk) const {
  return Psn(static_cast<std::uint32_t>(number_of(is_bulk ? Use::bulk : Use::messages, strand, from, to)) & Psn::mask);
}

proto::RtrAttributes Roll::receiving(std::uint32_t strand, std::uint32_t peer, bool is_bulk, std::uint32_t node) const {
  proto::RtrAttributes rtr = terms.receiving;
  rtr.peer = node;
  rtr.dest_qpn = members[peer].ends[strand].qpn(rank, is_bulk);
  rtr.first_psn = first_psn(strand, peer, rank, is_bulk);
  rtr.port_key = std::max<std::uint64_t>(1, number_of(Use::port_key, strand, rank, peer));
  rtr.peer_port_key = std::max<std::uint64_t>(1, number_of(Use::port_key, strand, peer, rank));
  return rtr;
}

proto::RtsAttributes Roll::sending(std::uint32_t strand, std::uint32_t peer, bool is_bulk) const {
  proto::RtsAttributes rts = terms.sending;
  rts.first_psn = first_psn(strand, rank, peer, is_bulk);
  rts.mpr = members[peer].mpr;
  rts.max_wimm = members[peer].max_wimm;
  return rts;
}

}  // namespace softmrc::collectives
