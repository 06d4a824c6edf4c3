// What C faces share, by itself, for tests that put it next to its twin in Python.
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>

#include "host/acceptor.h"
#include "host/denylist.h"
#include "host/fabric_host.h"
#include "host/faults.h"
#include "host/handshake.h"
#include "host/json.h"
#include "host/listening.h"
#include "host/node.h"
#include "nccl/comm_setup.h"
#include "nccl/party.h"
#include "parts.h"
#include "python/bind.h"
#include "udp/device_error.h"
#include "udp/private_file.h"

namespace nb = nanobind;
using namespace nanobind::literals;

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

// Whose offer is what it was given, and who may have too little of something for every connection.
class Talker final : public nccl::Party {
 public:
  Talker(std::string own, std::shared_ptr<int> shortages) : own_(std::move(own)), shortages_(std::move(shortages)) {}
  Bytes offer() override { return {own_.begin(), own_.end()}; }
  void accept(std::span<const std::uint8_t> theirs, const Handshake&) override {
    if (shortages_) throw udp::DeviceError(EMFILE, "no descriptor is left, time " + std::to_string(++*shortages_));
    theirs_.assign(theirs.begin(), theirs.end());
  }
  const Bytes& theirs() const { return theirs_; }

 private:
  const std::string own_;
  const std::shared_ptr<int> shortages_;
  Bytes theirs_;
};

nb::object through(const std::unique_ptr<nccl::Party>& party) {
  return party ? nb::object(to_python(static_cast<const Talker&>(*party).theirs())) : nb::none();
}

Credentials credentials_of(const nb::bytes& secret, const nb::bytes& token) {
  return Credentials::of_secret(from_python(secret), from_python(token));
}

// Where one of them listens, with its own limits and registry.
class ListeningTalker {
 public:
  ListeningTalker(const nb::bytes& secret, const nb::bytes& token, const std::string& offer, double patience_s,
                  bool is_short)
      : shortages_(is_short ? std::make_shared<int>() : nullptr),
        listener_(listen_at({wire::Ipv4{127, 0, 0, 1}}, 0, port_), credentials_of(secret, token),
                  std::make_shared<AcceptorRegistry>(), {}, [offer, shortages = shortages_] {
                    return std::make_unique<Talker>(offer, shortages);
                  }, milliseconds_of(patience_s)) {}
  std::uint16_t port() const { return port_; }
  int shortages() const { return shortages_ ? *shortages_ : 0; }
  nb::object poll(const nb::object& log) {
    return through(told([&] {
      return listener_.poll([&](const std::string& words) {
        logged_.push_back(words);
        if (!log.is_none()) log(words);
      });
    }));
  }
  std::vector<std::string> take_logged() { return std::exchange(logged_, {}); }

 private:
  std::uint16_t port_ = 0;
  std::shared_ptr<int> shortages_;
  nccl::CommListener listener_;
  std::vector<std::string> logged_;
};

// Acceptors are numbers here: nothing looks into one.
Admission::Key key_of(std::uintptr_t acceptor, std::uint64_t id) { return {reinterpret_cast<Acceptor*>(acceptor), id}; }

nb::object number_of(const std::optional<Admission::Key>& key) {
  return key ? nb::object(nb::make_tuple(reinterpret_cast<std::uintptr_t>(key->acceptor), key->id)) : nb::none();
}

void bind_admission(nb::module_& m) {
  using Clock = Admission::Clock;
  const auto at = [](int second) { return Clock::time_point(std::chrono::seconds(second)); };
  nb::class_<AcceptorLimits>(m, "AcceptorLimits")
      .def("__init__",
           [](AcceptorLimits* self, std::uint32_t pending, std::uint32_t pending_per_address, std::uint32_t connections,
              std::uint32_t connections_per_address) {
    new (self) AcceptorLimits{{}, pending, pending_per_address, connections, connections_per_address};
  },
           "pending"_a = 100, "pending_per_address"_a = 100, "connections"_a = 100, "connections_per_address"_a = 100);
  nb::class_<Admission>(m, "Admission")
      .def(nb::init<>())
      .def("begin", [at](Admission& a, std::uintptr_t acceptor, std::uint64_t id, const std::string& origin,
                         int second) { a.begin(key_of(acceptor, id), origin, at(second)); })
      .def("authenticate", [at](Admission& a, std::uintptr_t acceptor, std::uint64_t id, const AcceptorLimits& limits,
                                int second) { return a.authenticate(key_of(acceptor, id), limits, at(second)); })
      .def("complete",
           [](Admission& a, std::uintptr_t acceptor, std::uint64_t id) { a.complete(key_of(acceptor, id)); })
      .def("refuse", [](Admission& a, std::uintptr_t acceptor, std::uint64_t id) { a.refuse(key_of(acceptor, id)); })
      .def("end", [](Admission& a, std::uintptr_t acceptor, std::uint64_t id) { a.end(key_of(acceptor, id)); })
      .def("connect",
           [](Admission& a, std::uintptr_t acceptor, std::uint64_t id) { return a.connect(key_of(acceptor, id)); })
      .def("disconnect", &Admission::disconnect)
      .def("surplus", [](Admission& a, std::uintptr_t acceptor, std::uint64_t id,
                         const AcceptorLimits& limits) { return number_of(a.surplus(key_of(acceptor, id), limits)); })
      .def("oldest", [](Admission& a, std::uintptr_t acceptor, bool is_authenticated) {
    return number_of(a.oldest(key_of(acceptor, 0).acceptor, is_authenticated));
  }).def("counts", [](const Admission& a) {
    const Admission::Counts found = a.counts();
    return nb::make_tuple(found.pending, found.authenticated, found.connections);
  });
}

