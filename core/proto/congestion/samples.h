// The inputs of a congestion controller, and the settings that all have in common. Facts, never packets.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>

#include "base/time.h"
#include "proto/settings.h"

namespace softmrc::proto {

// What one SACK tells.
struct AckSample {
  Duration base_rtt{};          // as known by now; it may shrink
  std::uint64_t new_bytes = 0;  // arrived since the last SACK, nominal
  bool marked = false;
  std::optional<Duration> round_trip;  // when the sample is valid
  std::optional<Duration> delay;       // how much longer that was than the base RTT
  std::uint64_t in_flight = 0;
  std::uint8_t penalty = 0;  // the receiver asks for less: 0..127
  bool restore = false;      // the receiver takes its penalty back
};

// A packet that did not arrive whole: trimmed, as a NACK told, or lost.
struct LossSample {
  std::uint64_t bytes = 0;
  std::uint64_t in_flight = 0;  // without it
};

// The queueing delay to aim at, which is a fraction of the base RTT unless it is set.
struct DelayTarget {
  Duration set{0};
  bool trimming = true;

  std::int64_t quarters() const { return trimming ? 3 : 4; }
  Duration of(Duration base_rtt) const { return set.ps ? set : base_rtt * quarters() / 4; }
  // With its fraction of a picosecond: the constants of algorithms follow from it.
  double ps(Duration base_rtt) const {
    return set.ps ? static_cast<double>(set.ps) : 0.25 * static_cast<double>(base_rtt.ps * quarters());
  }
};

// The network as its controller describes it, and what follows from it whichever algorithm is chosen.
struct CcCommon {
  std::uint64_t rate_bps = 400'000'000'000;
  Duration base_rtt = microseconds(8);
  bool learn_base_rtt = false;
  Duration min_base_rtt{0};
  Duration min_reorder_window{0};
  bool trimming = true;
  Duration target_delay{0};
  bool each_port = false;

  DelayTarget target() const { return {target_delay, trimming}; }
  double bdp_bytes() const {
    return static_cast<double>(rate_bps) / 8 * (static_cast<double>(base_rtt.ps) / 1e6) / 1e6;
  }

  static auto settings() {
    return std::tuple{
        setting("rate_bps", &CcCommon::rate_bps, 1'000'000, 100'000'000'000'000,
                "of the whole NIC, all ports together"),
        setting("base_rtt_us", &CcCommon::base_rtt, nanoseconds(100), seconds(10),
                "the round trip of an empty network"),
        setting("learn_base_rtt", &CcCommon::learn_base_rtt,
                "take the smallest round trip seen even where it is longer than base_rtt_us"),
        setting("min_base_rtt_us", &CcCommon::min_base_rtt, Duration{0}, seconds(10),
                "a shorter round trip counts as this long: where endpoints are software, it is luck of scheduling"),
        setting("min_reorder_window_us", &CcCommon::min_reorder_window, Duration{0}, seconds(10),
                "a packet is not lost before another sent so much later is acknowledged"),
        setting("trimming", &CcCommon::trimming, "the network trims: a tighter delay target, no quick adapt on delay"),
        setting("target_delay_us", &CcCommon::target_delay, Duration{0}, seconds(10),
                "0: 0.75 base RTT with trimming, else 1.0"),
        setting("each_port", &CcCommon::each_port,
                "a window for every port, not one for all: where planes are links of different speeds"),
    };
  }
};

// What an algorithm has to offer, to be listed in controller.h; nothing else has to know of it. Its settings are flat
// in CcProfile, so their names are its own.
template <typename C>
concept CongestionController = requires(C c, const C& seen, Time now, const AckSample& ack, const LossSample& loss,
                                        const CcCommon& basis, typename C::Settings own) {
  { C::name } -> std::convertible_to<const char*>;
  C::Settings::settings();
  own.limit_window(basis, std::uint64_t{});  // as much as this network needs, but no more than so many bytes
  C(basis, own, std::uint32_t{},
    std::uint32_t{});  // bytes of a full packet; how many queue pairs share the first window
  c.on_ack(now, ack);
  c.on_trim(now, loss);
  c.on_loss(now, loss);
  c.on_loss_undone(std::uint64_t{});  // so many bytes were not lost after all
  {
    seen.window(std::uint32_t{})
  } -> std::same_as<double>;                              // in bytes, while so many queue pairs of this endpoint send
  { seen.target(Duration{}) } -> std::same_as<Duration>;  // the queueing delay it aims at, with this base RTT
};

}  // namespace softmrc::proto
