// An endpoint's tables as Python sees them, shared by the bare engine and by the device around one.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <vector>

#include "proto/views.h"

namespace softmrc::python {

nanobind::dict stats_dict(const proto::QpStats& stats);
nanobind::dict stats_dict(const proto::EndpointStats& stats);
// What they found, for Python; UsageError when that was nothing.
nanobind::dict query_dict(std::uint32_t qpn, const std::optional<proto::QpView>& view);
// One row an EV: value, port, state, drops, damping, spare.
nanobind::list ev_rows(std::uint32_t qpn, const std::optional<std::vector<proto::Ev>>& evs);
nanobind::list ev_values(std::uint32_t qpn, const std::optional<std::vector<wire::EvBytes>>& values);
// UsageError: there is none, or it is still in RESET.
[[noreturn]] void raise_missing(std::uint32_t qpn);
proto::QueuePair& existing(proto::Endpoint& endpoint, std::uint32_t qpn);

}  // namespace softmrc::python
