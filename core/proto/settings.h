// How a setting is declared: once, with its name, its bounds and its meaning; its default is what its struct begins
// with. What refuses values, the bindings, Python's classes and docs/reference/configuration.md all read these lists.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "base/serial.h"
#include "base/time.h"

namespace softmrc::proto {

// What is wrong with a request of the caller: a value (config) or the moment (usage).
struct Error {
  enum class Kind : std::uint8_t { config, usage };
  Kind kind = Kind::config;
  std::string field;
  std::string value;
  std::string expected;  // completes "must be …"
};
using MaybeError = std::optional<Error>;

inline MaybeError refused(const char* field, std::string value, std::string expected) {
  return Error{Error::Kind::config, field, std::move(value), std::move(expected)};
}
inline MaybeError refused(const char* field, std::uint64_t value, std::string expected) {
  return refused(field, std::to_string(value), std::move(expected));
}

// As people write it: durations in microseconds.
template <typename T>
std::string in_words(T value) {
  return std::to_string(value);
}
std::string in_words(Duration value);
std::string in_words(double value);
inline std::string in_words(Psn value) { return std::to_string(value.value); }

template <typename T>
MaybeError within(const char* field, T value, T low, T high) {
  if (value >= low && value <= high) return std::nullopt;
  return refused(field, in_words(value), in_words(low) + " to " + in_words(high));
}

template <typename Struct, typename T>
struct Setting {
  using Value = T;

  const char* name;  // the unit last: a duration's ends in _us
  T Struct::* member;
  const char* meaning;
  std::optional<std::pair<T, T>> bounds;

  MaybeError check(const Struct& s) const {
    if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, Duration>)
      if (bounds) return within<T>(name, s.*member, bounds->first, bounds->second);
    return std::nullopt;
  }
};

template <typename Struct, typename T>
Setting<Struct, T> setting(const char* name, T Struct::* member, const char* meaning) {
  return {name, member, meaning, std::nullopt};
}
template <typename Struct, typename T>
Setting<Struct, T> setting(const char* name, T Struct::* member, std::type_identity_t<T> low,
                           std::type_identity_t<T> high, const char* meaning) {
  return {name, member, meaning, std::pair{low, high}};
}

// Calls f with each setting of a struct.
template <typename Struct, typename F>
void each_setting(F&& f) {
  std::apply([&](const auto&... one) { (f(one), ...); }, Struct::settings());
}

// The first setting that is out of its bounds.
template <typename Struct>
MaybeError within_bounds(const Struct& s) {
  MaybeError found;
  each_setting<Struct>([&](const auto& one) {
    if (!found) found = one.check(s);
  });
  return found;
}

}  // namespace softmrc::proto
