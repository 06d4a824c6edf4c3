// What cannot be done with what was given, by the caller, by the environment or by a peer: in words, for people.
#pragma once

#include <stdexcept>
#include <string>

#include "proto/settings.h"

namespace softmrc::host {

inline std::string to_string(const proto::Error& problem) {
  return problem.field + " is " + problem.value + "; allowed: " + problem.allowed;
}

struct HostError : std::runtime_error {
  using std::runtime_error::runtime_error;
  explicit HostError(const proto::Error& problem) : std::runtime_error(to_string(problem)), refused(problem) {}

  proto::MaybeError refused;  // the value that is not allowed, where it is one
};

// The other side is gone, and said nothing.
struct PeerClosed : HostError {
  using HostError::HostError;
};

// "1 plane", "2 planes".
inline std::string counted(std::size_t count, const std::string& thing) {
  return std::to_string(count) + " " + thing + (count == 1 ? "" : "s");
}

inline void raise_if(const proto::MaybeError& verdict) {
  if (verdict) throw HostError(*verdict);
}

}  // namespace softmrc::host
