// Values of encryption as Python has them: bytes of a certain length.
#pragma once

#include <nanobind/nanobind.h>

#include <cstring>
#include <string>

#include "crypto/cipher_choice.h"
#include "crypto/packet_sealer.h"
#include "python/bind.h"

namespace softmrc::python {

namespace nb = nanobind;
using crypto::Bytes;
using crypto::Nonce;
using crypto::Secret;

inline nb::bytes to_python(Bytes bytes) { return nb::bytes(bytes.data(), bytes.size()); }
inline Bytes from_python(const nb::bytes& bytes) {
  return {static_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

inline void check_available() {
  if (!crypto::is_available())
    raise_if(
        proto::Error{proto::Error::Kind::config, "seal", "on", "off: built without libcrypto (on Debian: libssl-dev)"});
}

template <typename T>
T exactly(const nb::bytes& bytes, const char* field) {
  T out;
  if (bytes.size() != out.size())
    raise_if(proto::Error{proto::Error::Kind::config, field, std::to_string(bytes.size()) + " bytes",
                          std::to_string(out.size()) + " bytes"});
  std::memcpy(out.data(), bytes.data(), out.size());
  return out;
}

inline Secret secret_of(const nb::bytes& bytes, const char* field) { return exactly<Secret>(bytes, field); }
inline Nonce nonce_of(const nb::bytes& bytes) { return exactly<Nonce>(bytes, "nonce"); }

}  // namespace softmrc::python
