// The congestion controllers there are, and the one that a queue pair was given, chosen by its name.
// To add one: a header with what the concept in samples.h asks for, and its place in the list below.
#pragma once

#include <string>
#include <string_view>
#include <tuple>
#include <variant>
#include <vector>

#include "base/check.h"
#include "proto/congestion/fixed_window.h"
#include "proto/congestion/nscc.h"
#include "proto/congestion/queue_delay.h"

namespace softmrc::proto {

template <CongestionController... C>
struct ControllerList {
  using Any = std::variant<C...>;

  // What is set for all of them, and what is set for each.
  struct Profile : CcCommon, C::Settings... {
    std::string algorithm = names().front();

    void limit_window(std::uint64_t bytes) { (C::Settings::limit_window(*this, bytes), ...); }

    static auto settings() {
      return std::tuple_cat(std::tuple{setting("algorithm", &Profile::algorithm, "the congestion controller")},
                            CcCommon::settings(), C::Settings::settings()...);
    }
  };

  static std::vector<std::string> names() { return {C::name...}; }

  static Any make(const Profile& profile, std::uint32_t nominal_mtu, std::uint32_t sharers) {
    std::optional<Any> made;
    ((profile.algorithm == C::name ? void(made.emplace(std::in_place_type<C>, profile, profile, nominal_mtu, sharers))
                                   : void()),
     ...);
    SOFTMRC_CHECK(made.has_value());
    return *made;
  }
};

using Controllers = ControllerList<Nscc, FixedWindow, QueueDelay>;
using CcProfile = Controllers::Profile;
// The default for links that give no signals.
constexpr const char* controller_of_sockets = QueueDelay::name;

MaybeError validate(const CcProfile& profile);

class Controller {
 public:
  Controller() : any_(FixedWindow()) {}
  // The first window is for so many queue pairs.
  Controller(const CcProfile& profile, std::uint32_t nominal_mtu, std::uint32_t sharers)
      : any_(Controllers::make(profile, nominal_mtu, sharers)) {}

  void on_ack(Time now, const AckSample& info) {
    std::visit([&](auto& c) { c.on_ack(now, info); }, any_);
  }
  void on_trim(Time now, const LossSample& info) {
    std::visit([&](auto& c) { c.on_trim(now, info); }, any_);
  }
  void on_loss(Time now, const LossSample& info) {
    std::visit([&](auto& c) { c.on_loss(now, info); }, any_);
  }
  // The packet was not lost after all.
  void on_loss_undone(std::uint64_t bytes) {
    std::visit([&](auto& c) { c.on_loss_undone(bytes); }, any_);
  }
  // While so many queue pairs of this endpoint send.
  double window(std::uint32_t senders) const {
    return std::visit([senders](const auto& c) { return c.window(senders); }, any_);
  }
  // The queueing delay that it aims at.
  Duration target(Duration base_rtt) const {
    return std::visit([base_rtt](const auto& c) { return c.target(base_rtt); }, any_);
  }

 private:
  Controllers::Any any_;
};

}  // namespace softmrc::proto
