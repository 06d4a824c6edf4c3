// Profiles that a controller installs, read and changed over a control socket.
#include <algorithm>
#include <bit>

#include "control/request_args.h"

namespace softmrc::control {
namespace {

using udp::PathProfile;
using udp::Profile;

constexpr std::array kinds{"format", "ev", "cc"};  // in the order of a profile's bodies
constexpr std::array states{"init", "offline", "online"};
constexpr std::array modes{"automatic", "explicit", "generated"};
constexpr std::array formats{"udp", "stev", "srv6"};

template <std::size_t Count>
std::size_t chosen(const Json& value, const std::string& field, const std::array<const char*, Count>& names) {
  const std::string* text = value.as_string();
  std::string expected;
  for (std::size_t i = 0; i < Count; ++i) {
    if (text && *text == names[i]) return i;
    expected += std::string(i ? ", " : "") + names[i];
  }
  throw HostError(host::message(field, std::string("must be ") + expected, value.text()));
}

// Settings by their names -------------------------------------------------------------------------------------------

Json as_json(Duration value) { return static_cast<double>(value.ps) / 1e6; }
Json as_json(proto::EvMode value) { return named(modes, value); }
Json as_json(wire::EvFormat value) { return named(formats, value); }
template <typename T>
Json as_json(const T& value) {
  return value;
}

[[noreturn]] void refuse(const std::string& field, const Json& value, const char* expected) {
  throw HostError(host::message(field, std::string("must be ") + expected, value.text()));
}

template <typename T>
T from_json(const std::string& field, const Json& value) {
  if constexpr (std::is_same_v<T, proto::EvMode>) {
    return static_cast<T>(chosen(value, field, modes));
  } else if constexpr (std::is_same_v<T, wire::EvFormat>) {
    return static_cast<T>(chosen(value, field, formats));
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!value.as_string()) refuse(field, value, "a text");
    return *value.as_string();
  } else if constexpr (std::is_same_v<T, bool>) {
    if (!value.as_bool()) refuse(field, value, "true or false");
    return *value.as_bool();
  } else if constexpr (std::is_same_v<T, double> || std::is_same_v<T, Duration>) {
    const auto number = value.as_double();
    if (!number || !(std::abs(*number) < 1e12)) refuse(field, value, "a number");
    if constexpr (std::is_same_v<T, double>) return *number;
    else return Duration{static_cast<std::int64_t>(*number * 1e6)};
  } else {
    if (!value.as_int() || !std::in_range<T>(*value.as_int())) refuse(field, value, "a whole number");
    return static_cast<T>(*value.as_int());
  }
}

template <typename Struct>
void tell_settings(const Struct& s, Json::Object& row) {
  proto::each_setting<Struct>([&](const auto& one) { row.emplace_back(one.name, as_json(s.*one.member)); });
}

// False where there is no such setting.
template <typename Struct>
bool set(Struct& s, const std::string& name, const Json& value) {
  bool is_known = false;
  proto::each_setting<Struct>([&](const auto& one) {
    if (name != one.name) return;
    is_known = true;
    s.*one.member = from_json<typename std::remove_cvref_t<decltype(one)>::Value>(name, value);
    host::raise_if(one.check(s));
  });
  return is_known;
}

const Json::List& list_of(const std::string& field, const Json& value) {
  if (!value.as_list()) refuse(field, value, "a list");
  return *value.as_list();
}

// Formats -----------------------------------------------------------------------------------------------------------

void tell(const udp::FormatProfile& format, Json::Object& row) {
  row.emplace_back("format", named(formats, format.format));
  row.emplace_back("widths", Json::List(format.widths.begin(), format.widths.end()));
}

bool set(udp::FormatProfile& format, const std::string& name, const Json& value) {
  if (name == "format") {
    format.format = from_json<wire::EvFormat>(name, value);
  } else if (name == "widths") {
    format.widths.clear();
    for (const Json& one : list_of(name, value)) format.widths.push_back(from_json<std::uint16_t>(name, one));
  } else {
    return false;
  }
  return true;
}

// EVs ---------------------------------------------------------------------------------------------------------------

void tell(const PathProfile& paths, Json::Object& row) {
  tell_settings(paths.evs, row);
  row.emplace_back("format_profile", paths.format);
  Json::List fields, entries, events;
  for (const wire::EvField& f : paths.evs.layout.fields)
    fields.push_back(
        Json::Object{{"width", f.width}, {"init_val", f.init_val}, {"min", f.min}, {"max", f.max}, {"mask", f.mask}});
  for (std::uint32_t i = 0; i < paths.evs.entries.size(); ++i) {
    const proto::EvEntry& entry = paths.evs.entries[i];
    entries.push_back(
        Json::Object{{"ev", i},
                     {"value", paths.evs.evs.empty() ? Json(entry.value) : Json(hex_of(paths.evs.evs[i]))},
                     {"plane", entry.port},
                     {"state", paths.denied.contains(i) ? "denied" : "good"}});
  }
  for (std::size_t i = 0; i < ev_state_names.size(); ++i)
    if (paths.events >> i & 1) events.push_back(ev_state_names[i]);
  row.emplace_back("fields", std::move(fields));
  row.emplace_back("entries", std::move(entries));
  row.emplace_back("events", std::move(events));
}

void set_entries(PathProfile& paths, const Json& value) {
  paths.evs.entries.clear();
  paths.evs.evs.clear();
  paths.denied.clear();
  for (const Json& one : list_of("entries", value)) {
    const RequestArgs entry(one);
    const proto::EvValue ev = ev_value(entry, "value");
    const auto place = static_cast<std::uint32_t>(paths.evs.entries.size());
    const auto plane = static_cast<std::uint8_t>(entry.whole("plane", 0, proto::max_ports - 1));
    const auto* bytes = std::get_if<wire::EvBytes>(&ev);
    paths.evs.entries.push_back({bytes ? place : std::get<std::uint32_t>(ev), plane});
    if (bytes) paths.evs.evs.push_back(*bytes);
    if (place >= proto::max_evs)
      throw HostError(host::message("entries", "must be at most " + std::to_string(proto::max_evs) + " EVs", ""));
  }
  if (!paths.evs.evs.empty() && paths.evs.evs.size() != paths.evs.entries.size())
    throw HostError(host::message("entries", "must be all of them bytes, or all of them numbers", ""));
}

void set_fields(PathProfile& paths, const Json& value) {
  paths.evs.layout.fields.clear();
  for (const Json& one : list_of("fields", value)) {
    const RequestArgs f(one);
    const auto number = [&](const char* name) { return static_cast<std::uint32_t>(f.whole(name, 0, 0xFFFFFFFF, 0)); };
    paths.evs.layout.fields.push_back({static_cast<std::uint8_t>(f.whole("width", 1, 32)), number("init_val"),
                                       number("min"), number("max"), number("mask")});
  }
}

bool set(PathProfile& paths, const std::string& name, const Json& value) {
  if (name == "entries") {
    set_entries(paths, value);
  } else if (name == "fields") {
    set_fields(paths, value);
  } else if (name == "format_profile") {
    paths.format = from_json<std::uint32_t>(name, value);
  } else if (name == "events") {
    paths.events = 0;
    for (const Json& one : list_of(name, value)) paths.events |= 1u << chosen(one, name, ev_state_names);
  } else {
    return set(paths.evs, name, value);
  }
  return true;
}

// Congestion control ------------------------------------------------------------------------------------------------

void tell(const proto::CcProfile& control, Json::Object& row) { tell_settings(control, row); }

// All of it or, where one value will not do, none.
void set_all(Profile& profile, const RequestArgs& args) {
  if (!args.has("set")) return;
  const Json::Object* wanted = args.find("set")->as_object();
  if (!wanted) args.refuse("set", "an object, of settings by their names");
  for (const auto& [name, value] : *wanted) {
    const bool is_known = std::visit([&, &name = name, &value = value](auto& body) { return set(body, name, value); },
                                     profile.body);
    if (is_known) continue;
    Json::Object row;
    std::visit([&](const auto& body) { tell(body, row); }, profile.body);
    std::string names;
    for (const auto& [known, _] : row) names += (names.empty() ? "" : ", ") + known;
    throw HostError(host::message(name, "no such setting of this profile", "", "Its settings: " + names + "."));
  }
}

// The operations ----------------------------------------------------------------------------------------------------

std::uint32_t number_of(const RequestArgs& args) {
  return static_cast<std::uint32_t>(args.whole("number", 1, 0xFFFFFFFF));
}

Profile profile_of(udp::Device& device, const RequestArgs& args) {
  const auto found = device.profiles().find(number_of(args));
  if (!found) args.refuse("number", "the number of a profile of this device");
  return *found;
}

Json::Object told(udp::Device& device, std::uint32_t number, const Profile& profile) {
  const udp::Profiles::AssignedIds to_all = device.profiles().defaults();
  const std::vector<std::uint32_t> users = device.profiles().users(number);
  Json::Object row{{"number", number},
                   {"kind", kinds[profile.body.index()]},
                   {"state", named(states, profile.state)},
                   {"to_all", to_all.evs == number || to_all.control == number},
                   {"queue_pairs", Json::List(users.begin(), users.end())}};
  std::visit([&](const auto& body) { tell(body, row); }, profile.body);
  return row;
}

Json::Object profiles(udp::Device& device, const DeviceInfo&, const RequestArgs& args) {
  std::vector<std::uint32_t> numbers = device.profiles().numbers();
  if (args.has("number")) {
    profile_of(device, args);
    numbers = {number_of(args)};
  }
  Json::List rows;
  for (const std::uint32_t number : numbers)
    if (const auto profile = device.profiles().find(number)) rows.push_back(told(device, number, *profile));
  return {{"profiles", std::move(rows)}};
}

Json::Object add(udp::Device& device, const DeviceInfo&, const RequestArgs& args) {
  Profile profile;
  const Json* kind = args.find("kind");
  switch (chosen(kind ? *kind : Json{}, "kind", kinds)) {
    case 0: break;
    case 1: profile.body = PathProfile{}; break;
    default: profile.body = proto::CcProfile{};
  }
  set_all(profile, args);
  std::uint32_t number = 0;
  host::raise_if(device.profiles().add(profile, number));
  return {{"profile", told(device, number, profile)}};
}

Json::Object answer_with(udp::Device& device, const RequestArgs& args) {
  return {{"profile", told(device, number_of(args), profile_of(device, args))}};
}

Json::Object modify(udp::Device& device, const DeviceInfo&, const RequestArgs& args) {
  Profile profile = profile_of(device, args);
  if (profile.state == udp::ProfileState::init) set_all(profile, args);
  host::raise_if(device.profiles().write(number_of(args), std::move(profile)));
  return answer_with(device, args);
}

Json::Object move(udp::Device& device, const DeviceInfo&, const RequestArgs& args) {
  const Json* to = args.find("to");
  host::raise_if(
      device.profiles().move(number_of(args), static_cast<udp::ProfileState>(chosen(to ? *to : Json{}, "to", states))));
  return answer_with(device, args);
}

Json::Object remove(udp::Device& device, const DeviceInfo&, const RequestArgs& args) {
  host::raise_if(device.profiles().remove(number_of(args)));
  return {};
}

Json::Object give(udp::Device& device, const DeviceInfo&, const RequestArgs& args) {
  if (args.has("number") == args.has("own")) throw HostError(host::message("number", "needs either number or own", ""));
  if (args.has("number")) {
    host::raise_if(device.profiles().set_default(number_of(args)));
    return answer_with(device, args);
  }
  const std::size_t kind = chosen(*args.find("own"), "own", kinds);
  if (kind == 0) args.refuse("own", "ev or cc");
  host::raise_if(device.profiles().clear_default(kind == 2));
  return {};
}

}  // namespace

const std::array<ControlOp, 6> profile_operations{{
    {"profiles", profiles, {"number"}},
    {"profile_add", add, {"kind", "set"}},
    {"profile_set", modify, {"number", "set"}},
    {"profile_state", move, {"number", "to"}},
    {"profile_remove", remove, {"number"}},
    {"profile_give", give, {"number", "own"}},
}};

}  // namespace softmrc::control
