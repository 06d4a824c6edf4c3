// Pieces of encryption by themselves.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <vector>

#include "parts.h"
#include "python/bind.h"
#include "python/seal_values.h"

namespace softmrc::python {

using namespace crypto;

namespace {

// The text in pieces, cut at `cuts`.
nb::bytes close_with(Cipher cipher, const nb::bytes& key, const nb::bytes& nonce, const nb::bytes& associated,
                     const nb::bytes& text, std::pair<std::size_t, std::size_t> cuts) {
  check_available();
  const Bytes all = from_python(text);
  const std::size_t first = std::min(cuts.first, all.size()), second = std::clamp(cuts.second, first, all.size());
  std::vector<std::uint8_t> out(text.size() + tag_size);
  Aead(cipher, secret_of(key, "key"), Aead::Use::seal)
      .seal(nonce_of(nonce), from_python(associated),
            {all.first(first), all.subspan(first, second - first), all.subspan(second)}, out.data());
  return to_python(out);
}

nb::object open_with(Cipher cipher, const nb::bytes& key, const nb::bytes& nonce, const nb::bytes& associated,
                     const nb::bytes& hidden) {
  check_available();
  if (hidden.size() < tag_size) return nb::none();
  const Bytes given = from_python(hidden);
  std::vector<std::uint8_t> text(given.begin(), given.end() - tag_size);
  Aead aead(cipher, secret_of(key, "key"), Aead::Use::open);
  if (!aead.open(nonce_of(nonce), from_python(associated), text, given.data() + text.size())) return nb::none();
  return to_python(text);
}

// A packet as wire::emit makes it, encrypted; or decrypted again.
nb::bytes seal_packet(PacketSealer& out, std::int64_t now_ps, const nb::bytes& packet) {
  const Bytes given = from_python(packet);
  const auto opcode = given.empty() ? wire::Opcode{} : static_cast<wire::Opcode>(given[0]);
  std::size_t clear = given.size();
  if (wire::is_write(opcode) && given.size() >= wire::Bth::size)
    clear = std::min(clear, wire::through_reth(given[8] & 0x10));
  if (given.size() < wire::Bth::size)
    raise_if(proto::Error{proto::Error::Kind::config, "packet", std::to_string(given.size()) + " bytes", "a packet"});
  std::vector<std::uint8_t> room(given.begin(), given.begin() + static_cast<std::ptrdiff_t>(clear));
  room.resize(given.size() + wire::sealed_data_overhead);
  room.resize(out.seal(Time{now_ps}, room.data(), clear, {}, given.subspan(clear), {}));
  return to_python(room);
}

}  // namespace

void bind_seal_parts(nb::module_& m) {
  m.def("aead_seal", &close_with, nb::arg("cipher"), nb::arg("key"), nb::arg("nonce"), nb::arg("associated"),
        nb::arg("text"), nb::arg("cuts") = std::pair<std::size_t, std::size_t>{0, SIZE_MAX},
        nb::sig("def aead_seal(cipher: softmrc._core.Cipher, key: bytes, nonce: bytes, associated: bytes, text: bytes, "
                "cuts: tuple[int, int] = ...) -> bytes"));
  m.def("aead_open", &open_with, nb::arg("cipher"), nb::arg("key"), nb::arg("nonce"), nb::arg("associated"),
        nb::arg("hidden"),
        nb::sig("def aead_open(cipher: softmrc._core.Cipher, key: bytes, nonce: bytes, associated: bytes, hidden: "
                "bytes) -> bytes | None"));
  m.def("sip_hash", [](std::uint64_t k0, std::uint64_t k1, const nb::bytes& text) {
    return sip_hash({k0, k1}, from_python(text));
  });
  m.def("x25519", [](const nb::bytes& own, const nb::bytes& theirs) -> nb::object {
    check_available();
    Secret shared{};
    if (!x25519(secret_of(own, "own"), secret_of(theirs, "theirs"), shared)) return nb::none();
    return to_python(shared);
  });
  m.def("seal_next_secret",
        [](const nb::bytes& secret) { return to_python(next_secret(secret_of(secret, "secret"))); });
  m.def("seal_expand", [](const nb::bytes& secret, const nb::bytes& label) {
    return to_python(hkdf_expand(secret_of(secret, "secret"), {label.c_str(), label.size()}));
  });
  nb::class_<ReplayWindow>(m, "ReplayWindow")
      .def(nb::init<>())
      .def_ro_static("size", &ReplayWindow::size)
      .def_ro_static("numbers", &ReplayWindow::numbers)
      .def("is_fresh", &ReplayWindow::is_fresh)
      .def("add", &ReplayWindow::add);
  nb::class_<PacketSealer>(m, "Outbound")
      .def("__init__",
           [](PacketSealer* self, Cipher cipher, const nb::bytes& secret, std::uint32_t to_qpn,
              std::uint64_t rekey_packets, std::int64_t rekey_s, std::uint64_t most) {
    check_available();
    new (self) PacketSealer(cipher, secret_of(secret, "secret"), to_qpn, {rekey_packets, seconds(rekey_s), most},
                            std::make_shared<ForkGuard>());
  },
           nb::arg("cipher"), nb::arg("secret"), nb::arg("to_qpn"), nb::arg("rekey_packets"), nb::arg("rekey_s"),
           nb::arg("most") = KeyUpdatePolicy{}.most)
      .def("on_heard", &PacketSealer::on_heard, nb::arg("epoch"))
      .def("seal", &seal_packet, nb::arg("now_ps"), nb::arg("packet"))
      .def_prop_ro("epoch", &PacketSealer::epoch);
}

}  // namespace softmrc::python
