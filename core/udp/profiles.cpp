#include "udp/profiles.h"

#include "proto/views.h"

namespace softmrc::udp {
namespace {

using proto::Error;
using proto::MaybeError;

constexpr const char* state_names[] = {"init", "offline", "online"};

std::string words(ProfileState state) { return state_names[static_cast<std::size_t>(state)]; }
MaybeError moment(const char* field, std::string value, std::string expected) {
  return Error{Error::Kind::usage, field, std::move(value), std::move(expected)};
}

bool is_wide(const PathProfile& profile) { return profile.evs.is_wide(); }

}  // namespace

std::vector<std::uint16_t> places_of(proto::Endpoint& engine, std::uint32_t qpn, const proto::EvProfile& profile,
                                     std::uint32_t listed) {
  const auto evs = proto::view_evs(engine, qpn);
  const auto values = profile.is_wide() ? proto::view_ev_values(engine, qpn) : std::nullopt;
  const proto::EvEntry& entry = profile.entries[listed];
  const proto::EvPath path = profile.evs.empty() ? proto::EvPath{entry.value}
                                                 : profile.path_of(profile.evs[listed], listed);
  std::vector<std::uint16_t> found;
  for (std::uint16_t i = 0; evs && i < evs->size(); ++i)
    if ((*evs)[i].port == entry.port && (values ? (*values)[i] == path.wide : (*evs)[i].value == path.value))
      found.push_back(i);
  return found;
}

// It is in use only if a queue pair comes of it.
MaybeError Profiles::init(proto::Endpoint& engine, Time now, std::uint32_t qpn, const proto::InitAttributes& attributes,
                          const ProfileChoice& choice) {
  const std::lock_guard lock(mutex_);
  Assignment assignment;
  if (auto v = assignment_of(choice, assignment)) return v;
  if (auto v = init_with(engine, now, qpn, attributes, assignment)) return v;
  if (assignment.numbers.evs || assignment.numbers.control) assigned_[qpn] = assignment.numbers;
  return std::nullopt;
}

// The queue pair keeps what it was given; others must not find it in the engine.
MaybeError Profiles::init_with(proto::Endpoint& engine, Time now, std::uint32_t qpn, proto::InitAttributes attributes,
                               const Assignment& assignment) {
  bool has_evs = false, has_control = false;
  MaybeError problem;
  if (assignment.evs)
    has_evs = !(problem = engine.add_ev_profile(std::make_shared<proto::EvProfile>(assignment.evs->evs),
                                                attributes.ev_profile));
  if (assignment.control && !problem)
    has_control = !(problem = engine.add_cc_profile(assignment.control, attributes.cc_profile));
  if (!problem) problem = engine.modify_init(qpn, attributes);
  if (has_evs) engine.remove_ev_profile(attributes.ev_profile);
  if (has_control) engine.remove_cc_profile(attributes.cc_profile);
  if (problem || !assignment.evs) return problem;
  for (const std::uint32_t listed : assignment.evs->denied)
    for (const std::uint16_t ev : places_of(engine, qpn, assignment.evs->evs, listed)) engine.deny_ev(now, qpn, ev);
  return std::nullopt;
}

MaybeError Profiles::known(std::uint32_t number, Profile*& found) {
  const auto at = profiles_.find(number);
  if (at == profiles_.end()) return proto::refused("profile", number, "the number of a profile of this device");
  found = &at->second;
  return std::nullopt;
}

MaybeError Profiles::add(Profile profile, std::uint32_t& number) {
  const std::lock_guard lock(mutex_);
  if (profiles_.size() >= most)
    return moment("profiles", std::to_string(profiles_.size()), "at most " + std::to_string(most) + "; remove one");
  number = ++last_;
  profiles_.emplace(number, std::move(profile));
  return std::nullopt;
}

MaybeError Profiles::remove(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  Profile* profile = nullptr;
  if (auto v = known(number, profile)) return v;
  if (profile->state != ProfileState::init) return moment("state", words(profile->state), "init, to be removed");
  profiles_.erase(number);
  return std::nullopt;
}

std::optional<Profile> Profiles::find(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  Profile* profile = nullptr;
  if (known(number, profile)) return std::nullopt;
  return *profile;
}

std::vector<std::uint32_t> Profiles::numbers() {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint32_t> found;
  for (const auto& [number, profile] : profiles_) found.push_back(number);
  return found;
}

MaybeError Profiles::write(std::uint32_t number, Profile written) {
  const std::lock_guard lock(mutex_);
  Profile* profile = nullptr;
  if (auto v = known(number, profile)) return v;
  if (profile->state != ProfileState::init) return moment("state", words(profile->state), "init, to be changed");
  profile->body = std::move(written.body);
  return std::nullopt;
}

// A format profile gives its EV profiles what they are made of: they take it when they are checked, and it stays as it
// is.
MaybeError Profiles::check(Profile& profile) {
  if (const auto* format = std::get_if<FormatProfile>(&profile.body)) {
    if (format->format == wire::EvFormat::srv6 && !carries_srv6_)
      return proto::refused("format", "srv6", "udp or stev: this device sends no SRv6 packets");
    const auto invalid = format->widths.empty()
                             ? std::nullopt
                             : wire::validate({format->widths, {}}, wire::format_width(format->format));
    return invalid ? proto::refused(invalid->field.c_str(), invalid->value, invalid->expected) : std::nullopt;
  }
  if (const auto* control = std::get_if<proto::CcProfile>(&profile.body)) return proto::validate(*control);
  auto& paths = std::get<PathProfile>(profile.body);
  if (paths.format) {
    Profile* found = nullptr;
    if (auto v = online("format_profile", paths.format, found)) return v;
    const auto* format = std::get_if<FormatProfile>(&found->body);
    if (!format) return proto::refused("format_profile", paths.format, "the number of a format profile");
    paths.evs.format = format->format;
    paths.evs.layout.widths = format->widths;
  }
  if (paths.evs.layout.fields.empty()) paths.evs.layout.widths.clear();  // an EV is the value itself
  if (is_wide(paths) && !carries_srv6_)
    return proto::refused("format", "srv6", "udp or stev: this device sends no SRv6 packets");
  for (const std::uint32_t place : paths.denied)
    if (place >= paths.evs.entries.size()) return proto::refused("denied", place, "places of the list");
  return proto::validate(paths.evs, ports_);
}

// spec: profile-busy
MaybeError Profiles::free_to_leave(std::uint32_t number, const Profile& profile) {
  std::size_t users = 0;
  for (const auto& [qpn, given] : assigned_) users += given.evs == number || given.control == number;
  if (users)
    return moment("profile", "busy, used by " + std::to_string(users) + " queue pairs", "one that is not in use");
  if (defaults_.evs == number || defaults_.control == number)
    return moment("profile", "busy, what queue pairs get that ask for none", "one that is not in use");
  if (!std::holds_alternative<FormatProfile>(profile.body)) return std::nullopt;
  for (const auto& [other, one] : profiles_)
    if (const auto* paths = std::get_if<PathProfile>(&one.body);
        paths && paths->format == number && one.state != ProfileState::init)
      return moment("profile", "busy, the format of profile " + std::to_string(other), "one that is not in use");
  return std::nullopt;
}

// spec: profile-states
MaybeError Profiles::move(std::uint32_t number, ProfileState to) {
  const std::lock_guard lock(mutex_);
  Profile* profile = nullptr;
  if (auto v = known(number, profile)) return v;
  const int step = static_cast<int>(to) - static_cast<int>(profile->state);
  if (step != 1 && step != -1)
    return moment("state", words(to),
                  profile->state == ProfileState::offline ? "init or online, from offline"
                                                          : "offline, from " + words(profile->state));
  if (profile->state == ProfileState::init)
    if (auto v = check(*profile)) return v;
  if (profile->state == ProfileState::online)
    if (auto v = free_to_leave(number, *profile)) return v;
  profile->state = to;
  return std::nullopt;
}

MaybeError Profiles::listed(std::uint32_t number, std::uint32_t place, PathProfile*& found) {
  Profile* profile = nullptr;
  if (auto v = known(number, profile)) return v;
  found = std::get_if<PathProfile>(&profile->body);
  if (!found || found->evs.mode != proto::EvMode::explicit_)
    return proto::refused("profile", number, "an EV profile with a list: its mode is explicit");
  if (place >= found->evs.entries.size())
    return proto::refused("ev", place, "below " + std::to_string(found->evs.entries.size()));
  return std::nullopt;
}

MaybeError Profiles::deny(std::uint32_t number, std::uint32_t place, bool is_denied) {
  const std::lock_guard lock(mutex_);
  PathProfile* paths = nullptr;
  if (auto v = listed(number, place, paths)) return v;
  if (is_denied) paths->denied.insert(place);
  else paths->denied.erase(place);
  return std::nullopt;
}

MaybeError Profiles::replace(std::uint32_t number, std::uint32_t place, const proto::EvValue& value) {
  const std::lock_guard lock(mutex_);
  PathProfile* paths = nullptr;
  if (auto v = listed(number, place, paths)) return v;
  const auto* bytes = std::get_if<wire::EvBytes>(&value);
  const auto* whole = std::get_if<std::uint32_t>(&value);
  if (auto v = proto::validate_value(paths->evs, "value", whole ? *whole : 0, bytes)) return v;
  if (!paths->evs.evs.empty() != (bytes != nullptr))
    return proto::refused("value", bytes ? "bytes" : "a number", "of the kind that the list has");
  if (bytes) paths->evs.evs[place] = *bytes;
  else paths->evs.entries[place].value = *whole;
  return std::nullopt;
}

MaybeError Profiles::online(const char* field, std::uint32_t number, Profile*& found) {
  if (known(number, found)) return proto::refused(field, number, "the number of a profile of this device");
  if (found->state != ProfileState::online)
    return moment(field, std::to_string(number) + ", which is " + words(found->state), "a profile that is online");
  return std::nullopt;
}

MaybeError Profiles::set_default(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  Profile* profile = nullptr;
  if (auto v = online("profile", number, profile)) return v;
  if (std::holds_alternative<FormatProfile>(profile->body))
    return proto::refused("profile", number, "an EV or CC profile");
  const auto* paths = std::get_if<PathProfile>(&profile->body);
  if (paths && is_wide(*paths))
    return proto::refused(
        "profile", number,
        "one whose format is not srv6: such paths lead to one peer, and a queue pair must ask for them");
  (paths ? defaults_.evs : defaults_.control) = number;
  return std::nullopt;
}

MaybeError Profiles::clear_default(bool is_control) {
  const std::lock_guard lock(mutex_);
  (is_control ? defaults_.control : defaults_.evs) = 0;
  return std::nullopt;
}

Profiles::AssignedIds Profiles::defaults() {
  const std::lock_guard lock(mutex_);
  return defaults_;
}

MaybeError Profiles::assignment_of(const ProfileChoice& choice, Assignment& assignment) {
  if (choice.evs) assignment.numbers.evs = *choice.evs ? *choice.evs : defaults_.evs;
  if (choice.control) assignment.numbers.control = *choice.control ? *choice.control : defaults_.control;
  Profile* found = nullptr;
  if (assignment.numbers.evs) {
    if (auto v = online("ev_profile", assignment.numbers.evs, found)) return v;
    const auto* paths = std::get_if<PathProfile>(&found->body);
    if (!paths) return proto::refused("ev_profile", assignment.numbers.evs, "the number of an EV profile");
    assignment.evs = std::make_shared<PathProfile>(*paths);
  }
  if (assignment.numbers.control) {
    if (auto v = online("cc_profile", assignment.numbers.control, found)) return v;
    const auto* control = std::get_if<proto::CcProfile>(&found->body);
    if (!control) return proto::refused("cc_profile", assignment.numbers.control, "the number of a CC profile");
    assignment.control = std::make_shared<proto::CcProfile>(*control);
  }
  return std::nullopt;
}

void Profiles::release(std::uint32_t qpn) {
  const std::lock_guard lock(mutex_);
  assigned_.erase(qpn);
}

Profiles::AssignedIds Profiles::assigned_to(std::uint32_t qpn) {
  const std::lock_guard lock(mutex_);
  const auto found = assigned_.find(qpn);
  return found == assigned_.end() ? AssignedIds{} : found->second;
}

bool Profiles::tells(std::uint32_t qpn, proto::EvState state) {
  const std::lock_guard lock(mutex_);
  const auto given = assigned_.find(qpn);
  Profile* profile = nullptr;
  if (given == assigned_.end() || known(given->second.evs, profile)) return true;
  return std::get<PathProfile>(profile->body).events & bit_of(state);
}

std::vector<std::uint32_t> Profiles::users(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint32_t> found;
  for (const auto& [qpn, given] : assigned_)
    if (given.evs == number || given.control == number) found.push_back(qpn);
  return found;
}

}  // namespace softmrc::udp
