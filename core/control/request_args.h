// What the operations of a control socket have in common: how a request is read, and how things are called.
#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "control/control_server.h"
#include "host/host_error.h"

namespace softmrc::control {

// A request, as its operation reads it.
class RequestArgs {
 public:
  explicit RequestArgs(const Json& object) : object_(object) {}

  bool has(const char* name) const { return object_.find(name) != nullptr; }
  bool is_text(const char* name) const { return has(name) && object_.find(name)->as_string(); }
  const Json* find(const char* name) const { return object_.find(name); }
  std::int64_t whole(const char* name, std::int64_t least, std::int64_t most) const {
    const Json* found = object_.find(name);
    const std::int64_t* value = found ? found->as_int() : nullptr;
    if (!value || *value < least || *value > most) refuse(name, std::to_string(least) + " to " + std::to_string(most));
    return *value;
  }
  std::int64_t whole(const char* name, std::int64_t least, std::int64_t most, std::int64_t otherwise) const {
    return has(name) ? whole(name, least, most) : otherwise;
  }
  bool flag(const char* name) const {
    const Json* found = object_.find(name);
    const bool* value = found ? found->as_bool() : nullptr;
    if (!value) refuse(name, "true or false");
    return *value;
  }
  bool flag(const char* name, bool otherwise) const { return has(name) ? flag(name) : otherwise; }
  const std::string& text(const char* name) const {
    const Json* found = object_.find(name);
    const std::string* value = found ? found->as_string() : nullptr;
    if (!value) refuse(name, "a text");
    return *value;
  }
  template <typename T = std::uint64_t>
  std::vector<T> numbers(const char* name) const {
    const Json* found = object_.find(name);
    const Json::List* list = found ? found->as_list() : nullptr;
    if (!list) refuse(name, "a list of numbers");
    std::vector<T> values;
    for (const Json& one : *list) {
      if (!one.as_int() || !std::in_range<T>(*one.as_int()))
        refuse(name, "a list of numbers of " + std::to_string(8 * sizeof(T)) + " bits");
      values.push_back(static_cast<T>(*one.as_int()));
    }
    return values;
  }
  [[noreturn]] void refuse(const char* name, const std::string& expected) const {
    const Json* found = object_.find(name);
    throw HostError(host::message(name, "must be " + expected, found ? found->text() : "nothing"));
  }

 private:
  const Json& object_;
};

// One operation: given the request, it throws HostError with the words of the answer.
struct ControlOp {
  std::string_view name;
  Json::Object (*run)(udp::Device&, const DeviceInfo&, const RequestArgs&);
  std::array<std::string_view, 6> takes;
};

// Of profiles, in control/profiles.cpp.
extern const std::array<ControlOp, 6> profile_operations;

constexpr std::array ev_state_names{"good", "skip", "assumed_bad", "denied"};

template <std::size_t Count, typename Enum>
std::string named(const std::array<const char*, Count>& names, Enum value) {
  const auto at = static_cast<std::size_t>(value);
  return at < Count ? names[at] : std::to_string(at);
}

std::string hex_of(const wire::EvBytes& bytes);
// A number of 32 bits, or hexadecimal digits.
proto::EvValue ev_value(const RequestArgs& args, const char* name);

}  // namespace softmrc::control
