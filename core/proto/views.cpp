#include "proto/views.h"

namespace softmrc::proto {

std::optional<QpView> view_qp(Endpoint& e, std::uint32_t qpn) {
  const auto state = e.qp_state(qpn);
  if (!state) return std::nullopt;
  QpView view;
  view.state = *state;
  const QueuePair* pair = e.qp(qpn);
  if (!pair) return view;
  const Requester& requester = pair->requester();
  view.has_left_reset = true;
  view.dest_qpn = pair->dest_qpn();
  view.peer = pair->peer();
  view.window_bytes = requester.window();
  view.port_window_bytes = requester.port_windows();
  view.bytes_in_flight = requester.bytes_in_flight();
  view.packets_in_flight = requester.packets_in_flight();
  view.messages = requester.messages();
  view.next_psn = requester.next_psn().value;
  view.expected_psn = pair->responder().expected().value;
  view.out_of_order = pair->responder().out_of_order();
  view.base_rtt_us = static_cast<double>(requester.rtt().base().ps) / 1e6;
  view.smoothed_rtt_us = static_cast<double>(requester.rtt().smoothed().ps) / 1e6;
  view.receives_posted = pair->responder().receives_posted();
  view.data_ports = requester.live_ports() & ((1u << e.config().ports) - 1);
  return view;
}

std::optional<std::vector<Ev>> view_evs(Endpoint& e, std::uint32_t qpn) {
  QueuePair* pair = e.qp(qpn);
  if (!pair) return std::nullopt;
  pair->build_evs();
  const EvSet& evs = pair->requester().evs();
  std::vector<Ev> found;
  for (std::uint16_t i = 0; i < evs.size(); ++i) found.push_back(evs[i]);
  return found;
}

std::optional<std::vector<wire::EvBytes>> view_ev_values(Endpoint& e, std::uint32_t qpn) {
  QueuePair* pair = e.qp(qpn);
  if (!pair) return std::nullopt;
  pair->build_evs();
  const EvSet& evs = pair->requester().evs();
  std::vector<wire::EvBytes> found(evs.size());
  for (std::uint16_t i = 0; i < evs.size(); ++i)
    found[i] = evs.wide(i) ? *evs.wide(i) : wire::ev_bytes_of(pair->ev_profile().format, evs[i].value);
  return found;
}

}  // namespace softmrc::proto
