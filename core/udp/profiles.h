// What a controller lays down for queue pairs to be given: formats of EVs, EV profiles, profiles of congestion control.
// INIT: it is being written. OFFLINE: it is right as a whole. ONLINE: it can be given. What is in use stays ONLINE.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <variant>
#include <vector>

#include "proto/endpoint.h"

namespace softmrc::udp {

enum class ProfileState : std::uint8_t { init, offline, online };

struct FormatProfile {
  wire::EvFormat format = wire::EvFormat::stev;
  std::vector<std::uint16_t> widths;
};

constexpr std::uint32_t bit_of(proto::EvState state) { return 1u << static_cast<unsigned>(state); }

struct PathProfile {
  proto::EvProfile evs;
  std::uint32_t format = 0;        // a format profile's number; 0: `evs` has it
  std::set<std::uint32_t> denied;  // places in the list
  std::uint32_t events = bit_of(proto::EvState::good) |
                         bit_of(proto::EvState::assumed_bad);  // of which states its EVs tell
};

struct Profile {
  ProfileState state = ProfileState::init;
  std::variant<FormatProfile, PathProfile, proto::CcProfile> body;
};

// Which profiles a queue pair asks for. 0: what the controller gives to those that ask for none, if it does; nothing:
// the caller has its own.
struct ProfileChoice {
  std::optional<std::uint32_t> evs;
  std::optional<std::uint32_t> control;
};

// Where in a queue pair's set the EV is that stands at this place of the profile's list. A set may have it several
// times, or not.
std::vector<std::uint16_t> places_of(proto::Endpoint& engine, std::uint32_t qpn, const proto::EvProfile& profile,
                                     std::uint32_t listed);

// All may be called from any thread, also under an engine's lock: none is taken here. Numbers count up from
// 1, for all kinds together.
class Profiles {
 public:
  struct AssignedIds {
    std::uint32_t evs = 0;
    std::uint32_t control = 0;
  };

  Profiles(std::uint32_t ports, bool carries_srv6) : ports_(ports), carries_srv6_(carries_srv6) {}

  proto::MaybeError add(Profile profile, std::uint32_t& number);
  proto::MaybeError remove(std::uint32_t number);
  std::optional<Profile> find(std::uint32_t number);
  std::vector<std::uint32_t> numbers();
  // In INIT only.
  proto::MaybeError write(std::uint32_t number, Profile profile);
  // One step on or back.
  proto::MaybeError move(std::uint32_t number, ProfileState to);
  // Of its list, in any state. What queue pairs have of it is for the caller to change.
  proto::MaybeError deny(std::uint32_t number, std::uint32_t listed, bool is_denied);
  proto::MaybeError replace(std::uint32_t number, std::uint32_t listed, const proto::EvValue& value);
  // For queue pairs that ask for none, from now on.
  proto::MaybeError set_default(std::uint32_t number);
  proto::MaybeError clear_default(bool is_control);
  AssignedIds defaults();

  // RESET to INIT, with the engine to oneself.
  proto::MaybeError init(proto::Endpoint& engine, Time now, std::uint32_t qpn, const proto::InitAttributes& attributes,
                         const ProfileChoice& choice);
  void release(std::uint32_t qpn);
  AssignedIds assigned_to(std::uint32_t qpn);
  // Whether the profile of this queue pair wants this state of an EV reported.
  bool tells(std::uint32_t qpn, proto::EvState state);
  std::vector<std::uint32_t> users(std::uint32_t number);

 private:
  static constexpr std::size_t most = 256;

  // What a queue pair gets; null: what it has by itself.
  struct Assignment {
    AssignedIds numbers;
    std::shared_ptr<const PathProfile> evs;
    std::shared_ptr<const proto::CcProfile> control;
  };

  proto::MaybeError known(std::uint32_t number, Profile*& found);
  proto::MaybeError listed(std::uint32_t number, std::uint32_t place, PathProfile*& found);
  proto::MaybeError check(Profile& profile);
  proto::MaybeError free_to_leave(std::uint32_t number, const Profile& profile);
  static proto::MaybeError init_with(proto::Endpoint& engine, Time now, std::uint32_t qpn,
                                     proto::InitAttributes attributes, const Assignment& assignment);
  proto::MaybeError assignment_of(const ProfileChoice& choice, Assignment& assignment);
  proto::MaybeError online(const char* field, std::uint32_t number, Profile*& found);

  const std::uint32_t ports_;
  const bool carries_srv6_;
  std::mutex mutex_;
  std::map<std::uint32_t, Profile> profiles_;
  std::map<std::uint32_t, AssignedIds> assigned_;  // by queue pair
  AssignedIds defaults_;
  std::uint32_t last_ = 0;
};

}  // namespace softmrc::udp
