#include "python/engine_views.h"

#include <nanobind/stl/string.h>

#include "python/bind.h"
#include "python/wire_values.h"

namespace nb = nanobind;

namespace softmrc::python {

using namespace proto;

nb::dict stats_dict(const QpStats& stats) {
  nb::dict d;
#define X(name) d[#name] = stats.name;
  SOFTMRC_QP_COUNTERS(X)
#undef X
  return d;
}

nb::dict stats_dict(const EndpointStats& stats) {
  nb::dict d;
#define X(name) d[#name] = stats.name;
  SOFTMRC_ENDPOINT_COUNTERS(X)
#undef X
  return d;
}

void raise_missing(std::uint32_t qpn) {
  raise_if(Error{Error::Kind::usage, "qpn", std::to_string(qpn), "a queue pair that left RESET"});
  __builtin_unreachable();
}

QueuePair& existing(Endpoint& e, std::uint32_t qpn) {
  QueuePair* pair = e.qp(qpn);
  if (!pair) raise_missing(qpn);
  return *pair;
}

nb::dict query_dict(std::uint32_t qpn, const std::optional<QpView>& view) {
  if (!view) raise_if(Error{Error::Kind::usage, "qpn", std::to_string(qpn), "a queue pair that exists"});
  nb::dict d;
  d["state"] = view->state;
  if (!view->has_left_reset) return d;
#define X(name) d[#name] = view->name;
  SOFTMRC_QP_VIEW(X)
  X(peer)
#undef X
  nb::list by_port;
  for (const std::uint64_t bytes : view->port_window_bytes) by_port.append(bytes);
  d["port_window_bytes"] = by_port;
  return d;
}

nb::list ev_values(std::uint32_t qpn, const std::optional<std::vector<wire::EvBytes>>& values) {
  if (!values) raise_missing(qpn);
  nb::list rows;
  for (const wire::EvBytes& value : *values) rows.append(to_bytes(value));
  return rows;
}

nb::list ev_rows(std::uint32_t qpn, const std::optional<std::vector<Ev>>& evs) {
  if (!evs) raise_missing(qpn);
  nb::list rows;
  for (const Ev& ev : *evs) rows.append(nb::make_tuple(ev.value, ev.port, ev.state, ev.drops, ev.damping, ev.is_spare));
  return rows;
}

}  // namespace softmrc::python
