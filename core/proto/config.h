// Everything that can be set (congestion control: congestion/controller.h), each with its default, its bounds and its
// meaning; what depends on more than one value is refused in config.cpp.
// Profiles are shared by queue pairs; queue pair attributes are given at the state transition that needs them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <variant>
#include <vector>

#include "proto/settings.h"
#include "wire/entropy.h"

namespace softmrc::proto {

constexpr std::uint32_t max_ports = 16;
constexpr std::uint32_t max_evs = 1024;
constexpr std::uint32_t mpr_unit = 128;
constexpr std::uint32_t smallest_mpr = 8;  // in these units
constexpr std::uint32_t retry_forever = 25;

struct EvEntry {
  std::uint32_t value = 0;
  std::uint8_t port = 0;
};

// An EV as the engine holds it: the 32 bits that packets carry, and the value that they are the number of in SRV6.
struct EvPath {
  std::uint32_t value = 0;
  wire::EvBytes wide{};
};

// An EV as a controller names it: the number that packets carry, or the bytes of an SRv6 path.
using EvValue = std::variant<std::uint32_t, wire::EvBytes>;

enum class EvMode : std::uint8_t {
  automatic,  // each queue pair draws its own values, as an ECMP fabric wants them
  explicit_,  // a controller gave the list
  generated,  // each queue pair draws its own, within the bounds of field descriptors
};

struct EvProfile {
  EvMode mode = EvMode::automatic;
  std::uint32_t count = 128;
  std::uint32_t spares = 0;
  std::uint32_t min_active = 0;
  std::uint32_t value_bits = 32;
  std::uint32_t spray_quantum = 1;
  bool skips_congested = true;
  bool leaves_slow_ports = false;
  wire::EvFormat format = wire::EvFormat::stev;
  std::vector<EvEntry> entries;    // for explicit_
  std::vector<wire::EvBytes> evs;  // what the entries are where 32 bits are not enough: one for each, or none
  wire::EvLayout layout;           // how an EV expands; empty: it is the value itself

  static auto settings() {
    using P = EvProfile;
    return std::tuple{
        setting("mode", &P::mode, "where the EVs come from"),
        setting("count", &P::count, 1, max_evs, "active EVs of a queue pair, the same number on every port"),
        setting("spares", &P::spares, 0, max_evs, "held back to replace a withdrawn EV of the same port"),
        setting("min_active", &P::min_active, 0, max_evs, "0: a quarter of count"),
        setting("value_bits", &P::value_bits, 1, 32, "width of a value drawn automatically"),
        setting("spray_quantum", &P::spray_quantum, 1, 64, "packets in a row that may share an EV"),
        setting("skips_congested", &P::skips_congested,
                "False: oblivious spraying, which a mark or a trim does not steer"),
        setting("leaves_slow_ports", &P::leaves_slow_ports, "steer by round trips, where nothing marks congestion"),
        setting("format", &P::format, "where the network reads the entropy"),
    };
  }

  std::uint32_t floor() const { return min_active ? min_active : count / 4; }
  bool is_wide() const { return format == wire::EvFormat::srv6; }
  wire::EvBytes expanded(const wire::EvBytes& ev) const {
    return layout.fields.empty() ? ev : wire::expand(layout, ev);
  }
  // What a controller's or a generated EV is to packets; a wide one needs a number to be carried by.
  EvPath path_of(const wire::EvBytes& ev, std::uint32_t number) const {
    const wire::EvBytes value = expanded(ev);
    return is_wide() ? EvPath{number, value} : EvPath{wire::carried_ev(format, value)};
  }
  // The 32 bits of a value drawn automatically.
  std::uint32_t drawn(std::uint32_t bits) const {
    const std::uint32_t width = std::min(value_bits, wire::format_width(format));
    return width >= 32 ? bits : bits & ((1u << width) - 1);
  }
};

// RESET -> INIT.
struct InitAttributes {
  std::uint32_t ev_profile = 0;
  std::uint32_t cc_profile = 0;
  std::uint32_t send_cq = 0;
  std::uint32_t recv_cq = 0;
  std::uint64_t domain = 0;
  // The controller's hints divide the first window, and no more: what is really there shows soon enough.
  std::uint16_t hint_qps_per_peer = 1;
  std::uint16_t hint_send_peers = 1;
  std::uint16_t hint_receive_peers = 1;

  std::uint32_t sharers() const {
    return std::max(1u, std::uint32_t{hint_qps_per_peer} * std::max(hint_send_peers, hint_receive_peers));
  }

  static auto settings() {
    using A = InitAttributes;
    return std::tuple{
        setting("ev_profile", &A::ev_profile, "the number that adding it gave"),
        setting("cc_profile", &A::cc_profile, "likewise"),
        setting("send_cq", &A::send_cq, "the completion queue of what is sent"),
        setting("recv_cq", &A::recv_cq, "and of what is received"),
        setting("domain", &A::domain, "whose memory the peer may write to"),
        setting("hint_qps_per_peer", &A::hint_qps_per_peer, "how many queue pairs share a peer"),
        setting("hint_send_peers", &A::hint_send_peers, "how many peers are sent to"),
        setting("hint_receive_peers", &A::hint_receive_peers, "from how many the peer receives"),
    };
  }
};

// INIT -> RTR: what is needed to receive.
struct RtrAttributes {
  std::uint32_t peer = 0;
  std::uint32_t dest_qpn = 0;
  Psn first_psn;
  std::uint32_t mtu = 4096;
  std::uint32_t max_wimm_dest = 128;
  std::uint32_t mpr_dest = 8;
  bool dynamic_mpr = false;
  std::uint64_t port_key = 0;
  std::uint64_t peer_port_key = 0;

