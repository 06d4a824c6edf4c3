// An endpoint's tables, copied for monitoring, without waiting for anything.
#pragma once

#include <optional>
#include <vector>

#include "proto/endpoint.h"

namespace softmrc::proto {

// State, windows, sequence numbers and round-trip times of one queue pair.
struct QpView {
  QpState state{};
  bool has_left_reset = false;  // the rest means nothing otherwise
  std::uint32_t dest_qpn = 0;
  std::uint32_t peer = 0;
  std::uint64_t window_bytes = 0;
  std::vector<std::uint64_t> port_window_bytes;  // empty where one window is for all ports
  std::uint64_t bytes_in_flight = 0;
  std::uint64_t packets_in_flight = 0;
  std::uint64_t messages = 0;
  std::uint32_t next_psn = 0;
  std::uint32_t expected_psn = 0;
  std::uint32_t out_of_order = 0;
  double base_rtt_us = 0;
  double smoothed_rtt_us = 0;
  std::uint64_t receives_posted = 0;
  std::uint32_t data_ports = 0;
};
// The facts about every queue pair, by name.
#define SOFTMRC_QP_VIEW(X) \
  X(dest_qpn)              \
  X(window_bytes)          \
  X(bytes_in_flight)       \
  X(packets_in_flight)     \
  X(messages)              \
  X(next_psn)              \
  X(expected_psn)          \
  X(out_of_order)          \
  X(base_rtt_us)           \
  X(smoothed_rtt_us)       \
  X(receives_posted)       \
  X(data_ports)

// Nothing: there is no such queue pair, or it has not left RESET.
std::optional<QpView> view_qp(Endpoint& endpoint, std::uint32_t qpn);
std::optional<std::vector<Ev>> view_evs(Endpoint& endpoint, std::uint32_t qpn);
// What the network reads of each EV: its value in the format of the profile, the first bit first.
std::optional<std::vector<wire::EvBytes>> view_ev_values(Endpoint& endpoint, std::uint32_t qpn);

}  // namespace softmrc::proto
