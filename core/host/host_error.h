// What cannot be done with what was given, by the caller, by the environment or by a peer: in words, for people.
#pragma once

#include <stdexcept>
#include <string>

#include "proto/settings.h"

namespace softmrc::host {

// The one form of an error about a value: "`field`: problem (got value). Hint", as softmrc.errors.ConfigError has it.
// The value is as people write it, in quotes where it is text.
inline std::string message(const std::string& field, const std::string& problem, const std::string& value,
                           const std::string& hint = "") {
  const std::string got = value.empty() ? "" : " (got " + value + ")";
  return "`" + field + "`: " + problem + got + (hint.empty() ? "" : ". " + hint);
}

// A value as it is shown in a message: a number as it is, anything else in quotes.
inline std::string shown(const std::string& value) {
  const bool is_number = !value.empty() && value.find_first_not_of("0123456789.-+e") == std::string::npos;
  return is_number ? value : "'" + value + "'";
}

inline std::string to_string(const proto::Error& refused) {
  return message(refused.field, "must be " + refused.expected, shown(refused.value));
}

struct HostError : std::runtime_error {
  using std::runtime_error::runtime_error;
  explicit HostError(const proto::Error& problem) : std::runtime_error(to_string(problem)), refused(problem) {}

  proto::MaybeError refused;  // the value that is wrong, where one is
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
