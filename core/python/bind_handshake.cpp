// The handshake of connections as Python drives it: a listener has its own thread; a connector uses a thread or an
// event loop. Both wait for a descriptor and then poll; nothing here blocks.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "host/acceptor.h"
#include "host/connect_qp.h"
#include "host/connector.h"
#include "host/listening.h"
#include "python/bind.h"
#include "python/seal_values.h"
#include "udp/device.h"

namespace softmrc::python {

using namespace nb::literals;
using namespace host;

namespace {

wire::Address address_of(const nb::bytes& raw) {
  if (raw.size() == 4) return exactly<wire::Ipv4>(raw, "address");
  return exactly<wire::Ipv6>(raw, "address");
}

nb::bytes bytes_of(const wire::Address& address) { return nb::bytes(address.bytes.data(), address.size()); }

// Seconds from now; none for never.
template <typename Time>
std::optional<double> left_s(Time due) {
  if (due == Time::max()) return {};
  if (due == Time::min()) return 0.0;
  return std::max(0.0, std::chrono::duration<double>(due - Time::clock::now()).count());
}

void bind_offer(nb::module_& m) {
  nb::class_<Offer> offer(m, "Offer", "What an end of a handshake offers: a queue pair, where it is reached, memory.");
  offer
      .def("__init__",
           [](Offer* self, const std::vector<udp::PeerPlane>& planes, std::uint32_t qpn, std::uint32_t first_psn,
              std::uint64_t port_key, std::uint32_t mtu, bool icrc, bool is_encrypted, std::uint32_t max_wimm,
              std::uint32_t mpr, const std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint32_t>>& regions) {
    new (self) Offer{mtu,
                     icrc,
                     is_encrypted,
                     is_encrypted ? crypto::faster_cipher() : crypto::Cipher{},
                     max_wimm,
                     mpr,
                     {{qpn, first_psn, port_key, planes}},
                     {},
                     {}};
    for (const auto& [va, length, rkey] : regions) self->regions.push_back({va, length, rkey});
  },
           "planes"_a, "qpn"_a, "first_psn"_a, "port_key"_a, "mtu"_a, "icrc"_a, "is_encrypted"_a, "max_wimm"_a, "mpr"_a,
           "regions"_a)
      .def_static("decode", [](const nb::bytes& bytes) { return decode_offer(from_python(bytes)); }, "bytes"_a)
      .def("encode", [](const Offer& o) { return to_python(encode(o)); })
      .def("check",
           [](const Offer& o, const std::vector<LocalPlane>& planes, const std::vector<udp::PeerPlane>& reached_at,
              bool icrc, bool is_encrypted) { check_offer(o, {planes, reached_at, icrc, is_encrypted}); },
           "planes"_a, "reached_at"_a, "icrc"_a, "is_encrypted"_a, "Raises where it does not fit this side.")
      .def("connect",
           [](const Offer& o, udp::Device& device, const DeviceSettings& settings, std::uint32_t qpn,
              std::uint32_t first_psn, std::uint64_t port_key, std::uint32_t peer, std::uint32_t mtu, bool is_connector,
              const std::optional<nb::bytes>& root) {
    crypto::ZeroizedSecret keys;
    if (root) keys.value = secret_of(*root, "root");
    raise_if(connect_qp(device, settings, {.qpn = qpn, .first_psn = first_psn, .port_key = port_key, .peer = peer}, o,
                        0, {mtu, settings.max_wimm, is_connector, root ? &keys.value : nullptr}));
    return payload_with(mtu, o);
  },
           "device"_a, "settings"_a, "qpn"_a, "first_psn"_a, "port_key"_a, "peer"_a, "mtu"_a, "is_connector"_a,
           "root"_a.none(), "From INIT to RTS, to a peer that was added. Returns the payload of a full packet.")
      .def_prop_ro("planes",
                   [](const Offer& o) {
    nb::list rows;
    for (const udp::PeerPlane& plane : o.qps.at(0).planes)
      rows.append(nb::make_tuple(bytes_of(plane.address), plane.port, nb::tuple(nb::cast(plane.source_ports))));
    return rows;
  }, nb::sig("def planes(self) -> list[tuple[bytes, int, tuple[int, ...]]]"))
      .def_prop_ro("regions", [](const Offer& o) {
    nb::list rows;
    for (const OfferedRegion& region : o.regions) rows.append(nb::make_tuple(region.va, region.length, region.rkey));
    return rows;
  }, nb::sig("def regions(self) -> list[tuple[int, int, int]]"));
  m.def("is_address_of_host", [](const nb::bytes& raw) { return is_address_of_host(address_of(raw)); }, "address"_a,
        "Whether packets to it reach exactly one host.");
}

nb::object exporter_of(const Handshake& handshake) {
  return handshake.exporter() ? nb::object(to_python(*handshake.exporter())) : nb::none();
}

void bind_acceptor(nb::module_& m) {
  using Event = Acceptor::Event;
  nb::enum_<Event::Kind>(m, "AcceptorEvent")
      .value("IDENTIFIED", Event::Kind::identified)
      .value("OFFERED", Event::Kind::offered)
      .value("READY", Event::Kind::ready)
      .value("FINISHED", Event::Kind::finished)
      .value("ENDED", Event::Kind::ended)
      .value("REFUSED", Event::Kind::refused);
  [[maybe_unused]] const nb::class_<AcceptedSlot> slot(m, "AcceptedSlot",
                                                       "An accepted connection, which counts until this is gone.");
  // Of the process, as the limits are.
  const auto registry = std::make_shared<AcceptorRegistry>();
  nb::class_<Acceptor>(m, "Acceptor",
                       "Receives connectors of listening sockets. `poll` when its descriptor is readable.")
      .def("__init__",
           [registry](Acceptor* self, const std::vector<int>& listening, const Credentials& own, std::uint32_t pending,
                      std::uint32_t pending_per_address, std::uint32_t connections,
                      std::uint32_t connections_per_address, double handshake_s) {
    std::vector<UniqueFd> sockets;
    for (const int fd : listening) sockets.emplace_back(fd);
    const auto handshake = std::chrono::milliseconds(static_cast<std::int64_t>(handshake_s * 1e3));
    new (self) Acceptor(std::move(sockets), own,
                        {handshake, pending, pending_per_address, connections, connections_per_address}, registry);
  },
           "listening"_a, "credentials"_a, "pending"_a, "pending_per_address"_a, "connections"_a,
           "connections_per_address"_a, "handshake_s"_a)
      .def("fileno", &Acceptor::fd)
      .def("due_s", [](const Acceptor& a) { return left_s(a.due()); })
      .def("poll",
           [](Acceptor& a) {
    nb::list events;
    for (Event& event : a.poll())
      events.append(
          nb::make_tuple(event.kind, event.id, event.mtu, to_python(event.content), event.words, event.is_busy));
    return events;
  }, nb::sig("def poll(self) -> list[tuple[AcceptorEvent, int, int, bytes, str, bool]]"))
      .def("allow", &Acceptor::allow, "id"_a)
      .def("answer", [](Acceptor& a, std::uint64_t id, const Offer& offer) { a.answer(id, encode(offer)); }, "id"_a,
           "offer"_a)
      .def("finish", &Acceptor::finish, "id"_a, "is_narrowed"_a)
      .def("refuse",
           [](Acceptor& a, std::uint64_t id, const std::string& why, const std::string& message_to_peer, bool is_busy) {
    a.refuse(id, HandshakeRefused(why, message_to_peer, is_busy));
  }, "id"_a, "why"_a, "message_to_peer"_a, "is_busy"_a)
      .def("exporter",
           [](const Acceptor& a, std::uint64_t id) -> nb::object {
    const Handshake* const handshake = a.handshake(id);
    return handshake ? exporter_of(*handshake) : nb::none();
  }, "id"_a, nb::sig("def exporter(self, id: int) -> bytes | None"))
      .def("peer", &Acceptor::peer, "id"_a)
      .def("take",
           [](Acceptor& a, std::uint64_t id) -> nb::object {
    std::optional<Acceptor::Accepted> taken = a.take(id);
    if (!taken) return nb::none();
    return nb::make_tuple(taken->socket.release(), to_python(taken->goodbye), to_python(taken->goodbye_of_peer),
                          to_python(taken->rest), std::move(taken->slot));
  }, "id"_a, nb::sig("def take(self, id: int) -> tuple[int, bytes, bytes, bytes, AcceptedSlot] | None"))
      .def_prop_ro("pending", &Acceptor::pending)
      .def("refusals",
           [](const Acceptor& a) {
    const Acceptor::Refusals found = a.refusals();
    nb::list reasons;
    for (const std::string& reason : found.reasons) reasons.append(reason);
    return nb::make_tuple(found.count, nb::tuple(reasons), found.busy);
  }, nb::sig("def refusals(self) -> tuple[int, tuple[str, ...], int]"))
      .def("count_refusal", &Acceptor::count_refusal, "why"_a)
      .def("close", &Acceptor::close)
      .def("close_after_fork", &Acceptor::close_after_fork);
  m.def("handshake_counts",
        [registry] {
    const Admission::Counts counts = registry->counts();
    return nb::make_tuple(counts.pending, counts.authenticated, counts.connections);
  }, "Of this process: handshakes that are not authenticated, those that are, and accepted connections.",
        nb::sig("def handshake_counts() -> tuple[int, int, int]"));
  m.def("listen_at",
        [](const std::vector<nb::bytes>& addresses, std::uint32_t scope_id, std::uint16_t port) {
    std::vector<wire::Address> at;
    for (const nb::bytes& address : addresses) at.push_back(address_of(address));
    nb::list fds;
    for (UniqueFd& socket : listen_at(at, scope_id, port)) fds.append(socket.release());
    return nb::make_tuple(fds, port);
  }, "addresses"_a, "scope_id"_a, "port"_a,
        nb::sig("def listen_at(addresses: Sequence[bytes], scope_id: int, port: int) -> tuple[list[int], int]"),
        "TCP sockets that listen at these addresses, and their port.");
}

void bind_connector(nb::module_& m) {
  nb::enum_<Handshake::Event>(m, "HandshakeEvent")
      .value("NONE", Handshake::Event::none)
      .value("IDENTIFIED", Handshake::Event::identified)
      .value("OFFERED", Handshake::Event::offered)
      .value("READY", Handshake::Event::ready)
      .value("DONE", Handshake::Event::done);
  nb::class_<DialCandidate>(m, "DialCandidate", "Where to, and from where.")
      .def("__init__",
           [](DialCandidate* self, const nb::bytes& address, std::uint16_t port, std::uint32_t scope_id,
              const std::optional<nb::bytes>& source, const std::string& interface) {
    new (self) DialCandidate{address_of(address), port, scope_id, {}, interface};
    if (source) self->source = address_of(*source);
  },
           "address"_a, "port"_a, "scope_id"_a = 0, "source"_a = nb::none(), "interface"_a = "")
      .def("__eq__", [](const DialCandidate& a, const DialCandidate& b) { return a == b; }, nb::is_operator(),
           nb::sig("def __eq__(self, arg: object, /) -> bool"))
      .def("__hash__",
           [](const DialCandidate& way) { return nb::hash(nb::make_tuple(bytes_of(way.address), way.port)); })
      .def_prop_ro("address", [](const DialCandidate& way) { return bytes_of(way.address); })
      .def_ro("port", &DialCandidate::port)
      .def_ro("scope_id", &DialCandidate::scope_id)
      .def_ro("interface", &DialCandidate::interface)
      .def_prop_ro("source", [](const DialCandidate& way) -> nb::object {
    return way.source ? nb::object(bytes_of(*way.source)) : nb::none();
  }, nb::sig("def source(self) -> bytes | None"));
  nb::class_<Connector>(m, "Connector", "One try to reach a listener. `poll` when its descriptor is readable.")
      .def(nb::init<std::vector<DialCandidate>, const Credentials&>(), "ways"_a, "credentials"_a)
      .def("fileno", &Connector::fd)
      .def("due_s", [](const Connector& c) { return left_s(c.due()); })
      .def("poll",
           [](Connector& c) {
    try {
      return c.poll();
    } catch (const NotReached& why) {
      const nb::object error = nb::module_::import_("builtins").attr("OSError")(why.code, why.what());
      PyErr_SetObject(PyExc_OSError, error.ptr());
      throw nb::python_error();
    }
  })
      .def_prop_ro("is_connected", &Connector::is_connected)
      .def_prop_ro("is_done", &Connector::is_done)
      .def_prop_ro("has_heard", [](const Connector& c) { return c.is_connected() && c.handshake().has_heard(); })
      .def_prop_ro("peer", &Connector::peer)
      .def_prop_ro("local_address", [](const Connector& c) { return bytes_of(c.local_address()); })
      .def_prop_ro("content", [](const Connector& c) { return to_python(c.handshake().content()); })
      .def_prop_ro("peer_key", [](const Connector& c) { return to_python(c.handshake().peer_key()); })
      .def_prop_ro("exporter", [](const Connector& c) { return exporter_of(c.handshake()); },
                   nb::sig("def exporter(self) -> bytes | None"))
      .def("allow", [](Connector& c) { c.handshake().allow(); }, "What the peer authenticates itself by is good.")
      .def("offer", [](Connector& c, const Offer& offer) { c.handshake().offer(encode(offer)); }, "offer"_a)
      .def("ready", [](Connector& c, std::uint32_t mtu, bool waits) { c.handshake().ready(mtu, waits); }, "mtu"_a,
           "waits"_a)
      .def("refuse",
           [](Connector& c, const std::string& why, const std::string& message_to_peer) {
    c.refuse(HandshakeRefused(why, message_to_peer));
  }, "why"_a, "message_to_peer"_a)
      .def("close", &Connector::close)
      .def("close_after_fork", &Connector::close_after_fork)
      .def("take", [](Connector& c) {
    Handshake& handshake = c.handshake();
    return nb::make_tuple(c.take_socket().release(), to_python(handshake.goodbye()),
                          to_python(handshake.goodbye_of_peer()), to_python(handshake.rest()));
  }, nb::sig("def take(self) -> tuple[int, bytes, bytes, bytes]"));
}

}  // namespace

void bind_handshake(nb::module_& m) {
  m.attr("HANDSHAKE_VERSION") = handshake_version;
  m.attr("WIRE_VERSION") = wire_version;
  nb::class_<Credentials>(m, "Credentials", "What an end authenticates itself by.")
      .def_static("none", [] { return Credentials{}; })
      .def_static("of_secret",
                  [](const nb::bytes& secret) {
    check_available();
    return Credentials::of_secret(from_python(secret));
  }, "secret"_a)
      .def_static("of_key", [](const nb::bytes& key) {
    check_available();
    return Credentials::of_key(secret_of(key, "key"));
  }, "key"_a);
  bind_offer(m);
  bind_acceptor(m);
  bind_connector(m);
}

}  // namespace softmrc::python
