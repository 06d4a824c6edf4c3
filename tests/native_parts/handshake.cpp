// One end of a handshake as bytes in and bytes out, for tests that speak it step by step, and lie.
#include <nanobind/stl/optional.h>

#include "host/handshake.h"
#include "parts.h"
#include "python/seal_values.h"

namespace nb = nanobind;

namespace softmrc::python {

using namespace nb::literals;
using host::Handshake, host::Credentials, host::HandshakeRefused;

void bind_handshake_parts(nb::module_& m) {
  nb::class_<Handshake>(m, "Handshake")
      .def("__init__",
           [](Handshake* self, bool is_connector, const Credentials& own) {
    new (self) Handshake(is_connector ? Handshake::Role::connector : Handshake::Role::listener, own);
  }, "is_connector"_a, "credentials"_a)
      .def("on_bytes", [](Handshake& h, const nb::bytes& bytes) { h.on_bytes(from_python(bytes)); })
      .def("next_event", &Handshake::next_event)
      .def("allow", &Handshake::allow)
      .def("offer", [](Handshake& h, const nb::bytes& own) { h.offer(from_python(own)); })
      .def("ready", &Handshake::ready, "mtu"_a, "waits"_a)
      .def("finish", &Handshake::finish, "is_narrowed"_a)
      .def("refuse",
           [](Handshake& h, const std::string& why, const std::string& message_to_peer, bool is_busy) {
    h.refuse(HandshakeRefused(why, message_to_peer, is_busy));
  }, "why"_a, "message_to_peer"_a, "is_busy"_a = false)
      .def("take_outgoing", [](Handshake& h) { return to_python(h.take_outgoing()); })
      .def("goodbye", [](Handshake& h) { return to_python(h.goodbye()); })
      .def("goodbye_of_peer", [](Handshake& h) { return to_python(h.goodbye_of_peer()); })
      .def_prop_ro("is_done", &Handshake::is_done)
      .def_prop_ro("is_authenticated", &Handshake::is_authenticated)
      .def_prop_ro("wants_bytes", &Handshake::wants_bytes)
      .def_prop_ro("content", [](const Handshake& h) { return to_python(h.content()); })
      .def_prop_ro("mtu", &Handshake::mtu)
      .def_prop_ro("peer_key", [](const Handshake& h) { return to_python(h.peer_key()); })
      .def_prop_ro("rest", [](const Handshake& h) {
    return to_python(h.rest());
  }).def_prop_ro("exporter", [](const Handshake& h) {
    return h.exporter() ? nb::object(to_python(*h.exporter())) : nb::none();
  });
}

}  // namespace softmrc::python
