// Sealing: what Python needs for handshakes, and to read captures whose keys are known.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <vector>

#include "crypto/cipher_choice.h"
#include "crypto/packet_sealer.h"
#include "python/bind.h"
#include "python/seal_values.h"
#include "udp/aead_protector.h"

namespace softmrc::python {

using namespace crypto;

namespace {

nb::object open_packet(PacketOpener& in, std::int64_t now_ps, const nb::bytes& packet, bool is_trimmed) {
  const Bytes given = from_python(packet);
  std::vector<std::uint8_t> room(given.begin(), given.end());
  MutableBytes found = room;
  const OpenStatus how = in.open(Time{now_ps}, found, is_trimmed);
  return nb::make_tuple(how, how == OpenStatus::fresh ? nb::object(to_python(found)) : nb::none());
}

}  // namespace

void bind_seal(nb::module_& m) {
  nb::enum_<Cipher>(m, "Cipher", nb::is_arithmetic())
      .value("AES_256_GCM", Cipher::aes_256_gcm)
      .value("CHACHA20_POLY1305", Cipher::chacha20_poly1305);
  m.def("can_seal", &is_available);
  m.def("faster_cipher", [] {
    check_available();
    return faster_cipher();
  });
  // The faster cipher's, and bytes that a core seals in a second.
  m.def("cipher_speed", [] {
    check_available();
    constexpr std::size_t bytes = 1 << 20;
    return nb::make_tuple(library(), bytes / measure(faster_cipher(), bytes));
  });
  m.def("x25519_public", [](const nb::bytes& own) {
    check_available();
    return to_python(x25519_public(secret_of(own, "own")));
  });
  // None: the other's key is one that leaves no choice.
  m.def("x25519", [](const nb::bytes& own, const nb::bytes& others) -> nb::object {
    check_available();
    Secret shared;
    if (!x25519(secret_of(own, "own"), secret_of(others, "others"), shared)) return nb::none();
    return to_python(shared);
  }, nb::sig("def x25519(own: bytes, others: bytes) -> bytes | None"));
  m.def("ed25519_public", [](const nb::bytes& own) {
    check_available();
    return to_python(ed25519_public(secret_of(own, "own")));
  });
  m.def("ed25519_sign", [](const nb::bytes& own, const nb::bytes& text) {
    check_available();
    return to_python(ed25519_sign(secret_of(own, "own"), from_python(text)));
  });
  m.def("ed25519_verify", [](const nb::bytes& others, const nb::bytes& text, const nb::bytes& signature) {
    check_available();
    return ed25519_verify(secret_of(others, "others"), from_python(text), exactly<Signature>(signature, "signature"));
  });
  nb::class_<udp::SealKeys>(m, "SealKeys")
      .def("__init__", [](udp::SealKeys* self, Cipher cipher, const nb::bytes& send, const nb::bytes& receive) {
    check_available();
    new (self) udp::SealKeys{cipher, secret_of(send, "send"), secret_of(receive, "receive")};
  }, nb::arg("cipher"), nb::arg("send"), nb::arg("receive"));
  nb::enum_<OpenStatus>(m, "Opened", nb::is_arithmetic())
      .value("FRESH", OpenStatus::fresh)
      .value("UNSEALED", OpenStatus::unsealed)
      .value("FORGED", OpenStatus::forged)
      .value("REPLAYED", OpenStatus::replayed);
  nb::class_<PacketOpener>(m, "Inbound")
      .def("__init__",
           [](PacketOpener* self, Cipher cipher, const nb::bytes& secret) {
    check_available();
    new (self) PacketOpener(cipher, secret_of(secret, "secret"));
  }, nb::arg("cipher"), nb::arg("secret"))
      .def("open", &open_packet, nb::arg("now_ps"), nb::arg("packet"), nb::arg("is_trimmed"),
           nb::sig("def open(self, now_ps: int, packet: bytes, is_trimmed: bool) -> tuple[Opened, bytes | None]"))
      .def_prop_ro("epoch", &PacketOpener::epoch);
}

}  // namespace softmrc::python
