// The Noise handshake by itself, with ephemeral keys that a test chooses.
#include "crypto/noise.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "parts.h"
#include "python/bind.h"
#include "python/seal_values.h"

namespace softmrc::python {

using namespace crypto;

namespace {

struct ChosenEphemeral : NoiseHandshake {
  ChosenEphemeral(NoisePattern pattern, bool is_initiator, Bytes prologue, const Secret& key, const Secret& ephemeral)
      : NoiseHandshake(pattern, is_initiator, prologue, key, ephemeral) {}
};

NoiseHandshake make(const std::string& pattern, bool is_initiator, const nb::bytes& prologue, const nb::bytes& key,
                    const std::optional<nb::bytes>& ephemeral) {
  check_available();
  const NoisePattern which = pattern == "XX" ? NoisePattern::xx : NoisePattern::nn_psk0;
  const Secret own = secret_of(key, "key");
  if (!ephemeral) return {which, is_initiator, from_python(prologue), own};
  return ChosenEphemeral(which, is_initiator, from_python(prologue), own, secret_of(*ephemeral, "ephemeral"));
}

// What `append` adds to bytes that are there. None where it refuses, and then they are as they were.
template <typename Append>
nb::object appended(Append append) {
  const std::vector<std::uint8_t> before{0xA5, 0x5A, 0xFF};
  std::vector<std::uint8_t> out = before;
  const bool is_taken = append(out);
  SOFTMRC_CHECK(out.size() >= before.size() && std::equal(before.begin(), before.end(), out.begin()));
  SOFTMRC_CHECK(is_taken || out == before);
  if (!is_taken) return nb::none();
  return to_python(Bytes(out).subspan(before.size()));
}

}  // namespace

void bind_noise_parts(nb::module_& m) {
  m.def("sha256", [](const nb::bytes& text) {
    check_available();
    return to_python(sha256(from_python(text)));
  });
  m.attr("max_noise_message") = max_noise_message;
  nb::class_<NoiseCipher>(m, "NoiseCipher")
      .def(nb::init<>())
      .def("seal",
           [](NoiseCipher& self, const nb::bytes& associated, const nb::bytes& text) {
    return appended([&](std::vector<std::uint8_t>& out) {
      self.seal(from_python(associated), from_python(text), out);
      return true;
    });
  })
      .def("open", [](NoiseCipher& self, const nb::bytes& associated, const nb::bytes& message) {
    return appended(
        [&](std::vector<std::uint8_t>& out) { return self.open(from_python(associated), from_python(message), out); });
  }).def("moved", [](NoiseCipher& self) {
    return NoiseCipher(std::move(self));
  }).def_prop_ro("nonce", &NoiseCipher::nonce);
  nb::class_<NoiseHandshake>(m, "NoiseHandshake")
      .def("__init__",
           [](NoiseHandshake* self, const std::string& pattern, bool is_initiator, const nb::bytes& prologue,
              const nb::bytes& key, const std::optional<nb::bytes>& ephemeral) {
    new (self) NoiseHandshake(make(pattern, is_initiator, prologue, key, ephemeral));
  },
           nb::arg("pattern"), nb::arg("is_initiator"), nb::arg("prologue"), nb::arg("key"),
           nb::arg("ephemeral") = nb::none())
      .def_prop_ro("is_our_turn", &NoiseHandshake::is_our_turn)
      .def_prop_ro("is_done", &NoiseHandshake::is_done)
      .def("write",
           [](NoiseHandshake& self, const nb::bytes& payload) { return to_python(self.write(from_python(payload))); })
      .def("read",
           [](NoiseHandshake& self, const nb::bytes& message) {
    return appended([&](std::vector<std::uint8_t>& out) { return self.read(from_python(message), out); });
  })
      .def("remote_static", [](NoiseHandshake& self) { return to_python(self.remote_static()); })
      // Its two ciphers, to send and to receive, the exporter and the hash.
      .def("take_session", [](NoiseHandshake& self) {
    NoiseSession session = self.take_session();
    return nb::make_tuple(std::move(session.send), std::move(session.receive), to_python(session.exporter),
                          to_python(session.hash));
  });
}

}  // namespace softmrc::python
