// JSON, for the control socket: requests are read, and answers written, in one line.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace softmrc::host {

class Json {
 public:
  using List = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;  // in the order in which it was written

  Json() = default;
  Json(bool value) : value_(value) {}
  template <std::integral T>
  Json(T value) : value_(static_cast<std::int64_t>(value)) {}
  Json(double value) : value_(value) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(List value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}

  // Null where it is none of that.
  const bool* as_bool() const { return std::get_if<bool>(&value_); }
  const std::int64_t* as_int() const { return std::get_if<std::int64_t>(&value_); }
  // With a point, or whole.
  std::optional<double> as_double() const {
    if (const auto* real = std::get_if<double>(&value_)) return *real;
    if (const auto* whole = as_int()) return static_cast<double>(*whole);
    return std::nullopt;
  }
  const std::string* as_string() const { return std::get_if<std::string>(&value_); }
  const List* as_list() const { return std::get_if<List>(&value_); }
  const Object* as_object() const { return std::get_if<Object>(&value_); }
  // Of an object; null where it has no such member.
  const Json* find(std::string_view name) const;

  // In one line.
  std::string text() const;

 private:
  void write(std::string& out) const;

  std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, List, Object> value_ = nullptr;
};

// Throws HostError.
Json parse_json(std::string_view text);

}  // namespace softmrc::host
