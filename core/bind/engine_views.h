// An endpoint's tables as Python sees them, shared by the bare engine and by the device around one.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <vector>

#include "proto/endpoint.h"

namespace softmrc::bind {

nanobind::dict stats_dict(const proto::QpStats& stats);
nanobind::dict stats_dict(const proto::EndpointStats& stats);
// State, windows, sequence numbers and round-trip times of one queue pair.
struct QpView {
  proto::QpState state{};
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
// Nothing of Python's is made by these, so they may be called where nobody may be waited for.
std::optional<QpView> view_qp(proto::Endpoint& endpoint, std::uint32_t qpn);
std::optional<std::vector<proto::Ev>> view_evs(proto::Endpoint& endpoint, std::uint32_t qpn);
// What the network reads of each EV: its value in the format of the profile, the first bit first.
std::optional<std::vector<wire::EvBytes>> view_ev_values(proto::Endpoint& endpoint, std::uint32_t qpn);
// What they found, for Python; UsageError when that was nothing.
nanobind::dict query_dict(std::uint32_t qpn, const std::optional<QpView>& view);
// One row an EV: value, port, state, drops, damping, spare.
nanobind::list ev_rows(std::uint32_t qpn, const std::optional<std::vector<proto::Ev>>& evs);
nanobind::list ev_values(std::uint32_t qpn, const std::optional<std::vector<wire::EvBytes>>& values);
// UsageError: there is none, or it is still in RESET.
[[noreturn]] void raise_missing(std::uint32_t qpn);
proto::QueuePair& existing(proto::Endpoint& endpoint, std::uint32_t qpn);

}  // namespace softmrc::bind
