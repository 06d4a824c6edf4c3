#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>

#include "control/control_server.h"
#include "host/device_plan.h"
#include "host/faults.h"
#include "host/host_error.h"
#include "python/bind.h"
#include "python/engine_views.h"
#include "python/wire_values.h"
#include "udp/device_error.h"
#include "udp/views.h"

namespace nb = nanobind;

namespace softmrc::python {

using namespace nb::literals;
using namespace udp;
using host::LocalPlane;

namespace {

wire::Address address_of(nb::bytes raw) {
  if (raw.size() == 4) {
    wire::Ipv4 v4;
    std::memcpy(v4.data(), raw.c_str(), 4);
    return v4;
  }
  if (raw.size() != 16)
    raise_if(
        proto::Error{proto::Error::Kind::config, "address", std::to_string(raw.size()) + " bytes", "4 or 16 bytes"});
  wire::Ipv6 v6;
  std::memcpy(v6.data(), raw.c_str(), 16);
  return v6;
}

void check_alive(Device& device) {
  if (!device.is_closed()) return;
  if (const std::string failure = device.failure(); !failure.empty()) throw CheckFailure(failure);
  raise_if(proto::Error{proto::Error::Kind::usage, "device", "closed", "an open device"});
}

std::uint32_t checked_plane(Device& device, std::uint32_t plane) {
  if (plane >= device.planes())
    raise_if(proto::Error{proto::Error::Kind::config, "plane", std::to_string(plane),
                          "below " + std::to_string(device.planes())});
  return plane;
}

std::uint32_t checked_lane(Device& device, std::uint32_t lane) {
  if (lane >= device.lanes())
    raise_if(proto::Error{proto::Error::Kind::config, "lane", std::to_string(lane),
                          "below " + std::to_string(device.lanes())});
  return lane;
}

void check_cq(Device& device, std::uint32_t cq) {
  if (!device.has_cq(cq))
    raise_if(proto::Error{proto::Error::Kind::config, "cq", std::to_string(cq), "a completion queue of this device"});
}

proto::PostStatus post_write(Device& device, std::uint32_t qpn, std::uint64_t wr_id, const Buffer& source,
                             std::uint64_t offset, std::uint32_t length, std::uint64_t remote_va, std::uint32_t rkey,
                             std::optional<std::uint32_t> imm, bool is_signaled) {
  if (offset > source.size() || length > source.size() - offset)
    raise_if(proto::Error{proto::Error::Kind::config, "length", std::to_string(length),
                          "at most the " + std::to_string(source.size()) + " bytes of the source, from offset " +
                              std::to_string(offset)});
  check_alive(device);
  proto::WorkRequest request;
  request.wr_id = wr_id;
  request.data = source.data() + offset;
  request.remote_va = remote_va;
  request.rkey = rkey;
  request.length = length;
  request.imm = imm.value_or(0);
  request.has_imm = imm.has_value();
  request.is_signaled = is_signaled;
  GilRelease release;
  return device.lane_of(qpn).with_engine_and_send(
      [&](proto::Endpoint& e, Time now) { return e.post_write(now, qpn, request); });
}

nb::bytes taken(const std::vector<proto::Completion>& found, std::size_t count) {
  return nb::bytes(reinterpret_cast<const char*>(found.data()), count * sizeof(proto::Completion));
}

nb::bytes wait(Device& device, std::uint32_t cq, std::size_t most, double timeout_s) {
  check_alive(device);
  check_cq(device, cq);
  std::vector<proto::Completion> found(std::min<std::size_t>(most, 4096));
  std::size_t count = 0;
  wait_in_slices(timeout_s, [&](Duration slice) {
    count = device.wait(cq, found, slice);
    return count > 0 || device.is_closed() || !device.has_cq(cq);
  });
  if (count == 0) {
    check_alive(device);
    check_cq(device, cq);
  }
  return taken(found, count);
}

// True when everything posted to this queue pair has ended.
bool flush(Device& device, std::uint32_t qpn, double timeout_s) {
  Lane& lane = device.lane_of(qpn);
  const auto is_done = [&] {
    const proto::QueuePair* pair = lane.engine().qp(qpn);
    return !pair || !pair->requester().has_work();
  };
  bool has_ended = false;
  wait_in_slices(timeout_s, [&](Duration slice) {
    has_ended = lane.wait_until(is_done, slice);
    return has_ended || device.is_closed();
  });
  return has_ended;
}

nb::bytes poll(Device& device, std::uint32_t cq, std::size_t most) {
  check_cq(device, cq);
  std::vector<proto::Completion> found(std::min<std::size_t>(most, 4096));
  return taken(found, device.poll(cq, found));
}

nb::bytes poll_events(Device& device, std::size_t most) {
  std::vector<proto::Event> found;
  device.take_events(found, most);
  return nb::bytes(reinterpret_cast<const char*>(found.data()), found.size() * sizeof(proto::Event));
}

// Making a Python object may run any code, which may wait for another thread. So none is made while the engine is
// locked: values are copied first (udp/views.h) and converted afterwards.

nb::list plane_rows(Device& device) {
  nb::list rows;
  for (const PlaneView& view : view_planes(device)) {
    nb::dict d;
#define X(name) d[#name] = view.stats.name;
    SOFTMRC_PLANE_COUNTERS(X)
#undef X
    d["source_ports"] = view.source_ports;
    d["is_up"] = view.is_up;
    d["is_admin_up"] = view.is_admin_up;
    d["is_link_up"] = view.is_link_up;
    d["interface"] = view.interface;
    d["path_mtu"] = view.path_mtu;
    d["link_mtu"] = view.link_index ? link_mtu(view.link_index) : 0;
    if (!view.source_ports.empty()) {
      d["receive_buffer_bytes"] = view.receive_buffer_bytes;
      d["send_buffer_bytes"] = view.send_buffer_bytes;
      d["has_gro"] = view.has_gro;
      d["has_gso"] = view.has_gso;
    }
    rows.append(d);
  }
  return rows;
}

// By plane.
std::vector<std::vector<std::uint16_t>> lane_ports(Device& device, std::uint32_t number) {
  Lane& lane = device.lane(checked_lane(device, number));
  return lane.with_engine([&](proto::Endpoint&, Time) {
    std::vector<std::vector<std::uint16_t>> ports;
    for (const Plane& plane : lane.planes()) {
      ports.emplace_back();
      for (const Socket& socket : plane.sockets) ports.back().push_back(socket.port());
    }
    return ports;
  });
}

nb::list lane_rows(Device& device) {
  nb::list rows;
  for (const LaneView& view : view_lanes(device)) {
    nb::dict d = stats_dict(view.engine);
#define X(name) d[#name] = view.lane.name;
    SOFTMRC_LANE_COUNTERS(X)
#undef X
    rows.append(d);
  }
  return rows;
}

nb::dict fault_stats(Device& device, std::uint32_t plane) {
  const FaultStats sum = view_planes(device)[plane].faulted;
  nb::dict d;
#define X(name) d[#name] = sum.name;
  SOFTMRC_FAULT_COUNTERS(X)
#undef X
  return d;
}

nb::object ip_address(const wire::Address& address) {
  return nb::module_::import_("ipaddress").attr("ip_address")(to_bytes({address.bytes.data(), address.size()}));
}

nb::tuple fields_of(const LocalPlane& plane) {
  return nb::make_tuple(ip_address(plane.address), plane.interface, plane.link, plane.link_mtu, plane.speed_bps);
}

void bind_planes(nb::module_& m) {
  nb::class_<LocalPlane>(m, "LocalPlane", "One plane of a device, resolved.")
      .def("__init__",
           [](LocalPlane* self, const nb::object& address, const std::string& interface, const std::string& link,
              std::uint32_t link_mtu, std::uint64_t speed_bps) {
    new (self)
        LocalPlane{address_of(nb::cast<nb::bytes>(address.attr("packed"))), interface, link, link_mtu, speed_bps};
  },
           "address"_a, "interface"_a, "link"_a, "link_mtu"_a, "speed_bps"_a = 0)
      .def_prop_ro("address", [](const LocalPlane& plane) { return ip_address(plane.address); },
                   nb::sig("def address(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address"))
      .def_ro("interface", &LocalPlane::interface, "It is bound to it; empty: it follows the routes.")
      .def_ro("link", &LocalPlane::link, "The interface that has the address; empty where none does.")
      .def_ro("link_mtu", &LocalPlane::link_mtu)
      .def_ro("speed_bps", &LocalPlane::speed_bps,
              "What the kernel said of the link; 0 where it does not know, as of loopback and veth, or guesses.")
      .def_prop_ro("scope_id", &LocalPlane::scope_id)
      .def_prop_ro("payload_mtu", [](const LocalPlane& plane) { return plane.payload_mtu(); },
                   "The largest payload whose packet fits the link.")
      .def("payload_mtu_with",
           [](const LocalPlane& plane, std::uint32_t overhead) {
    return plane.payload_mtu(overhead - proto::longest_data_headers);
  }, "overhead"_a, "The same with so many bytes around the payload.")
      .def("__str__", [](const LocalPlane& plane) { return host::to_string(plane); })
      .def("__repr__", [](const LocalPlane& plane) { return "<LocalPlane " + host::to_string(plane) + ">"; })
      .def("__reduce__", [](const nb::handle_t<LocalPlane>& self) {
    return nb::make_tuple(self.type(), fields_of(nb::cast<const LocalPlane&>(self)));
  }).def("__hash__", [](const LocalPlane& plane) {
    return nb::hash(fields_of(plane));
  }).def("__eq__", [](const LocalPlane& plane, const LocalPlane& other) {
    return fields_of(plane).equal(fields_of(other));
  }, nb::is_operator(), nb::sig("def __eq__(self, arg: object, /) -> bool"));
  m.attr("SMALLEST_MTU") = host::smallest_mtu;
  m.attr("PAYLOAD_UNIT") = host::payload_unit;
  m.def("resolve_plane", &host::resolve, "name"_a, "why"_a = "", "links"_a = host::sys_class_net);
  m.def("link_speed", &host::link_speed, "link"_a, "links"_a = host::sys_class_net);
  m.def("payload_mtu", [](const std::vector<LocalPlane>& planes) { return host::payload_mtu(planes); }, "planes"_a);
  m.def("choose_mtu", &host::choose_mtu, "planes"_a, "wanted"_a, "limit"_a);
  m.def("sealed_mtu", &host::sealed_mtu, "planes"_a, "plain"_a);
  nb::class_<PeerPlane>(m, "PeerPlane")
      .def("__init__", [](PeerPlane* self, nb::bytes address, std::uint32_t scope_id, std::uint16_t port,
                          std::vector<std::uint16_t> source_ports) {
    new (self) PeerPlane();
    self->address = address_of(address);
    self->scope_id = scope_id;
    self->port = port;
    self->source_ports = std::move(source_ports);
  });
  m.def("local_addresses", [] {
    nb::list rows;
    for (const LocalAddress& a : local_addresses())
      rows.append(nb::make_tuple(
          a.interface, nb::bytes(reinterpret_cast<const char*>(a.address.bytes.data()), a.address.size()), a.mtu));
    return rows;
  });
  m.def("address_sum", [](nb::bytes address) { return address_sum(address_of(address).bytes); });

  nb::class_<Faults> faults(m, "Faults");
  faults.def(nb::init<>())
      .def_rw("drop", &Faults::drop)
      .def_rw("duplicate", &Faults::duplicate)
      .def_rw("reorder", &Faults::reorder)
      .def_rw("corrupt", &Faults::corrupt)
      .def_rw("mark", &Faults::mark)
      .def_rw("trim", &Faults::trim)
      .def_rw("black_hole", &Faults::black_hole)
      .def_rw("mtu", &Faults::mtu);
  def_us(faults, "delay_us", &Faults::delay);
  def_us(faults, "reorder_delay_us", &Faults::reorder_delay);
}

template <typename Class>
void bind_engine_calls(Class& c) {
  using proto::Endpoint;
  c.def("add_ev_profile",
        [](Device& d, std::uint32_t lane, const proto::EvProfile& profile) {
    std::uint32_t id = 0;
    raise_if(d.lane(checked_lane(d, lane)).with_engine([&](Endpoint& e, Time) {
      return e.add_ev_profile(std::make_shared<proto::EvProfile>(profile), id);
    }));
    return id;
  })
      .def("add_cc_profile",
           [](Device& d, std::uint32_t lane, const proto::CcProfile& profile) {
    std::uint32_t id = 0;
    raise_if(d.lane(checked_lane(d, lane)).with_engine([&](Endpoint& e, Time) {
      return e.add_cc_profile(std::make_shared<proto::CcProfile>(profile), id);
    }));
    return id;
  })
      .def("remove_ev_profile",
           [](Device& d, std::uint32_t lane, std::uint32_t id) {
    return d.lane(checked_lane(d, lane)).with_engine([&](Endpoint& e, Time) { return e.remove_ev_profile(id); });
  })
      .def("remove_cc_profile",
           [](Device& d, std::uint32_t lane, std::uint32_t id) {
    return d.lane(checked_lane(d, lane)).with_engine([&](Endpoint& e, Time) { return e.remove_cc_profile(id); });
  })
      .def("create_cq", &Device::create_cq)
      .def("destroy_cq", [](Device& d, std::uint32_t cq) { raise_if(d.destroy_cq(cq)); })
      .def("create_domain", &Device::create_domain)
      .def("add_region",
           [](Device& d, std::uint32_t rkey, std::uint64_t va, const Buffer& buffer, proto::Domain domain) {
    return d.add_region({buffer.data(), va, buffer.size(), rkey, nullptr, domain});
  })
      .def("remove_region", &Device::remove_region)
      .def("reads_from", [](Device& d, const Buffer& b) { return d.reads_from(b.data(), b.data() + b.size()); })
      .def("create_qp", [](Device& d, std::uint32_t qpn) { raise_if(d.create_qp(qpn)); })
      .def("modify_init",
           [](Device& d, std::uint32_t qpn, const proto::InitAttributes& a, std::optional<std::uint32_t> evs,
              std::optional<std::uint32_t> control) { raise_if(d.modify_init(qpn, a, {evs, control})); },
           nb::arg("qpn"), nb::arg("attributes"), nb::arg("ev_profile").none() = nb::none(),
           nb::arg("cc_profile").none() = nb::none())
      .def("has_wide_evs",
           [](Device& d, std::uint32_t qpn) {
    return d.lane_of(qpn).with_engine([&](Endpoint& e, Time) {
      const proto::QueuePair* pair = e.qp(qpn);
      return pair && pair->ev_profile().is_wide();
    });
  })
      .def("modify_rtr",
           [](Device& d, std::uint32_t qpn, const proto::RtrAttributes& a, SealKeys* seal) {
    raise_if(d.modify_rtr(qpn, a, seal));
  }, nb::arg("qpn"), nb::arg("attributes"), nb::arg("seal").none() = nb::none())
      .def("watch_bootstrap",
           [](Device& d, std::uint32_t qpn, int fd, nb::bytes goodbye, nb::bytes received,
              const std::vector<std::uint32_t>& cqs) {
    for (const std::uint32_t cq : cqs) check_cq(d, cq);
    d.watch_bootstrap(qpn, fd, {goodbye.c_str(), goodbye.size()}, {received.c_str(), received.size()}, cqs);
  },
           nb::arg("qpn"), nb::arg("fd"), nb::arg("goodbye"), nb::arg("received"), nb::arg("cqs"))
      .def("peer_state", [](Device& d, std::uint32_t qpn) { return d.lane_of(qpn).peer_state(qpn); }, nb::arg("qpn"))
      // Whether queue pairs ended by this, and whether of some peer it is not known if it is gone.
      .def("end_gone", &Device::end_gone)
      .def("modify_rts",
           [](Device& d, std::uint32_t qpn, const proto::RtsAttributes& a) {
    raise_if(d.lane_of(qpn).with_engine([&](Endpoint& e, Time now) { return e.modify_rts(now, qpn, a); }));
  })
      .def("modify_error",
           [](Device& d, std::uint32_t qpn) {
    raise_if(d.lane_of(qpn).with_engine_and_send([&](Endpoint& e, Time now) { return e.modify_error(now, qpn); }));
  })
      .def("destroy_qp", &Device::destroy_qp)
      .def("has_qp",
           [](Device& d, std::uint32_t qpn) {
    return d.lane_of(qpn).with_engine([&](Endpoint& e, Time) { return e.qp_state(qpn).has_value(); });
  })
      .def("query_qp",
           [](Device& d, std::uint32_t qpn) {
    return query_dict(qpn, d.lane_of(qpn).with_engine([&](Endpoint& e, Time) { return view_qp(e, qpn); }));
  })
      .def("query_evs",
           [](Device& d, std::uint32_t qpn) {
    return ev_rows(qpn, d.lane_of(qpn).with_engine([&](Endpoint& e, Time) { return view_evs(e, qpn); }));
  })
      .def("query_ev_values",
           [](Device& d, std::uint32_t qpn) {
    return ev_values(qpn, d.lane_of(qpn).with_engine([&](Endpoint& e, Time) { return view_ev_values(e, qpn); }));
  })
      .def("deny_ev",
           [](Device& d, std::uint32_t qpn, std::uint32_t ev) {
    raise_if(d.lane_of(qpn).with_engine_and_send([&](Endpoint& e, Time now) { return e.deny_ev(now, qpn, ev); }));
  })
      .def("allow_ev",
           [](Device& d, std::uint32_t qpn, std::uint32_t ev) {
    raise_if(d.lane_of(qpn).with_engine_and_send([&](Endpoint& e, Time now) { return e.allow_ev(now, qpn, ev); }));
  })
      .def("replace_ev",
           [](Device& d, std::uint32_t qpn, std::uint32_t ev, std::uint32_t value) {
    raise_if(
        d.lane_of(qpn).with_engine_and_send([&](Endpoint& e, Time now) { return e.replace_ev(now, qpn, ev, value); }));
  })
      .def("replace_ev",
           [](Device& d, std::uint32_t qpn, std::uint32_t ev, const nb::bytes& value) {
    const wire::EvBytes bytes = ev_bytes_from(value);
    raise_if(
        d.lane_of(qpn).with_engine_and_send([&](Endpoint& e, Time now) { return e.replace_ev(now, qpn, ev, bytes); }));
  })
      .def("qp_stats",
           [](Device& d, std::uint32_t qpn) {
    const auto stats = d.lane_of(qpn).with_engine([&](Endpoint& e, Time) {
      const proto::QueuePair* pair = e.qp(qpn);
      return pair ? std::optional(pair->stats()) : std::nullopt;
    });
    if (!stats) raise_missing(qpn);
    return stats_dict(*stats);
  })
      .def("post_write", &post_write, nb::arg("qpn"), nb::arg("wr_id"), nb::arg("source"), nb::arg("offset"),
           nb::arg("length"), nb::arg("remote_va"), nb::arg("rkey"), nb::arg("imm").none(), nb::arg("is_signaled"))
      .def("post_receive",
           [](Device& d, std::uint32_t qpn, std::uint64_t wr_id, std::uint32_t count) {
    check_alive(d);
    return d.lane_of(qpn).with_engine([&](Endpoint& e, Time) {
      const proto::QueuePair* pair = e.qp(qpn);
      // All of them or none.
      if (pair && count > proto::Responder::max_receives - pair->responder().receives_posted())
        return proto::PostStatus::queue_full;
      proto::PostStatus status = proto::PostStatus::ok;
      for (std::uint32_t i = 0; i < count && status == proto::PostStatus::ok; ++i) status = e.post_receive(qpn, wr_id);
      return status;
    });
  })
      .def("set_port", [](Device& d, std::uint32_t plane, bool up) {
    checked_plane(d, plane);
    d.set_port(plane, up);
  }).def("probe", [](Device& d, std::uint32_t peer, std::uint8_t plane, std::uint32_t entropy, std::uint32_t token) {
    checked_plane(d, plane);
    return d.probe(peer, plane, {&entropy, 1}, token) == 1;
  });
}

// What the environment asks for; empty where it asks for none.
std::string inject_env_faults(Device& device) {
  const std::string said = host::read_faults(host::of_process);
  raise_if(host::check_faults(said, device.planes()));
  if (!said.empty()) host::set_faults(device, said);
  return said;
}

// The path, and where there is none, why.
nb::tuple open_control(Device& device, const std::string& kind, std::uint32_t mtu, const std::string& settings,
                       std::vector<std::uint64_t> speeds_bps) {
  bool is_wanted = true;
  raise_if(host::read_control(host::of_process, is_wanted));
  if (!is_wanted) return nb::make_tuple("", "SOFTMRC_CONTROL is 0");
  control::DeviceInfo facts;
  facts.kind = kind;
  facts.mtu = mtu;
  facts.settings = host::parse_json(settings);
  facts.speeds_bps = std::move(speeds_bps);
  std::string why;
  const std::string path = control::open_control(device, std::move(facts), why);
  return nb::make_tuple(path, why);
}

}  // namespace

void bind_device(nb::module_& m) {
  bind_planes(m);
  m.def("inject_env_faults", &inject_env_faults);
  m.def("open_control", &open_control, nb::arg("device"), nb::arg("kind"), nb::arg("mtu"), nb::arg("settings"),
        nb::arg("speeds_bps"));
  nb::enum_<PeerState>(m, "PeerState")
      .value("PRESENT", PeerState::present)
      .value("UNCONFIRMED", PeerState::unconfirmed)
      .value("GONE", PeerState::gone);
  nb::class_<Device> device(m, "Device");
  device.def("__init__",
             [](Device* self, const host::DeviceSettings& settings, const std::vector<LocalPlane>& planes,
                std::uint32_t mtu, std::uint32_t lanes) {
    const DeviceConfig plan = host::device_plan(settings, planes, mtu, lanes);
    raise_if(validate(plan));
    new (self) Device(plan);
  },
             "settings"_a, "planes"_a, "mtu"_a, "lanes"_a);
  bind_engine_calls(device);
  device.def("close", &Device::close, nb::call_guard<GilRelease>())
      .def_prop_ro("is_closed", &Device::is_closed)
      .def_prop_ro("is_over", &Device::is_over)
      .def("abandon", &Device::close_after_fork)
      .def("cut_short", &Device::stop_lingering, nb::call_guard<GilRelease>())
      .def("wait_until_over",
           [](Device& d, double timeout_s) {
    return d.wait_until_over(Duration{static_cast<std::int64_t>(timeout_s * 1e12)});
  }, nb::call_guard<GilRelease>())
      .def_prop_ro("lane_count", &Device::lanes)
      .def_prop_ro("open_lanes", &Device::open_lanes)
      .def("emptiest_lane", &Device::least_loaded_lane)
      .def("lane_ports", &lane_ports)
      .def_prop_ro("has_gso", [](Device& d) { return d.lane(0).has_gso(); })
      .def_prop_ro("spin_us", [](Device& d) { return static_cast<double>(d.spin().ps) / 1e6; })
      .def("set_spin_us", [](Device& d, double us) { d.set_spin(Duration{static_cast<std::int64_t>(us * 1e6)}); })
      .def("add_peer",
           [](Device& d, const std::vector<PeerPlane>& planes) {
    std::uint32_t peer = 0;
    raise_if(d.add_peer(planes, peer));
    return peer;
  })
      .def("remove_peer", &Device::remove_peer)
      .def("expect_peer",
           [](Device& d, std::uint32_t lane, const std::vector<PeerPlane>& planes) {
    std::uint32_t place = 0;
    raise_if(d.expect_peer(lane, planes, place));
    return place;
  })
      .def("forget_peer", &Device::forget_peer)
      .def("narrow", [](Device& d, std::uint32_t qpn, std::uint32_t mtu) { raise_if(d.reduce_mtu(qpn, mtu)); },
           nb::arg("qpn"), nb::arg("mtu"))
      .def("survey_sizes",
           [](Device& d, std::uint32_t lane, const std::vector<PeerPlane>& planes) {
    if (planes.size() != d.planes())
      raise_if(proto::Error{proto::Error::Kind::config, "planes", std::to_string(planes.size()),
                            std::to_string(d.planes())});
    return d.lane(checked_lane(d, lane)).start_pmtu_discovery(planes);
  }, nb::arg("lane"), nb::arg("planes"))
      .def("ask_sizes",
           [](Device& d, std::uint32_t lane, std::uint32_t survey, const std::vector<std::uint32_t>& sizes) {
    for (const std::uint32_t bytes : sizes)
      if (bytes > 65'535)
        raise_if(proto::Error{proto::Error::Kind::config, "sizes", std::to_string(bytes), "at most 65,535"});
    d.lane(checked_lane(d, lane)).send_pmtu_probes(survey, sizes);
  }, nb::arg("lane"), nb::arg("survey"), nb::arg("sizes"))
      .def("sizes_answered",
           [](Device& d, std::uint32_t lane, std::uint32_t survey) {
    return d.lane(checked_lane(d, lane)).pmtu_results(survey);
  }, nb::arg("lane"), nb::arg("survey"))
      .def("end_survey",
           [](Device& d, std::uint32_t lane, std::uint32_t survey) {
    d.lane(checked_lane(d, lane)).end_pmtu_discovery(survey);
  }, nb::arg("lane"), nb::arg("survey"))
      .def("set_path_mtu",
           [](Device& d, std::uint32_t plane, std::uint32_t bytes) { d.set_path_mtu(checked_plane(d, plane), bytes); },
           nb::arg("plane"), nb::arg("bytes"))
      .def("expect_seal", &Device::expect_seal)
      .def_prop_ro("cq_count", [](Device& d) { return d.completion_queues(); })
      .def_prop_ro("expected_seal_count", [](Device& d) { return d.expected_seals(); })
      .def_prop_ro("peer_count", [](Device& d) { return d.peers(); })
      .def_prop_ro("qp_count", [](Device& d) { return d.queue_pairs(); })
      .def_prop_ro("region_count", [](Device& d) { return d.regions(); })
      .def("wait", &wait, nb::arg("cq"), nb::arg("most"), nb::arg("timeout_s"))
      .def("poll", &poll)
      .def("flush", &flush)
      .def("poll_events", &poll_events)
      .def("completion_fd",
           [](Device& d, std::uint32_t cq) {
    check_cq(d, cq);
    return d.completion_fd(cq);
  })
      .def("event_fd", &Device::event_fd)
      .def("planes", &plane_rows)
      .def("lanes", &lane_rows)
      .def("faults",
           [](Device& d, std::uint32_t plane) {
    checked_plane(d, plane);
    return d.faults(plane);
  })
      .def("set_faults",
           [](Device& d, std::uint32_t plane, const Faults& faults) {
    checked_plane(d, plane);
    d.set_faults(plane, faults);
  })
      .def("fault_stats", [](Device& d, std::uint32_t plane) { return fault_stats(d, checked_plane(d, plane)); })
      .def("start_capture", &Device::start_capture)
      .def("stop_capture", &Device::stop_capture);
}

}  // namespace softmrc::python
