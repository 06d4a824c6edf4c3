// Encryption: what Python needs for handshakes, and to read captures whose keys are known.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <vector>

#include "crypto/cipher_choice.h"
#include "crypto/packet_sealer.h"
#include "host/sealing.h"
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
  // The faster cipher's, and bytes that a core encrypts in a second.
  m.def("cipher_speed", [] {
    check_available();
    constexpr std::size_t bytes = 1 << 20;
    return nb::make_tuple(library(), bytes / measure(faster_cipher(), bytes));
  });
  m.def("x25519_public", [](const nb::bytes& own) {
    check_available();
    return to_python(x25519_public(secret_of(own, "own")));
  });
  nb::class_<host::KeyShare>(m, "KeyShare", "A rank's key pair of X25519, for one group.")
      .def("__init__",
           [](host::KeyShare* self) {
    check_available();
    new (self) host::KeyShare();
  })
      .def_prop_ro("public", [](const host::KeyShare& share) { return to_python(share.public_key); })
      .def("forget", &host::KeyShare::forget, "Keys made of it cannot be made again.")
      .def("shared_with",
           [](const host::KeyShare& share, const nb::bytes& theirs, const nb::bytes& secret, const nb::bytes& salt) {
    return to_python(host::shared_root(share, secret_of(theirs, "share"), from_python(secret), from_python(salt)));
  }, nb::arg("theirs"), nb::arg("secret"), nb::arg("salt"), "What two ranks have in common, of which keys come.");
  m.def("packet_keys",
        [](const nb::bytes& root, bool is_first, std::uint32_t own_qpn, Cipher cipher, std::uint32_t qpn) {
    check_available();
    return host::packet_keys(secret_of(root, "root"), is_first, {faster_cipher(), own_qpn}, {cipher, qpn});
  }, nb::arg("root"), nb::arg("is_first"), nb::arg("own_qpn"), nb::arg("cipher"), nb::arg("qpn"),
        "The keys of one queue pair; with the other end's faster cipher and number.");
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
