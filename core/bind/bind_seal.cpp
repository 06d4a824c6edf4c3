// Sealing: what Python needs for handshakes, and in `_core.parts` its pieces by themselves, for tests.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "bind/bind.h"
#include "seal/choice.h"
#include "seal/session.h"
#include "udp/session_seal.h"

namespace nb = nanobind;

namespace softmrc::bind {

using namespace seal;

namespace {

nb::bytes in_python(Bytes bytes) { return nb::bytes(bytes.data(), bytes.size()); }
Bytes of_python(const nb::bytes& bytes) { return {static_cast<const std::uint8_t*>(bytes.data()), bytes.size()}; }

void check_available() {
  if (!is_available())
    raise_if(proto::Problem{proto::Problem::Kind::config, "seal", "on", "off: built without sealing (OpenSSL's headers were not there)"});
}

template <typename T>
T exactly(const nb::bytes& bytes, const char* field) {
  T out;
  if (bytes.size() != out.size())
    raise_if(proto::Problem{proto::Problem::Kind::config, field, std::to_string(bytes.size()) + " bytes", std::to_string(out.size()) + " bytes"});
  std::memcpy(out.data(), bytes.data(), out.size());
  return out;
}

Secret secret_of(const nb::bytes& bytes, const char* field) { return exactly<Secret>(bytes, field); }
Nonce nonce_of(const nb::bytes& bytes) { return exactly<Nonce>(bytes, "nonce"); }

// The text in pieces, cut at `cuts`.
nb::bytes close_with(Cipher cipher, const nb::bytes& key, const nb::bytes& nonce, const nb::bytes& associated, const nb::bytes& text,
                     std::pair<std::size_t, std::size_t> cuts) {
  check_available();
  const Bytes all = of_python(text);
  const std::size_t first = std::min(cuts.first, all.size()), second = std::clamp(cuts.second, first, all.size());
  std::vector<std::uint8_t> out(text.size() + tag_size);
  Aead(cipher, secret_of(key, "key"), Aead::Use::seal)
      .seal(nonce_of(nonce), of_python(associated), {all.first(first), all.subspan(first, second - first), all.subspan(second)}, out.data());
  return in_python(out);
}

nb::object open_with(Cipher cipher, const nb::bytes& key, const nb::bytes& nonce, const nb::bytes& associated, const nb::bytes& hidden) {
  check_available();
  if (hidden.size() < tag_size) return nb::none();
  const Bytes given = of_python(hidden);
  std::vector<std::uint8_t> text(given.begin(), given.end() - tag_size);
  Aead aead(cipher, secret_of(key, "key"), Aead::Use::open);
  if (!aead.open(nonce_of(nonce), of_python(associated), text, given.data() + text.size())) return nb::none();
  return in_python(text);
}

// A packet as wire::emit makes it, sealed; or opened again.
nb::bytes seal_packet(Outbound& out, std::int64_t now_ps, const nb::bytes& packet) {
  const Bytes given = of_python(packet);
  const auto opcode = given.empty() ? wire::Opcode{} : static_cast<wire::Opcode>(given[0]);
  std::size_t clear = given.size();
  if (wire::is_write(opcode) && given.size() >= wire::Bth::size) clear = std::min(clear, wire::through_reth(given[8] & 0x10));
  if (given.size() < wire::Bth::size) raise_if(proto::Problem{proto::Problem::Kind::config, "packet", std::to_string(given.size()) + " bytes", "a packet"});
  std::vector<std::uint8_t> room(given.begin(), given.begin() + static_cast<std::ptrdiff_t>(clear));
  room.resize(given.size() + wire::sealed_data_overhead);
  room.resize(out.seal(Time{now_ps}, room.data(), clear, {}, given.subspan(clear), {}));
  return in_python(room);
}

nb::object open_packet(Inbound& in, std::int64_t now_ps, const nb::bytes& packet, bool is_trimmed) {
  const Bytes given = of_python(packet);
  std::vector<std::uint8_t> room(given.begin(), given.end());
  MutableBytes found = room;
  const Opened how = in.open(Time{now_ps}, found, is_trimmed);
  return nb::make_tuple(how, how == Opened::fresh ? nb::object(in_python(found)) : nb::none());
}

}  // namespace

void bind_seal(nb::module_& m) {
  nb::enum_<Cipher>(m, "Cipher", nb::is_arithmetic())
      .value("AES_256_GCM", Cipher::aes_256_gcm).value("CHACHA20_POLY1305", Cipher::chacha20_poly1305);
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
    return in_python(x25519_public(secret_of(own, "own")));
  });
  // None: the other's key is one that leaves no choice.
  m.def("x25519", [](const nb::bytes& own, const nb::bytes& others) -> nb::object {
    check_available();
    Secret shared;
    if (!x25519(secret_of(own, "own"), secret_of(others, "others"), shared)) return nb::none();
    return in_python(shared);
  }, nb::sig("def x25519(own: bytes, others: bytes) -> bytes | None"));
  m.def("ed25519_public", [](const nb::bytes& own) {
    check_available();
    return in_python(ed25519_public(secret_of(own, "own")));
  });
  m.def("ed25519_sign", [](const nb::bytes& own, const nb::bytes& text) {
    check_available();
    return in_python(ed25519_sign(secret_of(own, "own"), of_python(text)));
  });
  m.def("ed25519_verify", [](const nb::bytes& others, const nb::bytes& text, const nb::bytes& signature) {
    check_available();
    return ed25519_verify(secret_of(others, "others"), of_python(text), exactly<Signature>(signature, "signature"));
  });
  nb::class_<udp::SealKeys>(m, "SealKeys")
      .def("__init__", [](udp::SealKeys* self, Cipher cipher, const nb::bytes& send, const nb::bytes& receive) {
        check_available();
        new (self) udp::SealKeys{cipher, secret_of(send, "send"), secret_of(receive, "receive")};
      }, nb::arg("cipher"), nb::arg("send"), nb::arg("receive"));
}

