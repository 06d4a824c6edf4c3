// What C faces share, by itself, for tests that put it next to its twin in Python: in `_core.parts`.
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>

#include "bind/bind.h"
#include "face/exchange.h"
#include "face/faults.h"
#include "face/node.h"

namespace nb = nanobind;

namespace softmrc::bind {

using namespace face;

namespace {

template <typename F>
auto told(F f) {
  try {
    return f();
  } catch (const Refusal& why) {
    throw nb::value_error(why.what());
  }
}

nb::bytes in_python(std::span<const std::uint8_t> bytes) { return nb::bytes(bytes.data(), bytes.size()); }
std::span<const std::uint8_t> of_python(const nb::bytes& bytes) { return {static_cast<const std::uint8_t*>(bytes.data()), bytes.size()}; }

nb::dict settings_of(const std::map<std::string, std::string>& environment) {
  const Settings settings = told([&] {
    return read_settings([&](const char* name) {
      const auto found = environment.find(name);
      return found == environment.end() ? "" : found->second;
    });
  });
  nb::dict device;
  proto::each_setting<DeviceSettings>([&](const auto& one) { device[one.name] = settings.device.*one.member; });
  nb::dict found;
  found["planes"] = settings.planes;
  found["device"] = device;
  found["secret"] = settings.secret;
  found["faults"] = settings.faults;
  found["capture"] = settings.capture;
  return found;
}

nb::tuple plane_of(const std::string& name) {
  const LocalPlane plane = told([&] { return resolve(name); });
  return nb::make_tuple(in_python({plane.address.bytes.data(), plane.address.size()}), plane.interface, plane.link, plane.link_mtu,
                        plane.payload_mtu(), plane.speed_bps());
}

nb::list faults_of(const std::string& text, std::size_t planes) {
  nb::list rows;
  for (const udp::Faults& f : told([&] { return parse_faults(text, planes); })) {
    nb::dict row;
    row["drop"] = f.drop;
    row["duplicate"] = f.duplicate;
    row["reorder"] = f.reorder;
    row["corrupt"] = f.corrupt;
    row["mark"] = f.mark;
    row["trim"] = f.trim;
    row["delay_us"] = static_cast<double>(f.delay.ps) / 1e6;
    row["reorder_delay_us"] = static_cast<double>(f.reorder_delay.ps) / 1e6;
    row["black_hole"] = f.black_hole;
    rows.append(row);
  }
  return rows;
}

// One side of an exchange, whose offer is what it was given.
struct Talker final : Party {
  Talker(bool is_connector, const std::string& secret, const nb::bytes& token, const nb::bytes& words)
      : own(of_python(words).begin(), of_python(words).end()),
        exchange(is_connector ? Exchange::Role::connector : Exchange::Role::listener, secret, token_of(token), *this) {}
  Bytes offer() override { return own; }
  void accept(std::span<const std::uint8_t> words) override { theirs.assign(words.begin(), words.end()); }

  static Token token_of(const nb::bytes& bytes) {
    Token token{};
    std::copy_n(of_python(bytes).begin(), std::min(bytes.size(), token.size()), token.begin());
    return token;
  }

  Bytes own, theirs;
  Exchange exchange;
};

}  // namespace

void bind_face(nb::module_& m) {
  m.def("face_settings", settings_of);
  m.def("face_plane", plane_of);
  m.def("face_faults", faults_of);
  m.def("hmac_sha256", [](const nb::bytes& key, const nb::bytes& text) { return in_python(hmac_sha256(of_python(key), of_python(text))); });
  m.def("face_offer", [](const nb::bytes& bytes) { return in_python(encode(told([&] { return decode_offer(of_python(bytes)); }))); },
        "An offer that was read, as it is written: the same, or a ValueError.");
  nb::class_<Talker>(m, "FaceExchange")
      .def(nb::init<bool, const std::string&, const nb::bytes&, const nb::bytes&>())
      .def("hear", [](Talker& t, const nb::bytes& bytes) { told([&] { return t.exchange.hear(of_python(bytes)), 0; }); })
      .def("take_outgoing", [](Talker& t) { return in_python(t.exchange.take_outgoing()); })
      .def_prop_ro("is_done", [](const Talker& t) { return t.exchange.is_done(); })
      .def_prop_ro("theirs", [](const Talker& t) { return in_python(t.theirs); });
}

}  // namespace softmrc::bind