// What is left in memory of the bytes of a key when they are destroyed.
nb::bytes left_of_credentials(const nb::bytes& key) {
  alignas(Credentials) std::uint8_t memory[sizeof(Credentials)];
  auto* const made = new (memory) Credentials(Credentials::of_key(crypto::Secret{}));
  std::memcpy(made->value.data(), key.data(), made->value.size());
  asm volatile("" ::: "memory");  // it is written, though nothing in here reads it
  const auto at = reinterpret_cast<const std::uint8_t*>(made->value.data()) - memory;
  std::destroy_at(made);
  return to_python({memory + at, sizeof made->value});
}

// What a node says of an offer of its own queue pair in another lane; empty: it takes it.
std::string check_of_own_offer() {
  HostSettings settings;
  settings.device.seal = "off";
  Node node(settings, {resolve("127.0.0.1")}, 2);
  const LocalQp qps[]{node.open(1, 0)};
  try {
    node.check(node.offer(qps, {}));
  } catch (const HandshakeRefused& why) {
    return why.what();
  }
  return "";
}

}  // namespace

void bind_host(nb::module_& m) {
  nb::class_<ListeningTalker>(m, "CommListener")
      .def(nb::init<const nb::bytes&, const nb::bytes&, const std::string&, double, bool>(), nb::arg("secret"),
           nb::arg("token"), nb::arg("offer"), nb::arg("patience_s") = 60.0, nb::arg("is_short") = false)
      .def_prop_ro("port", &ListeningTalker::port)
      .def_prop_ro("shortages", &ListeningTalker::shortages, "How often it had too little.")
      .def("poll", &ListeningTalker::poll, nb::arg("log") = nb::none(),
           "What the next connector offered that came through, or None.")
      .def("take_logged", &ListeningTalker::take_logged, "What it has said since.");
  nb::class_<nccl::CommConnector>(m, "CommConnector")
      .def("__init__", [](nccl::CommConnector* self, std::uint16_t port, const nb::bytes& secret,
                          const nb::bytes& token, const std::string& offer, double patience_s) {
    told([&] {
      return new (self) nccl::CommConnector({{wire::Ipv4{127, 0, 0, 1}, port}}, credentials_of(secret, token), [offer] {
        return std::make_unique<Talker>(offer, nullptr);
      }, milliseconds_of(patience_s));
    });
  }).def("poll", [](nccl::CommConnector& call) {
    return through(told([&] { return call.poll(); }));
  }, "What the listener offered, once it is connected; or None.");
  m.def("credentials", &credentials_of, nb::arg("secret"), nb::arg("token"), "Of a listener of NCCL.");
  bind_admission(m);
  m.def("left_of_credentials", &left_of_credentials, "key"_a);
  m.def("check_of_own_offer", &check_of_own_offer);
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
  m.def("open_own", [](const std::string& path, bool is_anew) {
    std::string why;
    const int fd = udp::open_private_file(path, is_anew ? udp::OpenMode::truncate : udp::OpenMode::append, why);
    if (fd < 0) throw nb::value_error(why.c_str());
    return fd;
  });
  m.def("face_faults", faults_of);
  m.def("hmac_sha256", [](const nb::bytes& key, const nb::bytes& text) {
    return to_python(crypto::hmac_sha256(from_python(key), from_python(text)));
  });
}

}  // namespace softmrc::python