void bind_seal_parts(nb::module_& m) {
  m.def("aead_seal", &close_with, nb::arg("cipher"), nb::arg("key"), nb::arg("nonce"), nb::arg("associated"), nb::arg("text"),
        nb::arg("cuts") = std::pair<std::size_t, std::size_t>{0, SIZE_MAX},
        nb::sig("def aead_seal(cipher: softmrc._core.Cipher, key: bytes, nonce: bytes, associated: bytes, text: bytes, cuts: tuple[int, int] = ...) -> bytes"));
  m.def("aead_open", &open_with, nb::arg("cipher"), nb::arg("key"), nb::arg("nonce"), nb::arg("associated"), nb::arg("hidden"),
        nb::sig("def aead_open(cipher: softmrc._core.Cipher, key: bytes, nonce: bytes, associated: bytes, hidden: bytes) -> bytes | None"));
  m.def("sip_hash", [](std::uint64_t k0, std::uint64_t k1, const nb::bytes& text) { return sip_hash({k0, k1}, of_python(text)); });
  m.def("seal_next_secret", [](const nb::bytes& secret) { return in_python(next_of(secret_of(secret, "secret"))); });
  m.def("seal_expand", [](const nb::bytes& secret, const nb::bytes& label) {
    return in_python(expand(secret_of(secret, "secret"), {label.c_str(), label.size()}));
  });
  m.def("measure_cipher", [](Cipher cipher, std::size_t bytes) { return measure(cipher, bytes); });
  nb::enum_<Opened>(m, "Opened", nb::is_arithmetic())
      .value("FRESH", Opened::fresh).value("UNSEALED", Opened::unsealed).value("FORGED", Opened::forged).value("REPLAYED", Opened::replayed);
  nb::class_<ReplayWindow>(m, "ReplayWindow")
      .def(nb::init<>())
      .def_ro_static("size", &ReplayWindow::size)
      .def_ro_static("numbers", &ReplayWindow::numbers)
      .def("is_fresh", &ReplayWindow::is_fresh)
      .def("add", &ReplayWindow::add);
  nb::class_<Outbound>(m, "Outbound")
      .def("__init__", [](Outbound* self, Cipher cipher, const nb::bytes& secret, std::uint32_t to_qpn, std::uint64_t rekey_packets, std::int64_t rekey_s, std::uint64_t most) {
        check_available();
        new (self) Outbound(cipher, secret_of(secret, "secret"), to_qpn, {rekey_packets, seconds(rekey_s), most}, std::make_shared<ForkGuard>());
      }, nb::arg("cipher"), nb::arg("secret"), nb::arg("to_qpn"), nb::arg("rekey_packets"), nb::arg("rekey_s"), nb::arg("most") = Rekeying{}.most)
      .def("on_heard", &Outbound::on_heard, nb::arg("epoch"))
      .def("seal", &seal_packet, nb::arg("now_ps"), nb::arg("packet"))
      .def_prop_ro("epoch", &Outbound::epoch);
  nb::class_<Inbound>(m, "Inbound")
      .def("__init__", [](Inbound* self, Cipher cipher, const nb::bytes& secret) {
        check_available();
        new (self) Inbound(cipher, secret_of(secret, "secret"));
      }, nb::arg("cipher"), nb::arg("secret"))
      .def("open", &open_packet, nb::arg("now_ps"), nb::arg("packet"), nb::arg("is_trimmed"),
           nb::sig("def open(self, now_ps: int, packet: bytes, is_trimmed: bool) -> tuple[Opened, bytes | None]"))
      .def_prop_ro("epoch", &Inbound::epoch);
}

}  // namespace softmrc::bind
