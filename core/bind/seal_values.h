// Values of sealing as Python has them: bytes of a certain length.
#pragma once

#include <nanobind/nanobind.h>

#include <cstring>
#include <string>

#include "bind/bind.h"
#include "seal/choice.h"
#include "seal/session.h"

namespace softmrc::bind {

namespace nb = nanobind;
using seal::Bytes;
using seal::Nonce;
using seal::Secret;

inline nb::bytes in_python(Bytes bytes) { return nb::bytes(bytes.data(), bytes.size()); }
inline Bytes of_python(const nb::bytes& bytes) { return {static_cast<const std::uint8_t*>(bytes.data()), bytes.size()}; }

inline void check_available() {
  if (!seal::is_available())
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

inline Secret secret_of(const nb::bytes& bytes, const char* field) { return exactly<Secret>(bytes, field); }
inline Nonce nonce_of(const nb::bytes& bytes) { return exactly<Nonce>(bytes, "nonce"); }

}  // namespace softmrc::bind