  static auto settings() {
    using A = RtrAttributes;
    return std::tuple{
        setting("peer", &A::peer, "the number that adding it gave"),
        setting("dest_qpn", &A::dest_qpn, 3, 0xFFFFFF, "the queue pair there"),
        setting("first_psn", &A::first_psn, Psn(0), Psn(Psn::mask), "the first PSN that the peer will send"),
        setting("mtu", &A::mtu, 512, 16384, "payload bytes of a full packet, a multiple of 4"),
        setting("max_wimm_dest", &A::max_wimm_dest, 1, 16384, "immediates that may wait here for their turn"),
        setting("mpr_dest", &A::mpr_dest, smallest_mpr, 255, "window offered, in units of 128 PSNs"),
        setting("dynamic_mpr", &A::dynamic_mpr, "SACKs carry the window"),
        setting("port_key", &A::port_key, "what the peer's words about its ports must carry; 0: it was given none"),
        setting("peer_port_key", &A::peer_port_key, "and what ours to it do; 0: it gave none"),
    };
  }
};

// RTR -> RTS: what is needed to send.
struct RtsAttributes {
  Psn first_psn;
  std::uint32_t max_wimm = 128;
  std::uint32_t mpr = 8;
  std::uint32_t timeout = 8;
  std::uint32_t retry_linear = 7;
  std::uint32_t retry_exponential = retry_forever;
  std::uint32_t max_send_wr = 4096;

  static auto settings() {
    using A = RtsAttributes;
    return std::tuple{
        setting("first_psn", &A::first_psn, Psn(0), Psn(Psn::mask), "the first PSN that is sent"),
        setting("max_wimm", &A::max_wimm, 1, 16384, "immediates under way at once"),
        setting("mpr", &A::mpr, smallest_mpr, 255, "window that the peer offered, in units of 128 PSNs"),
        setting("timeout", &A::timeout, 0, 24, "1.024 µs · 2^timeout"),
        setting("retry_linear", &A::retry_linear, 0, 7, "timeouts of that length"),
        setting("retry_exponential", &A::retry_exponential, 0, retry_forever,
                "and of twice the length of the one before; 25: for ever"),
        setting("max_send_wr", &A::max_send_wr, 1, 32000, "messages that may wait or be under way"),
    };
  }
};

// One node.
struct EndpointConfig {
  std::uint64_t seed = 1;
  std::uint64_t secret = 0;
  std::uint32_t ports = 1;
  std::uint32_t sack_threshold_bytes = 16 * 1024;
  Duration sack_gap{0};
  bool sack_first_packet = false;
  bool timestamps = true;
  bool trim_nack = true;
  bool peer_trim_nack = true;
  bool announces_ports = false;
  bool proves_addresses = false;
  Duration probe_interval = milliseconds(1);
  Duration probe_interval_max = seconds(1);
  std::uint32_t revival_answers = 3;
  std::uint32_t answers_per_s = 0;
  std::uint32_t max_events = 4096;

  static auto settings() {
    using C = EndpointConfig;
    return std::tuple{
        setting("seed", &C::seed, "of everything that is drawn"),
        setting("secret", &C::secret,
                "what proofs of addresses rest on; a device draws its own, and nothing on the wire may tell it"),
        setting("ports", &C::ports, 1, max_ports, "of this node, each on a separate plane"),
        setting("sack_threshold_bytes", &C::sack_threshold_bytes, 1, 1 << 24,
                "that arrive before a SACK is sent unsolicited"),
        setting("sack_gap_us", &C::sack_gap, Duration{0}, seconds(1),
                "between two that are sent unasked, at least, unless four times the threshold has arrived"),
        setting("sack_first_packet", &C::sack_first_packet, "acknowledge a queue pair's very first packet at once"),
        setting("timestamps", &C::timestamps, "send TSETH"),
        setting("trim_nack", &C::trim_nack, "answer trimmed packets with a NACK, and announce it to the peer"),
        setting("peer_trim_nack", &C::peer_trim_nack, "the peers can; if not, data is marked NO_TRIM"),
        setting("announces_ports", &C::announces_ports,
                "tell every peer at first how our ports are: it may have known another process here"),
        setting("proves_addresses", &C::proves_addresses,
                "send data to a plane of a peer only after it has answered there"),
        setting("probe_interval_us", &C::probe_interval, microseconds(1), seconds(60),
                "between probes of a withdrawn EV, at first"),
        setting("probe_interval_max_us", &C::probe_interval_max, microseconds(1), seconds(3600), "and at last"),
        setting("revival_answers", &C::revival_answers, 1, 100, "probes in a row whose answers bring an EV back"),
        setting(
            "answers_per_s", &C::answers_per_s, 0, 10'000'000,
            "to requests of nodes, for all peers together, and a tenth of that to each peer besides; 0: any number"),
        setting("max_events", &C::max_events, 1, 1 << 20, "older events are dropped, and counted, beyond this"),
    };
  }
};

MaybeError validate(const EndpointConfig& config);
MaybeError validate(const EvProfile& profile, std::uint32_t ports);
// Of one EV that a controller gives, as a number or as bytes.
MaybeError validate_value(const EvProfile& profile, const char* field, std::uint32_t value, bool is_bytes);
MaybeError validate(const RtrAttributes& attributes);
MaybeError validate(const RtsAttributes& attributes);

}  // namespace softmrc::proto
