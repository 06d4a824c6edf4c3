// An endpoint's tables as Python sees them, shared by the bare engine and by the device around one.
#pragma once

#include <nanobind/nanobind.h>

#include "proto/endpoint.h"

namespace softmrc::bind {

nanobind::dict stats_dict(const proto::QpStats& stats);
nanobind::dict stats_dict(const proto::EndpointStats& stats);
// State, windows, sequence numbers and round-trip times of one queue pair.
nanobind::dict query_qp(proto::Endpoint& endpoint, std::uint32_t qpn);
// One row an EV: value, port, state, drops, damping, spare.
nanobind::list query_evs(proto::Endpoint& endpoint, std::uint32_t qpn);
// Raises UsageError when there is none, or it is still in RESET.
proto::QueuePair& existing(proto::Endpoint& endpoint, std::uint32_t qpn);
void check_ev(proto::QueuePair& pair, std::uint32_t ev);

}  // namespace softmrc::bind
