// Everything that can be set, with its default and its allowed range; config.cpp is the one place that refuses values.
// Profiles are shared by queue pairs; queue pair attributes are given at the state transition that needs them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/serial.h"
#include "base/time.h"
#include "wire/entropy.h"

namespace softmrc::proto {

constexpr std::uint32_t max_ports = 16;
constexpr std::uint32_t max_evs = 1024;
constexpr std::uint32_t mpr_unit = 128;
constexpr std::uint32_t smallest_mpr = 8;  // in these units
constexpr std::uint32_t retry_forever = 25;

// What is wrong with a request of the caller: a value (config) or the moment (usage).
struct Problem {
  enum class Kind : std::uint8_t { config, usage };
  Kind kind = Kind::config;
  std::string field;
  std::string value;
  std::string allowed;
};
using Verdict = std::optional<Problem>;

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
  std::uint32_t count = 128;       // active EVs of a queue pair, the same number on every port
  std::uint32_t spares = 0;        // held back to replace a withdrawn EV of the same port
  std::uint32_t min_active = 0;    // 0: a quarter of count
  std::uint32_t value_bits = 32;   // width of a value drawn automatically
  std::uint32_t spray_quantum = 1; // packets in a row that may share an EV
  bool skips_congested = true;     // false: oblivious spraying, which a mark or a trim does not steer
  bool leaves_slow_ports = false;  // steer by round trips, where nothing marks congestion
  std::vector<EvEntry> entries;    // for explicit_
  std::vector<wire::EvBytes> evs;  // what the entries are where 32 bits are not enough: one for each, or none
  wire::EvFormat format = wire::EvFormat::stev;
  wire::EvLayout layout;           // how an EV expands; empty: it is the value itself

  std::uint32_t floor() const { return min_active ? min_active : count / 4; }
  bool is_wide() const { return format == wire::EvFormat::srv6; }
  wire::EvBytes expanded(const wire::EvBytes& ev) const { return layout.fields.empty() ? ev : wire::expand(layout, ev); }
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

enum class CcAlgorithm : std::uint8_t { nscc, fixed_window };

struct CcProfile {
  CcAlgorithm algorithm = CcAlgorithm::nscc;
  std::uint64_t rate_bps = 400'000'000'000;  // of the whole NIC, all ports together
  Duration base_rtt = microseconds(8);
  bool learn_base_rtt = false;  // take the smallest round trip seen even where it is longer than base_rtt
  // Where endpoints are software, a round trip shorter than this is luck of scheduling; windows count it as this long.
  Duration min_base_rtt{0};
  // There, too, packets on different paths overtake each other while a process waits for its turn: W is never shorter.
  Duration min_reorder_window{0};
  bool trimming = true;         // the network trims: a tighter delay target, no quick adapt on delay
  Duration target_delay{0};     // 0: 0.75 base_rtt with trimming, else 1.0
  std::uint64_t window_bytes = 1 << 20;  // fixed_window
  double max_window_bdp = 1.5;
  // What all queue pairs of an endpoint that have something to send may have in flight together; 0: no limit.
  double shared_window_bdp = 2.0;
  double gamma = 0.8;
  double max_md_jump = 0.5;
  std::uint32_t qa_gate = 3;
};

// RESET -> INIT.
struct InitAttributes {
  std::uint32_t ev_profile = 0;
  std::uint32_t cc_profile = 0;
  std::uint32_t send_cq = 0;
  std::uint32_t recv_cq = 0;
  std::uint64_t domain = 0;  // whose memory the peer may write to
  // The controller's hint: how many queue pairs share a peer, how many peers are sent to, and from how many the peer
  // receives. They divide the first window, and no more: what is really there shows soon enough.
  std::uint16_t hint_qps_per_peer = 1;
  std::uint16_t hint_send_peers = 1;
  std::uint16_t hint_receive_peers = 1;

  std::uint32_t sharers() const {
    return std::max(1u, std::uint32_t{hint_qps_per_peer} * std::max(hint_send_peers, hint_receive_peers));
  }
};

// INIT -> RTR: what is needed to receive.
struct RtrAttributes {
  std::uint32_t peer = 0;
  std::uint32_t dest_qpn = 0;
  Psn first_psn;                     // the first PSN that the peer will send
  std::uint32_t mtu = 4096;          // payload bytes of a full packet
  std::uint32_t max_wimm_dest = 128; // immediates that may wait here for their turn
  std::uint32_t mpr_dest = 8;        // window offered, in units of 128 PSNs
  bool dynamic_mpr = false;
  // What the peer's words about its ports must carry, and what ours to it do; 0: it gave, or was given, none.
  std::uint64_t port_key = 0;
  std::uint64_t peer_port_key = 0;
};

// RTR -> RTS: what is needed to send.
struct RtsAttributes {
  Psn first_psn;
  std::uint32_t max_wimm = 128;
  std::uint32_t mpr = 8;
  std::uint32_t timeout = 8;         // 1.024 us * 2^timeout
  std::uint32_t retry_linear = 7;
  std::uint32_t retry_exponential = retry_forever;
  std::uint32_t max_send_wr = 4096;
};

struct EndpointConfig {
  std::uint64_t seed = 1;
  std::uint64_t secret = 0;          // what proofs of addresses rest on; nothing that is seen on the wire may follow from it
  std::uint32_t ports = 1;
  std::uint32_t sack_threshold_bytes = 16 * 1024;
  bool sack_first_packet = false;    // acknowledge a queue pair's very first packet at once
  bool timestamps = true;            // send TSETH
  bool trim_nack = true;             // answer trimmed packets with a NACK, and say so to the peer
  bool peer_trim_nack = true;        // the peers can; if not, data is marked NO_TRIM
  bool announces_ports = false;      // tell every peer at first how our ports are: it may have known another process here
  bool proves_addresses = false;     // send data to a plane of a peer only after it has answered there
  Duration probe_interval = milliseconds(1);
  Duration probe_interval_max = seconds(1);
  std::uint32_t revival_answers = 3;
  // Requests of nodes answered in a second, for all peers together; each has a tenth of that besides, for itself. 0: all.
  std::uint32_t answers_per_s = 0;
  std::uint32_t max_events = 4096;   // older events are dropped, and counted, beyond this
};

Verdict validate(const EndpointConfig& config);
Verdict validate(const EvProfile& profile, std::uint32_t ports);
// Of one EV that a controller gives, as a number or as bytes.
Verdict validate_value(const EvProfile& profile, const char* field, std::uint32_t value, bool is_bytes);
Verdict validate(const CcProfile& profile);
Verdict validate(const RtrAttributes& attributes);
Verdict validate(const RtsAttributes& attributes);

}  // namespace softmrc::proto
