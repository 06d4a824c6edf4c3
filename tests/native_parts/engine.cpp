// Parts of the engine by themselves, for tests that put one of them next to a plain model: the extension `_parts`.
// Times are picoseconds.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "collectives/shm_ring.h"
#include "parts.h"
#include "proto/congestion/controller.h"
#include "proto/ev_prober.h"
#include "proto/ev_set.h"
#include "proto/loss.h"
#include "proto/probe_timeout.h"
#include "python/bind.h"

namespace nb = nanobind;

namespace softmrc::python {

using namespace proto;

namespace {

void check_index(const EvSet& set, std::uint32_t ev) {
  if (ev < set.size()) return;
  raise_if(Error{Error::Kind::config, "ev", std::to_string(ev), "an index below " + std::to_string(set.size())});
}

// Times and spans are numbers in Python.
template <typename T>
using Plain = std::conditional_t<std::is_same_v<T, Time> || std::is_same_v<T, Duration>, std::int64_t, T>;

// A method of EvSet that takes an EV, with its index checked.
template <typename R, typename... Args>
auto on_ev(R (EvSet::*method)(std::uint16_t, Args...)) {
  return [method](EvSet& set, std::uint32_t ev, Plain<Args>... args) {
    check_index(set, ev);
    return (set.*method)(static_cast<std::uint16_t>(ev), Args{args}...);
  };
}

// Any other method, of any part.
template <typename T, typename R, typename... Args>
auto plain(R (T::*method)(Args...)) {
  return [method](T& part, Plain<Args>... args) { return (part.*method)(Args{args}...); };
}

void bind_pipe(nb::module_& m) {
  using collectives::ShmRing;
  nb::class_<ShmRing>(m, "Pipe")
      .def_ro_static("CAPACITY", &ShmRing::capacity)
      .def_static("make", [](std::uint64_t token) { return ShmRing::make(token); })
      .def_static("open", [](std::uint64_t token, std::int32_t process,
                             std::int32_t descriptor) { return ShmRing::open({token, process, descriptor}); })
      .def_prop_ro("key",
                   [](const ShmRing& p) { return std::tuple(p.key().token, p.key().process, p.key().descriptor); })
      .def("put",
           [](ShmRing& p, nb::bytes b) { return p.put(reinterpret_cast<const std::uint8_t*>(b.c_str()), b.size()); })
      .def("take_back", &ShmRing::take_back)
      .def("take", [](ShmRing& p, std::uint64_t bytes) -> std::optional<nb::bytes> {
    std::vector<std::uint8_t> taken;
    const auto sink = [&](std::uint64_t, const std::uint8_t* from, std::uint64_t size) {
      taken.insert(taken.end(), from, from + size);
    };
    if (!p.take(bytes, sink)) return std::nullopt;
    return nb::bytes(reinterpret_cast<const char*>(taken.data()), taken.size());
  }).def("is_awaited", &ShmRing::is_awaited);
}

void bind_ev_set(nb::module_& m) {
  m.attr("NO_EV") = no_ev;
  nb::class_<EvSet>(m, "EvSet")
      .def("__init__",
           [](EvSet* self, const EvProfile& profile, std::uint32_t ports, std::uint64_t seed) {
    raise_if(validate(profile, ports));
    new (self) EvSet();
    self->build(profile, ports, Prng(seed, "ev"));
  })
      .def("pick",
           [](EvSet& s, std::uint32_t ports, std::uint16_t avoid, std::int64_t now) {
    EvSearch search{Time{now}, avoid};
    return s.pick(search, ports);
  }, nb::arg("ports"), nb::arg("avoid"), nb::arg("now") = 0)
      .def("search",
           [](EvSet& s, const std::vector<std::uint32_t>& ports) {
    EvSearch search;
    std::vector<std::uint16_t> found;
    for (const std::uint32_t mask : ports) found.push_back(s.pick(search, mask));
    return found;
  })
      .def("on_sent", on_ev(&EvSet::on_sent))
      .def("on_acked", on_ev(&EvSet::on_acked))
      .def("on_loss", on_ev(&EvSet::on_loss))
      .def("on_congestion", on_ev(&EvSet::on_congestion))
      .def("on_always_skip", on_ev(&EvSet::on_always_skip))
      .def("on_spurious", on_ev(&EvSet::on_spurious))
      .def("suspend", on_ev(&EvSet::suspend))
      .def("revive", on_ev(&EvSet::revive))
      .def("deny", on_ev(&EvSet::deny))
      .def("allow", on_ev(&EvSet::allow))
      .def("replace",
           [](EvSet& s, std::uint32_t ev, std::uint32_t value) {
    check_index(s, ev);
    s.replace(static_cast<std::uint16_t>(ev), EvPath{value});
  })
      .def("set_live_ports", &EvSet::set_live_ports)
      .def("usable", &EvSet::usable)
      .def("usable_on", &EvSet::usable_on)
      .def("__len__", &EvSet::size)
      .def("rows", [](const EvSet& s) {
    nb::list rows;
    for (std::uint16_t i = 0; i < s.size(); ++i)
      rows.append(nb::make_tuple(s[i].value, s[i].port, s[i].state, s[i].is_spare, s[i].place != no_ev, s[i].damping,
                                 s[i].drops));
    return rows;
  }, "One row an EV: value, port, state, is spare, is in the rotation, damping, drops.");
}

void bind_ev_probe(nb::module_& m) {
  nb::class_<EvProber>(m, "EvProber")
      .def("__init__",
           [](EvProber* self, const EndpointConfig& config) {
    raise_if(validate(config));
    new (self) EvProber();
    self->configure(config);
  })
      .def("add", plain(&EvProber::add))
      .def("set_none_left", plain(&EvProber::set_none_left))
      .def("probe_port_now", plain(&EvProber::probe_port_now))
      .def("next_due", plain(&EvProber::next_due), nb::arg("now"), nb::arg("live_ports"), nb::arg("free_ports"),
           nb::arg("round_trip") = 0)
      .def("on_answer", plain(&EvProber::on_answer))
      .def_prop_ro("deadline", [](const EvProber& p) -> std::optional<std::int64_t> {
    if (p.deadline() == Time::never()) return std::nullopt;
    return p.deadline().ps;
  });
}

void bind_loss(nb::module_& m) {
  nb::class_<Loss>(m, "Loss")
      .def(nb::init<>())
      .def("on_acked", plain(&Loss::on_acked))
      .def("on_lag", plain(&Loss::on_lag))
      .def("on_probe_answered", plain(&Loss::on_probe_answered))
      .def_prop_ro("latest_acked_sent", [](const Loss& l) { return l.latest_acked_sent().ps; })
      .def("on_sack_done", &Loss::on_sack_done)
      .def(
          "reorder_window",
          [](const Loss& l, std::int64_t base_rtt, std::int64_t smoothed_rtt, std::int64_t target, std::int64_t least) {
    return l.reorder_window(Duration{base_rtt}, Duration{smoothed_rtt}, Duration{target}, Duration{least}).ps;
  }, nb::arg("base_rtt"), nb::arg("smoothed_rtt"), nb::arg("target"), nb::arg("least") = 0);
}

void bind_controller(nb::module_& m) {
  nb::class_<Controller>(m, "Controller")
      .def("__init__",
           [](Controller* self, const CcProfile& profile, std::uint32_t nominal_mtu, std::uint32_t sharers) {
    raise_if(validate(profile));
    new (self) Controller(profile, nominal_mtu, sharers);
  }, nb::arg("profile"), nb::arg("nominal_mtu"), nb::arg("sharers") = 1)
      .def("on_ack",
           [](Controller& c, std::int64_t now, std::int64_t base_rtt, std::uint64_t new_bytes, bool marked,
              std::optional<std::int64_t> delay, std::uint64_t in_flight, std::uint8_t penalty, bool restore) {
    AckSample facts;
    facts.base_rtt = Duration{base_rtt};
    facts.new_bytes = new_bytes;
    facts.marked = marked;
    if (delay) facts.delay = Duration{*delay};
    if (delay) facts.round_trip = Duration{base_rtt + *delay};
    facts.in_flight = in_flight;
    facts.penalty = penalty;
    facts.restore = restore;
    c.on_ack(Time{now}, facts);
  },
           nb::arg("now"), nb::arg("base_rtt"), nb::arg("new_bytes"), nb::arg("marked"), nb::arg("delay").none(),
           nb::arg("in_flight"), nb::arg("penalty") = 0, nb::arg("restore") = false)
      .def("on_trim", [](Controller& c, std::int64_t now, std::uint64_t bytes,
                         std::uint64_t in_flight) { c.on_trim(Time{now}, {bytes, in_flight}); })
      .def("on_loss", [](Controller& c, std::int64_t now, std::uint64_t bytes,
                         std::uint64_t in_flight) { c.on_loss(Time{now}, {bytes, in_flight}); })
      .def("on_loss_undone", &Controller::on_loss_undone)
      .def("window_of", [](const Controller& c, std::uint32_t senders) { return c.window(senders); })
      .def("target", [](const Controller& c, std::int64_t base_rtt) {
    return c.target(Duration{base_rtt}).ps;
  }).def_prop_ro("window", [](const Controller& c) { return c.window(1); });
}

void bind_silence(nb::module_& m) {
  nb::enum_<ProbeTimeout::ProbeAction>(m, "ProbeAction")
      .value("NONE", ProbeTimeout::ProbeAction::none)
      .value("COPY", ProbeTimeout::ProbeAction::copy)
      .value("PROBE", ProbeTimeout::ProbeAction::probe)
      .value("SOLICITATION", ProbeTimeout::ProbeAction::solicitation);
  nb::enum_<ProbeTimeout::Due>(m, "Due")
      .value("NOTHING", ProbeTimeout::Due::nothing)
      .value("PROBE", ProbeTimeout::Due::probe)
      .value("TIMEOUT", ProbeTimeout::Due::timeout);
  nb::class_<ProbeTimeout>(m, "ProbeTimeout")
      .def("__init__",
           [](ProbeTimeout* self, const RtsAttributes& attributes, bool timestamps) {
    raise_if(validate(attributes));
    new (self) ProbeTimeout();
    self->start(attributes, timestamps);
  }, nb::arg("attributes"), nb::arg("timestamps") = true)
      .def("on_work", plain(&ProbeTimeout::on_work))
      .def("on_sent", plain(&ProbeTimeout::on_sent))
      .def("on_new_sent", plain(&ProbeTimeout::on_new_sent), nb::arg("now") = 0)
      .def("on_progress", plain(&ProbeTimeout::on_progress))
      .def("on_path_found", plain(&ProbeTimeout::on_path_found))
      .def("span", [](const ProbeTimeout& s, std::int64_t measured) { return s.span(Duration{measured}).ps; })
      .def("on_measured", &ProbeTimeout::on_measured)
      .def("due",
           [](const ProbeTimeout& s, std::int64_t now, std::int64_t span, std::int64_t conclusive) {
    return s.due(Time{now}, Duration{span}, Time{conclusive});
  }, nb::arg("now"), nb::arg("span"), nb::arg("conclusive") = Time::never().ps)
      .def("deadline",
           [](const ProbeTimeout& s, std::int64_t now, std::int64_t span, std::int64_t conclusive) {
    return s.deadline(Time{now}, Duration{span}, Time{conclusive}).ps;
  }, nb::arg("now"), nb::arg("span"), nb::arg("conclusive") = Time::never().ps)
      .def("ask", plain(&ProbeTimeout::ping), nb::arg("now"), nb::arg("has_packets_in_flight") = true,
           nb::arg("has_open_operation") = true)
      .def("on_timeout", plain(&ProbeTimeout::on_timeout))
      .def("timeout", [](const ProbeTimeout& s, std::int64_t span) { return s.timeout(Duration{span}).ps; })
      .def("next_action", &ProbeTimeout::next_action, nb::arg("has_packets_in_flight") = true,
           nb::arg("can_solicit") = false)
      .def("on_action_done", &ProbeTimeout::on_action_done)
      .def("on_probe_sent", plain(&ProbeTimeout::on_probe_sent))
      .def("on_probe_answer",
           [](ProbeTimeout& s, std::uint16_t id) -> std::optional<std::pair<std::int64_t, std::uint16_t>> {
    const auto probe = s.on_probe_answer(id);
    if (!probe) return std::nullopt;
    return std::pair{probe->sent_at.ps, probe->ev};
  })
      .def("on_retired", &ProbeTimeout::on_retired)
      .def("unprobed", &ProbeTimeout::unprobed)
      .def("on_probed", plain(&ProbeTimeout::on_probed))
      .def("on_receiver_not_ready", plain(&ProbeTimeout::on_receiver_not_ready))
      .def("on_trimmed", plain(&ProbeTimeout::on_trimmed))
      .def("is_backing_off", [](const ProbeTimeout& s, std::int64_t now) { return s.is_backing_off(Time{now}); })
      .def_prop_ro("is_probing", &ProbeTimeout::is_probing)
      .def_prop_ro("is_persistent", &ProbeTimeout::is_persistent)
      .def_prop_ro("has_actions", &ProbeTimeout::has_actions);
}

}  // namespace

void bind_parts(nb::module_& m) {
  bind_ev_set(m);
  bind_pipe(m);
  bind_ev_probe(m);
  bind_loss(m);
  bind_controller(m);
  bind_silence(m);
}

}  // namespace softmrc::python
