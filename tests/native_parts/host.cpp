// What C faces share, by itself, for tests that put it next to its twin in Python.
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <chrono>
#include <map>

#include "host/denylist.h"
#include "host/fabric_host.h"
#include "host/faults.h"
#include "host/handshake.h"
#include "host/handshake_io.h"
#include "host/json.h"
#include "host/node.h"
#include "host/sealing.h"
#include "parts.h"
#include "python/bind.h"
#include "udp/device_error.h"
#include "udp/private_file.h"

namespace nb = nanobind;

namespace softmrc::python {

using namespace host;

namespace {

template <typename F>
auto told(F f) {
  try {
    return f();
  } catch (const HostError& why) {
    throw nb::value_error(why.what());
  }
}

nb::bytes to_python(std::span<const std::uint8_t> bytes) { return nb::bytes(bytes.data(), bytes.size()); }
std::span<const std::uint8_t> from_python(const nb::bytes& bytes) {
  return {static_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

nb::dict settings_of(const std::map<std::string, std::string>& environment) {
  const HostSettings settings = told([&] {
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
  found["control"] = settings.control;
  found["is_of_fabric"] = settings.fabric != nullptr;
  return found;
}

nb::list faults_of(const std::string& text, std::size_t planes) {
  nb::list rows;
  for (const udp::Faults& f : told([&] { return parse_faults(text, planes); })) {
    nb::dict row;
#define X(name) row[#name] = f.name;
    SOFTMRC_FAULT_SHARES(X)
#undef X
    row["delay_us"] = static_cast<double>(f.delay.ps) / 1e6;
    row["reorder_delay_us"] = static_cast<double>(f.reorder_delay.ps) / 1e6;
    row["black_hole"] = f.black_hole;
    rows.append(row);
  }
  return rows;
}

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1e3));
}

// One side of an exchange, whose offer is what it was given.
struct Talker final : HandshakeDelegate {
  Talker(bool is_connector, const std::string& secret, const nb::bytes& token, const nb::bytes& words)
      : own(from_python(words).begin(), from_python(words).end()),
        exchange(is_connector ? Handshake::Role::connector : Handshake::Role::listener, secret, token_of(token),
                 *this) {}
  Bytes offer() override { return own; }
  void accept(std::span<const std::uint8_t> words) override { theirs.assign(words.begin(), words.end()); }

  static Token token_of(const nb::bytes& bytes) {
    Token token{};
    std::copy_n(from_python(bytes).begin(), std::min(bytes.size(), token.size()), token.begin());
    return token;
  }

  Bytes own, theirs;
  Handshake exchange;
};

// What a party was told, once it is through a door or a call.
std::unique_ptr<Talker> through(std::unique_ptr<HandshakeDelegate> party) {
  return std::unique_ptr<Talker>(static_cast<Talker*>(party.release()));
}

// Who has too little of something for every connection.
struct Short final : HandshakeDelegate {
  explicit Short(int& asked) : asked(asked) {}
  Bytes offer() override { return {}; }
  void accept(std::span<const std::uint8_t>) override {
    ++asked;
    throw udp::DeviceError(EMFILE, "no descriptor is left");
  }
  int& asked;
};

struct ShortDoor {
  ShortDoor(const std::string& secret, const nb::bytes& token, double patience_s)
      : door(wire::Ipv4{127, 0, 0, 1}, true, secret, Talker::token_of(token),
             [this] { return std::make_unique<Short>(asked); }, milliseconds_of(patience_s)) {}
  int asked = 0;
  HandshakeListener door;
};

HandshakeListener::MakeDelegate talkers(bool is_connector, const nb::bytes& token, const std::string& words) {
  return [=, token = Bytes(from_python(token).begin(), from_python(token).end())] {
    return std::make_unique<Talker>(is_connector, "", nb::bytes(token.data(), token.size()),
                                    nb::bytes(words.data(), words.size()));
  };
}

}  // namespace

void bind_host(nb::module_& m) {
  nb::class_<HandshakeListener>(m, "FaceDoor")
      .def("__init__",
           [](HandshakeListener* self, const std::string& secret, const nb::bytes& token, const std::string& offer,
              double patience_s) {
    told([&] {
      return new (self) HandshakeListener(wire::Ipv4{127, 0, 0, 1}, true, secret, Talker::token_of(token),
                                          talkers(false, token, offer), milliseconds_of(patience_s));
    });
  },
           nb::arg("secret"), nb::arg("token"), nb::arg("offer"), nb::arg("patience_s") = 60.0)
      .def_prop_ro("port", &HandshakeListener::port)
      .def("poll", [](HandshakeListener& door) {
    return told([&] { return through(door.poll([](const std::string&) {})); });
  }, "Who came through, or None.");
  nb::class_<ShortDoor>(m, "FaceShortDoor")
      .def(nb::init<const std::string&, const nb::bytes&, double>())
      .def_prop_ro("port", [](const ShortDoor& it) { return it.door.port(); })
      .def_ro("asked", &ShortDoor::asked, "How often it had too little.")
      .def("poll", [](ShortDoor& it) {
    std::vector<std::string> turned_away;
    it.door.poll([&](const std::string& who) { turned_away.push_back(who); });
    return turned_away;
  }, "What was told of those that were turned away.");
  nb::class_<HandshakeConnector>(m, "FaceCall")
      .def("__init__", [](HandshakeConnector* self, std::uint16_t port, const std::string& secret,
                          const nb::bytes& token, const std::string& offer, double patience_s) {
    told([&] {
      return new (self) HandshakeConnector({wire::Ipv4{127, 0, 0, 1}}, 0, port, secret, Talker::token_of(token),
                                           talkers(true, token, offer), milliseconds_of(patience_s));
    });
  }).def("poll", [](HandshakeConnector& call) { return told([&] { return through(call.poll()); }); });
  m.def("face_paths",
        [](const std::string& text, const std::string& host, std::uint32_t plane, const nb::bytes& address) {
    nb::list rows;
    wire::Ipv6 to{};
    std::copy_n(from_python(address).begin(), std::min(address.size(), to.size()), to.begin());
    for (const wire::Ipv6& path : told([&] { return FabricHost(text, "the file", host).paths(plane, to); }))
      rows.append(to_python(path));
    return rows;
  }, "The carriers from a host of a fabric to another's address in a plane.");
  m.def("face_denied",
        [](const std::string& text, const std::string& host, const std::string& denylist, const nb::bytes& address) {
    wire::Ipv6 to{};
    std::copy_n(from_python(address).begin(), std::min(address.size(), to.size()), to.begin());
    return told([&] {
      const FabricHost fabric(text, "the file", host);
      return Denylist(denylist, "the list", fabric).denied(fabric, to);
    });
  }, "The paths from a host to another's address in plane 0 that a denylist takes, by their numbers.");
  m.def("face_host_address", [](const std::string& text, const std::string& host) {
    return to_python(told([&] { return FabricHost(text, "the file", host).host_address(); }));
  });
  m.def("face_json", [](const std::string& text) { return told([&] { return parse_json(text).text(); }); },
        "JSON that was read, as it is written.");
  m.def("face_settings", settings_of);
  m.def("face_keys", [](std::uint32_t qpn) {
    const KeyShare ours = make_key_share(), theirs = make_key_share();
    told([&] {
      return derive_keys(ours, {crypto::Cipher::aes_256_gcm, qpn}, theirs.told, {crypto::Cipher::aes_256_gcm, qpn + 1},
                         "a secret"),
             0;
    });
  }, "Keys of a queue pair are drawn, and written to the key log.");
  m.def("open_own", [](const std::string& path, bool is_anew) {
    std::string why;
    const int fd = udp::open_private_file(path, is_anew ? udp::OpenMode::truncate : udp::OpenMode::append, why);
    if (fd < 0) throw nb::value_error(why.c_str());
    return fd;
  });
  m.def("face_faults", faults_of);
  m.def("hmac_sha256", [](const nb::bytes& key, const nb::bytes& text) {
    return to_python(hmac_sha256(from_python(key), from_python(text)));
  });
  m.def("face_offer", [](const nb::bytes& bytes) {
    return to_python(encode(told([&] { return decode_offer(from_python(bytes)); })));
  }, "An offer that was read, as it is written: the same, or a ValueError.");
  nb::class_<Talker>(m, "FaceExchange")
      .def(nb::init<bool, const std::string&, const nb::bytes&, const nb::bytes&>())
      .def("hear", [](Talker& t, const nb::bytes& bytes) {
    told([&] { return t.exchange.on_bytes(from_python(bytes)), 0; });
  }).def("take_outgoing", [](Talker& t) {
    return to_python(t.exchange.take_outgoing());
  }).def_prop_ro("is_done", [](const Talker& t) {
    return t.exchange.is_done();
  }).def_prop_ro("theirs", [](const Talker& t) { return to_python(t.theirs); });
}

}  // namespace softmrc::python
