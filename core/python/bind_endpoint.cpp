#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "proto/endpoint.h"
#include "python/bind.h"
#include "python/engine_views.h"
#include "python/wire_values.h"

namespace nb = nanobind;

namespace softmrc::python {

using namespace proto;

namespace {

PostStatus post_write(Endpoint& e, std::int64_t now_ps, std::uint32_t qpn, std::uint64_t wr_id, std::uint32_t length,
                      std::uint64_t remote_va, std::uint32_t rkey, const Buffer* source, std::uint64_t offset,
                      std::optional<std::uint32_t> imm, bool is_signaled) {
  WorkRequest request;
  request.wr_id = wr_id;
  request.remote_va = remote_va;
  request.rkey = rkey;
  request.length = length;
  request.imm = imm.value_or(0);
  request.has_imm = imm.has_value();
  request.is_signaled = is_signaled;
  if (source) {
    if (offset > source->size() || length > source->size() - offset)
      raise_if(Error{Error::Kind::config, "length", std::to_string(length),
                     "at most the " + std::to_string(source->size()) + " bytes of the source, from offset " +
                         std::to_string(offset)});
    request.data = source->data() + offset;
  }
  return e.post_write(Time{now_ps}, qpn, request);
}

// (bytes, peer, port, entropy, traffic class) of the next packet to send, or None.
std::optional<nb::tuple> poll_transmit(Endpoint& e, std::int64_t now_ps, std::uint32_t free_ports) {
  Transmit t;
  if (!e.poll_transmit(Time{now_ps}, free_ports, t)) return std::nullopt;
  std::vector<std::uint8_t> bytes(wire::packet_size(t.packet));
  const std::size_t size = wire::emit(t.packet, bytes);
  return nb::make_tuple(nb::bytes(reinterpret_cast<const char*>(bytes.data()), size), t.peer, t.port, t.entropy,
                        t.traffic_class);
}

void handle_datagram(Endpoint& e, std::int64_t now_ps, nb::bytes bytes, std::uint32_t peer, std::uint8_t port,
                     std::uint32_t entropy, bool congestion, Trim trim, bool has_icrc) {
  Arrival arrival;
  arrival.peer = peer;
  arrival.port = port;
  arrival.entropy = entropy;
  arrival.congestion = congestion;
  arrival.trim = trim;
  wire::ParseOptions options;
  options.has_icrc = has_icrc && trim == Trim::none;
  options.trimmed = trim != Trim::none;
  e.handle_datagram(Time{now_ps}, {reinterpret_cast<const std::uint8_t*>(bytes.c_str()), bytes.size()}, arrival,
                    options);
}

nb::bytes poll_completions(Endpoint& e, std::uint32_t cq, std::size_t most) {
  std::vector<Completion> found(std::min(most, e.completions_waiting(cq)));
  const std::size_t count = e.poll_completions(cq, found);
  return nb::bytes(reinterpret_cast<const char*>(found.data()), count * sizeof(Completion));
}

nb::bytes poll_events(Endpoint& e, std::size_t most) {
  std::vector<Event> found;
  Event event;
  while (found.size() < most && e.poll_event(event)) found.push_back(event);
  return nb::bytes(reinterpret_cast<const char*>(found.data()), found.size() * sizeof(Event));
}

void bind_enums(nb::module_& m) {
  nb::enum_<QpState>(m, "QpState")
      .value("RESET", QpState::reset)
      .value("INIT", QpState::init)
      .value("RTR", QpState::rtr)
      .value("RTS", QpState::rts)
      .value("ERROR", QpState::error);
  nb::enum_<EvState>(m, "EvState")
      .value("GOOD", EvState::good)
      .value("SKIP", EvState::skip)
      .value("ASSUMED_BAD", EvState::assumed_bad)
      .value("DENIED", EvState::denied);
  nb::enum_<PostStatus>(m, "PostStatus")
      .value("OK", PostStatus::ok)
      .value("WRONG_STATE", PostStatus::wrong_state)
      .value("QUEUE_FULL", PostStatus::queue_full);
  m.attr("MOST_RECEIVES") = proto::Responder::max_receives;
  nb::enum_<TrafficClass>(m, "TrafficClass")
      .value("DATA", TrafficClass::data)
      .value("DATA_NO_TRIM", TrafficClass::data_no_trim)
      .value("DATA_RETRANSMIT", TrafficClass::data_retransmit)
      .value("CONTROL", TrafficClass::control);
  nb::enum_<Trim>(m, "Trim")
      .value("NONE", Trim::none)
      .value("TRIMMED", Trim::trimmed)
      .value("TRIMMED_LAST_HOP", Trim::trimmed_last_hop);
  nb::enum_<CompletionStatus>(m, "CompletionStatus", nb::is_arithmetic())
      .value("SUCCESS", CompletionStatus::success)
      .value("FLUSHED", CompletionStatus::flushed)
      .value("RETRY_EXCEEDED", CompletionStatus::retry_exceeded)
      .value("REMOTE_ACCESS", CompletionStatus::remote_access)
      .value("REMOTE_INVALID", CompletionStatus::remote_invalid)
      .value("REMOTE_OPERATION", CompletionStatus::remote_operation)
      .value("LOCAL_PROTOCOL", CompletionStatus::local_protocol)
      .value("PEER_ERROR", CompletionStatus::peer_error);
  nb::enum_<CompletionKind>(m, "CompletionKind", nb::is_arithmetic())
      .value("WRITE", CompletionKind::write)
      .value("WRITE_IMM", CompletionKind::write_imm)
      .value("RECEIVE_IMM", CompletionKind::receive_imm);
  nb::enum_<RefusedPacket>(m, "RefusedPacket", nb::is_arithmetic())
      .value("MALFORMED", RefusedPacket::malformed)
      .value("BAD_ICRC", RefusedPacket::bad_icrc)
      .value("UNKNOWN_QP", RefusedPacket::unknown_qp)
      .value("WRONG_PEER", RefusedPacket::wrong_peer)
      .value("WRONG_STATE", RefusedPacket::wrong_state)
      .value("UNKNOWN_PEER", RefusedPacket::unknown_peer)
      .value("OUT_OF_WINDOW", RefusedPacket::out_of_window)
      .value("REMOTE_ACCESS", RefusedPacket::remote_access)
      .value("INVALID_REQUEST", RefusedPacket::invalid_request)
      .value("BAD_ACKNOWLEDGEMENT", RefusedPacket::bad_acknowledgement)
      .value("UNKNOWN_ANSWER", RefusedPacket::unknown_answer)
      .value("WRONG_PAIR", RefusedPacket::wrong_pair)
      .value("UNPROVEN", RefusedPacket::unproven)
      .value("LAST_PORT", RefusedPacket::last_port)
      .value("WRONG_PROOF", RefusedPacket::wrong_proof)
      .value("UNSEALED", RefusedPacket::unsealed)
      .value("FORGED", RefusedPacket::forged)
      .value("REPLAYED", RefusedPacket::replayed);
  nb::enum_<EventType> events(m, "EventType", nb::is_arithmetic());
#define X(name, notable, meaning) events.value(#name, EventType::name);
  SOFTMRC_EVENTS(X)
#undef X
}

}  // namespace

void bind_endpoint(nb::module_& m) {
  bind_enums(m);
  m.attr("NO_PEER") = no_peer;

  nb::class_<Endpoint>(m, "Endpoint")
      .def("__init__",
           [](Endpoint* self, const EndpointConfig& config) {
    raise_if(validate(config));
    new (self) Endpoint(config);
  })
      .def("add_ev_profile",
           [](Endpoint& e, const EvProfile& profile) {
    std::uint32_t id = 0;
    raise_if(e.add_ev_profile(std::make_shared<EvProfile>(profile), id));
    return id;
  })
      .def("add_cc_profile",
           [](Endpoint& e, const CcProfile& profile) {
    std::uint32_t id = 0;
    raise_if(e.add_cc_profile(std::make_shared<CcProfile>(profile), id));
    return id;
  })
      .def("create_cq", &Endpoint::create_cq)
      .def("destroy_cq", [](Endpoint& e, std::uint32_t cq) { raise_if(e.destroy_cq(cq)); })
      .def("create_domain", &Endpoint::create_domain)
      .def("add_peer", &Endpoint::add_peer)
      .def("remove_peer", &Endpoint::remove_peer)
      .def_prop_ro("peer_count", &Endpoint::peers)
      .def("add_region",
           [](Endpoint& e, std::uint32_t rkey, std::uint64_t va, std::uint64_t length, const Buffer* buffer,
              Domain domain) {
    if (buffer && length > buffer->size())
      raise_if(Error{Error::Kind::config, "length", std::to_string(length),
                     "at most the buffer's " + std::to_string(buffer->size()) + " bytes"});
    return e.add_region({buffer ? buffer->data() : nullptr, va, length, rkey, nullptr, domain});
  },
           nb::arg("rkey"), nb::arg("va"), nb::arg("length"), nb::arg("buffer").none(), nb::arg("domain"))
      .def("remove_region", &Endpoint::remove_region)
      .def("create_qp", [](Endpoint& e, std::uint32_t qpn) { raise_if(e.create_qp(qpn)); })
      .def("modify_init",
           [](Endpoint& e, std::uint32_t qpn, const InitAttributes& a) { raise_if(e.modify_init(qpn, a)); })
      .def("modify_rtr", [](Endpoint& e, std::int64_t now, std::uint32_t qpn,
                            const RtrAttributes& a) { raise_if(e.modify_rtr(Time{now}, qpn, a)); })
      .def("modify_rts", [](Endpoint& e, std::int64_t now, std::uint32_t qpn,
                            const RtsAttributes& a) { raise_if(e.modify_rts(Time{now}, qpn, a)); })
      .def("modify_error",
           [](Endpoint& e, std::int64_t now, std::uint32_t qpn) { raise_if(e.modify_error(Time{now}, qpn)); })
      .def("destroy_qp", [](Endpoint& e, std::int64_t now, std::uint32_t qpn) { return e.destroy_qp(Time{now}, qpn); })
      .def("query_qp", [](Endpoint& e, std::uint32_t qpn) { return query_dict(qpn, view_qp(e, qpn)); })
      .def("query_evs", [](Endpoint& e, std::uint32_t qpn) { return ev_rows(qpn, view_evs(e, qpn)); })
      .def("query_ev_values", [](Endpoint& e, std::uint32_t qpn) { return ev_values(qpn, view_ev_values(e, qpn)); })
      .def("qp_stats", [](Endpoint& e, std::uint32_t qpn) { return stats_dict(existing(e, qpn).stats()); })
      .def("stats", [](Endpoint& e) { return stats_dict(e.stats()); })
      .def("handle_datagram", &handle_datagram, nb::arg("now_ps"), nb::arg("bytes"), nb::arg("peer"), nb::arg("port"),
           nb::arg("entropy"), nb::arg("congestion"), nb::arg("trim"), nb::arg("has_icrc"))
      .def("begin_batch", &Endpoint::begin_batch)
      .def("end_batch", [](Endpoint& e, std::int64_t now) { e.end_batch(Time{now}); })
      .def("handle_held_up", [](Endpoint& e, std::int64_t now) { e.handle_stall(Time{now}); })
      .def("handle_timeout", [](Endpoint& e, std::int64_t now) { e.handle_timeout(Time{now}); })
      .def("post_write", &post_write, nb::arg("now_ps"), nb::arg("qpn"), nb::arg("wr_id"), nb::arg("length"),
           nb::arg("remote_va"), nb::arg("rkey"), nb::arg("source").none(), nb::arg("offset"), nb::arg("imm").none(),
           nb::arg("is_signaled"))
      .def("post_receive", &Endpoint::post_receive)
      .def("set_port",
           [](Endpoint& e, std::int64_t now, std::uint32_t port, bool up) { e.set_port(Time{now}, port, up); })
      .def("probe", [](Endpoint& e, std::int64_t now, std::uint32_t peer, std::uint8_t port, std::uint32_t entropy,
                       std::uint32_t token) { return e.probe(Time{now}, peer, port, entropy, token); })
      .def("on_unreachable",
           [](Endpoint& e, std::int64_t now, std::uint32_t peer) { e.on_unreachable(Time{now}, peer); })
      .def("may_answer_at_length", [](Endpoint& e, std::int64_t now, std::uint32_t peer,
                                      std::uint32_t bytes) { return e.may_answer_at_length(Time{now}, peer, bytes); })
      .def("deny_ev", [](Endpoint& e, std::int64_t now, std::uint32_t qpn,
                         std::uint32_t ev) { raise_if(e.deny_ev(Time{now}, qpn, ev)); })
      .def("allow_ev", [](Endpoint& e, std::int64_t now, std::uint32_t qpn,
                          std::uint32_t ev) { raise_if(e.allow_ev(Time{now}, qpn, ev)); })
      .def("replace_ev", [](Endpoint& e, std::int64_t now, std::uint32_t qpn, std::uint32_t ev,
                            std::uint32_t value) { raise_if(e.replace_ev(Time{now}, qpn, ev, value)); })
      .def("replace_ev",
           [](Endpoint& e, std::int64_t now, std::uint32_t qpn, std::uint32_t ev, const nb::bytes& value) {
    raise_if(e.replace_ev(Time{now}, qpn, ev, ev_bytes_from(value)));
  })
      .def("set_receive_window", [](Endpoint& e, std::uint32_t qpn,
                                    std::uint32_t units) { raise_if(existing(e, qpn).set_receive_window(units)); })
      .def("set_receiver_penalty",
           [](Endpoint& e, std::uint32_t qpn, std::uint32_t penalty) {
    if (penalty > 127) raise_if(Error{Error::Kind::config, "penalty", std::to_string(penalty), "0 to 127"});
    existing(e, qpn).responder().set_penalty(static_cast<std::uint8_t>(penalty));
  })
      .def("poll_transmit", &poll_transmit)
      .def("poll_completions", &poll_completions)
      .def("poll_events", &poll_events)
      .def("poll_timeout", [](Endpoint& e) -> std::optional<std::int64_t> {
    const Time at = e.poll_timeout();
    if (at == Time::never()) return std::nullopt;
    return at.ps;
  }).def_prop_ro("up_ports", &Endpoint::up_ports);
}

}  // namespace softmrc::python
