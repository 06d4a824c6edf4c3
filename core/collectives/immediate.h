// What the 32 bits of an immediate and the 64 of a work request mean here.
//
//   immediate      bit 31 clear: a slice; 19 bits of the collective's number, 12 of the transfer's index
//                  bit 31 set: the end of a send; 31 bits of its offer's number
//   work request   bit 63: a posted receive; bits 32..: the peer, bit 0: of the bulk queue pair
//                  bit 62: a send's data; the offer's number
//                  else a collective's transfer: number, and index of the outbound transfer
#pragma once

#include <cstdint>

namespace softmrc::collectives {

constexpr std::uint32_t max_transfers = 1u << 12;  // from one rank to another in one collective
constexpr std::uint32_t number_mask = (1u << 19) - 1;
constexpr std::uint32_t send_bit = 1u << 31;
constexpr std::uint64_t receive_mark = 1ull << 63;
constexpr std::uint64_t send_mark = 1ull << 62;

constexpr std::uint32_t immediate_of(std::uint32_t number, std::uint32_t index) {
  return (number & number_mask) << 12 | index;
}
constexpr bool is_immediate_of(std::uint32_t imm, std::uint32_t number) {
  return (imm >> 12 & number_mask) == (number & number_mask);
}
constexpr std::uint32_t index_of(std::uint32_t imm) { return imm & (max_transfers - 1); }

constexpr std::uint64_t receive_request_of(std::uint32_t peer, bool is_bulk) {
  return receive_mark | static_cast<std::uint64_t>(peer) << 32 | (is_bulk ? 1 : 0);
}
constexpr std::uint32_t peer_of(std::uint64_t wr_id) { return static_cast<std::uint32_t>(wr_id >> 32 & 0x3FFFFFFF); }
constexpr std::uint64_t work_request_of(std::uint32_t number, std::uint32_t out) {
  return static_cast<std::uint64_t>(number) << 24 | out;
}
constexpr std::uint32_t number_of(std::uint64_t wr_id) { return static_cast<std::uint32_t>(wr_id >> 24); }
constexpr std::uint32_t out_of(std::uint64_t wr_id) { return static_cast<std::uint32_t>(wr_id & 0xFFFFFF); }

}  // namespace softmrc::collectives
