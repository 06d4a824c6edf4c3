#include "bind/engine_views.h"

#include <nanobind/stl/string.h>

#include "bind/bind.h"

namespace nb = nanobind;

namespace softmrc::bind {

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

QueuePair& existing(Endpoint& e, std::uint32_t qpn) {
  QueuePair* pair = e.qp(qpn);
  if (!pair) raise_if(Problem{Problem::Kind::usage, "qpn", std::to_string(qpn), "a queue pair that left RESET"});
  return *pair;
}

void check_ev(QueuePair& pair, std::uint32_t ev) {
  pair.requester().build_evs();
  if (ev < pair.requester().evs().size()) return;
  raise_if(Problem{Problem::Kind::config, "ev", std::to_string(ev), "an index below " + std::to_string(pair.requester().evs().size())});
}

nb::dict query_qp(Endpoint& e, std::uint32_t qpn) {
  nb::dict d;
  const auto state = e.qp_state(qpn);
  if (!state) raise_if(Problem{Problem::Kind::usage, "qpn", std::to_string(qpn), "a queue pair that exists"});
  d["state"] = *state;
  QueuePair* pair = e.qp(qpn);
  if (!pair) return d;
  const Requester& requester = pair->requester();
  d["dest_qpn"] = pair->dest_qpn();
  d["peer"] = pair->peer();
  d["window_bytes"] = requester.window();
  d["bytes_in_flight"] = requester.bytes_in_flight();
  d["packets_in_flight"] = requester.packets_in_flight();
  d["messages"] = requester.messages();
  d["next_psn"] = requester.next_psn().value;
  d["expected_psn"] = pair->responder().expected().value;
  d["out_of_order"] = pair->responder().out_of_order();
  d["base_rtt_us"] = static_cast<double>(requester.rtt().base().ps) / 1e6;
  d["smoothed_rtt_us"] = static_cast<double>(requester.rtt().smoothed().ps) / 1e6;
  d["receives_posted"] = pair->responder().receives_posted();
  return d;
}

nb::list query_evs(Endpoint& e, std::uint32_t qpn) {
  QueuePair& pair = existing(e, qpn);
  pair.requester().build_evs();
  nb::list rows;
  const EvSet& evs = pair.requester().evs();
  for (std::uint16_t i = 0; i < evs.size(); ++i)
    rows.append(nb::make_tuple(evs[i].value, evs[i].port, evs[i].state, evs[i].drops, evs[i].damping, evs[i].is_spare));
  return rows;
}

}  // namespace softmrc::bind
