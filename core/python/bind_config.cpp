#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "host/device_plan.h"
#include "host/host_error.h"
#include "host/toml.h"
#include "host/units.h"
#include "proto/congestion/controller.h"
#include "proto/transmit.h"
#include "python/bind.h"
#include "python/wire_values.h"
#include "udp/gso.h"
#include "wire/sealed.h"

namespace nb = nanobind;

namespace softmrc::python {

using namespace proto;

namespace {

// PSNs cross the boundary as numbers, and one that does not fit is refused here: a Psn cannot hold it.
template <typename Class, typename Struct>
void def_psn(Class& c, const char* name, Psn Struct::* member, const char* meaning) {
  c.def_prop_rw(name, [member](const Struct& s) { return (s.*member).value; },
                [member, name](Struct& s, std::uint32_t v) {
    raise_if(within<std::uint32_t>(name, v, 0, Psn::mask));
    s.*member = Psn(v);
  }, meaning);
}

nb::object to_python(Duration value) { return nb::float_(static_cast<double>(value.ps) / 1e6); }
nb::object to_python(Psn value) { return nb::int_(value.value); }
template <typename T>
nb::object to_python(const T& value) {
  return nb::cast(value);
}

// A class with a property for each setting, and in `declared` a row for each: name, default, bounds or none, meaning.
template <typename Struct>
nb::class_<Struct> bind_settings(nb::module_& m, nb::dict& declared, const char* name, const char* meaning) {
  nb::class_<Struct> c(m, name, meaning);
  c.def(nb::init<>());
  nb::list rows;
  each_setting<Struct>([&](const auto& one) {
    using Value = typename std::remove_cvref_t<decltype(one)>::Value;
    Value Struct::* const member = one.member;
    if constexpr (std::is_same_v<Value, Duration>) def_us(c, one.name, member, one.meaning);
    else if constexpr (std::is_same_v<Value, Psn>) def_psn(c, one.name, member, one.meaning);
    else c.def_rw(one.name, member, one.meaning);
    nb::object bounds = nb::none();
    if constexpr (!std::is_enum_v<Value>)
      if (one.bounds) bounds = nb::make_tuple(to_python(one.bounds->first), to_python(one.bounds->second));
    rows.append(nb::make_tuple(one.name, to_python(Struct{}.*member), bounds, one.meaning));
  });
  declared[name] = nb::make_tuple(meaning, rows);
  return c;
}

// What a person wrote, as a number; ConfigError names the field.
template <std::uint64_t (*read)(std::string_view)>
std::uint64_t quantity(const std::string& field, const nb::object& value) {
  std::string text;
  if (!nb::try_cast(value, text) && PyLong_CheckExact(value.ptr())) text = nb::str(value).c_str();
  try {
    return read(text);
  } catch (const host::UnitError& refusal) {
    raise_config_error(field, value, std::string("must be ") + refusal.what(), refusal.hint);
  }
}

}  // namespace

void bind_config(nb::module_& m) {
  nb::enum_<EvMode>(m, "EvMode")
      .value("AUTOMATIC", EvMode::automatic)
      .value("EXPLICIT", EvMode::explicit_)
      .value("GENERATED", EvMode::generated);
  nb::enum_<wire::EvFormat>(m, "EvFormat")
      .value("UDP", wire::EvFormat::udp)
      .value("STEV", wire::EvFormat::stev)
      .value("SRV6", wire::EvFormat::srv6);

  nb::dict declared;
  auto device = bind_settings<host::DeviceSettings>(m, declared, "DeviceConfig",
                                                    "A node on real sockets. The defaults are for software: coarser "
                                                    "timers, and windows that hide scheduling.");
  bind_settings<EndpointConfig>(m, declared, "EndpointConfig", "One node.");
  bind_settings<EvProfile>(m, declared, "EvProfile",
                           "The paths of a queue pair: how many, and where their entropy values come from.")
      .def("set_layout", [](EvProfile& p, const nb::tuple& layout) { p.layout = layout_from(layout); })
      .def("add_entry", [](EvProfile& p, std::uint32_t value, std::uint8_t port) {
    p.entries.push_back({value, port});
  }).def("add_entry", [](EvProfile& p, const nb::bytes& ev, std::uint8_t port) {
    p.entries.push_back({static_cast<std::uint32_t>(p.entries.size()), port});
    p.evs.push_back(ev_bytes_from(ev));
  });
  bind_settings<CcProfile>(m, declared, "CcProfile",
                           "Congestion control: which controller, the inputs of all, and the settings of each.")
      .def("limit_window", &CcProfile::limit_window, "As much as the network needs, but no more than so many bytes.");
  bind_settings<InitAttributes>(m, declared, "InitAttributes", "RESET → INIT.");
  bind_settings<RtrAttributes>(m, declared, "RtrAttributes", "INIT → RTR: what is needed to receive.");
  bind_settings<RtsAttributes>(m, declared, "RtsAttributes", "RTR → RTS: what is needed to send.");
  device.def("check", [](const host::DeviceSettings& d) { raise_if(host::validate(d)); })
      .def("congestion",
           [](const host::DeviceSettings& d, const std::vector<std::uint64_t>& speeds_bps, bool stays_here) {
    return host::congestion_of(d, speeds_bps, stays_here);
  }, nb::arg("speeds_bps"), nb::arg("stays_here"));
  m.def("as_rate_bps", &quantity<host::rate_bps>, nb::arg("field"), nb::arg("value").none());
  m.def("as_duration_ns", &quantity<host::duration_ns>, nb::arg("field"), nb::arg("value").none(),
        "Nanoseconds, from text such as `50ms`.");
  m.def("with_unit", [](const std::string& name, const nb::object& text) -> nb::object {
    std::string plain;
    nb::try_cast(text, plain);
    try {
      const host::TomlValue value = host::with_unit(name, plain);
      if (const auto* whole = std::get_if<std::int64_t>(&value)) return nb::cast(*whole);
      return nb::cast(std::get<double>(value));
    } catch (const host::UnitError& refusal) {
      raise_config_error(name, text, std::string("must be ") + refusal.what(), refusal.hint);
    }
  }, nb::arg("name"), nb::arg("text"), "What a setting of this name holds when a person has written this.");
  m.def("settings", [declared] { return declared; },
        "Every setting, as declared: by class, its meaning and rows of (name, default, bounds, meaning).");
  m.attr("RETRY_FOREVER") = retry_forever;
  m.attr("LONGEST_PACKET_OVERHEAD") = longest_data_headers + static_cast<std::uint32_t>(wire::icrc_size);
  m.attr("LONGEST_SEALED_OVERHEAD") = longest_data_headers + static_cast<std::uint32_t>(wire::sealed_data_overhead);
  m.def("packets_a_train", &udp::gso_segments, nb::arg("mtu"), "Full packets of this payload that leave together.");
  m.def("usual_quantum", &udp::default_quantum, nb::arg("mtu"),
        "How many packets of this payload share a path by default.");
  m.def("controllers", &Controllers::names, "The congestion controllers there are.");

  nb::class_<Buffer>(m, "Buffer")
      .def(nb::init<nb::object, bool>(), nb::arg("owner"), nb::arg("writable"))
      .def_prop_ro("size", &Buffer::size)
      .def_prop_ro("address", [](const Buffer& b) { return reinterpret_cast<std::uintptr_t>(b.data()); });
}

}  // namespace softmrc::python
