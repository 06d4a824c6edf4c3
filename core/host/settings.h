// Which planes a process uses, and how its device is set, from the same variables and file as Python's `softmrc.torch`:
//
//   SOFTMRC_PLANES   eth0,eth1: addresses or interfaces; without it those of the file, or what is found
//   SOFTMRC_CONFIG   a file: planes = ["eth0", "eth1"], and a table [device] with the settings below
//   SOFTMRC_FABRIC   a fabric's file, and SOFTMRC_HOST a number: this host has that fabric's planes and paths
//   SOFTMRC_SECRET   what both ends of a connection have to know
//   SOFTMRC_FAULTS   faults on demand, see faults.h
//   SOFTMRC_CAPTURE  a file for what passes the sockets, as pcapng; %p in its name is the process
//   SOFTMRC_CONTROL  0: no control socket, see control_server.h
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "proto/congestion/controller.h"
#include "proto/settings.h"

namespace softmrc::host {

constexpr double longest_us = 1e12;

// How a device is set, in C++ and in Python (`softmrc.DeviceConfig`). The defaults are for software: coarser timers,
// and windows that hide scheduling.
struct DeviceSettings {
  std::uint32_t port = 0;
  std::uint32_t lanes = 0;
  std::uint32_t sockets_per_plane = 4;
  std::uint32_t quantum = 0;
  std::uint32_t mtu = 0;
  std::uint32_t mtu_limit = 16'256;
  bool icrc = true;
  std::string seal = "auto";
  std::uint64_t rekey_packets = std::uint64_t{1} << 36;
  std::uint32_t rekey_s = 3600;
  bool gso = true;
  bool ecn = true;
  bool srv6 = false;
  bool trimming = false;
  bool prove_addresses = true;
  bool watch_links = true;
  bool leave_slow_planes = true;
  double spin_us = 50;
  std::uint32_t buffer_bytes = 8 << 20;
  std::uint32_t send_buffer_bytes = 0;
  std::string congestion_control = proto::controller_of_sockets;
  double queue_us = 1'000;
  std::uint64_t rate_bps = 0;
  double base_rtt_us = 2'000;
  std::uint64_t window_bytes = 2 << 20;
  double reorder_us = 2'000;
  std::uint32_t sack_threshold_bytes = 64 * 1024;
  double sack_gap_us = 50;
  double probe_interval_us = 1'000;
  std::uint32_t answers_per_s = 10'000;
  std::uint32_t mpr = 64;
  std::uint32_t max_wimm = 1024;
  std::uint32_t timeout = 16;
  std::uint32_t retry_linear = 7;
  std::uint32_t retry_exponential = 8;
  std::uint32_t max_send_wr = 4096;
  std::uint32_t max_pending = 256;
  std::uint32_t max_pending_per_address = 64;
  std::uint32_t max_connections = 8192;
  std::uint32_t max_connections_per_address = 2048;

  static auto settings() {
    using D = DeviceSettings;
    using proto::setting;
    return std::tuple{
        setting("port", &D::port, 0, 65'535,
                "the UDP port of every plane; further lanes have those that follow; 0: any free one"),
        setting("lanes", &D::lanes, 0, 64,
                "threads that move packets, each with its own sockets; 0: by cores, or one if `port` is set"),
        setting("sockets_per_plane", &D::sockets_per_plane, 1, 256,
                "how many source ports, and so how many paths where the network hashes them"),
        setting("quantum", &D::quantum, 0, 64,
                "packets in a row that may share a path; 0: as many as two GSO batches hold"),
        setting("mtu", &D::mtu, "payload bytes of a full packet; 0: what the links carry, up to mtu_limit"),
        setting("mtu_limit", &D::mtu_limit, 512, 16'384,
                "the largest payload that is chosen; four such packets fill a GSO batch"),
        setting("icrc", &D::icrc, "packets carry and are checked by the ICRC"),
        setting("seal", &D::seal,
                "encrypt and authenticate packets: on, off, or auto: with a secret, unless all stays on this machine"),
        setting("rekey_packets", &D::rekey_packets, 16, std::uint64_t{1} << 36, "after so many packets the next key"),
        setting("rekey_s", &D::rekey_s, 10, 86'400, "or after so many seconds"),
        setting("gso", &D::gso, "let the kernel segment batches (UDP GSO)"),
        setting("ecn", &D::ecn, "send as ECN capable"),
        setting("srv6", &D::srv6, "EVs are indices of SRv6 carriers, given with each peer"),
        setting("trimming", &D::trimming, "the network trims and the peers understand it"),
        setting("prove_addresses", &D::prove_addresses,
                "send data only where a probe was answered; peers may say any address is theirs"),
        setting("watch_links", &D::watch_links, "stop using a plane whose link goes down"),
        setting("leave_slow_planes", &D::leave_slow_planes,
                "not use a plane whose round trips are three times the others'"),
        setting("spin_us", &D::spin_us, 0, longest_us, "how long a lane polls before it sleeps"),
        setting("buffer_bytes", &D::buffer_bytes, 0, 1u << 30, "receive buffer of a plane"),
        setting("send_buffer_bytes", &D::send_buffer_bytes, 0, 1u << 30,
                "of each socket; 0: an eighth of buffer_bytes. A short one chooses paths later"),
        setting("congestion_control", &D::congestion_control, "one of `softmrc._core.controllers()`"),
        setting("queue_us", &D::queue_us, 0, 1e7,
                "queue_delay: how much of a queue stands in front of each plane, which hides scheduling"),
        setting("rate_bps", &D::rate_bps, 0, 100'000'000'000'000,
                "nscc: of all planes together; 0: what their links say, or 40 Gb/s"),
        setting("base_rtt_us", &D::base_rtt_us, 0.1, 1e7,
                "below this, a round trip says more about scheduling than about the network"),
        setting("window_bytes", &D::window_bytes, 512, std::uint64_t{1} << 40,
                "the congestion window never grows beyond it: what is in flight should stay in caches"),
        setting("reorder_us", &D::reorder_us, 0, 1e7,
                "how much later another packet must have been sent for a missing one to be lost"),
        setting("sack_threshold_bytes", &D::sack_threshold_bytes, 1, 1 << 24,
                "that arrive before a SACK is sent unsolicited"),
        setting("sack_gap_us", &D::sack_gap_us, 0, 1e6,
                "between two unsolicited SACKs, unless four times as much has arrived"),
        setting("probe_interval_us", &D::probe_interval_us, 1, 6e7, "between probes of a withdrawn EV, at first"),
        setting("answers_per_s", &D::answers_per_s, 0, 10'000'000,
                "to probes of all peers together, and a tenth of that to each besides; 0: any number"),
        setting("mpr", &D::mpr, 8, 255, "of 128 packets each: what may be under way, or have overtaken others"),
        setting("max_wimm", &D::max_wimm, 1, 16'384, "immediates under way at once"),
        setting("timeout", &D::timeout, 0, 24, "1.024 µs · 2^timeout: 67 ms"),
        setting("retry_linear", &D::retry_linear, 0, 7, "timeouts of that length"),
        setting(
            "retry_exponential", &D::retry_exponential, 0, 25,
            "and of twice the length of the one before: a peer that says nothing is given up after 69 s; 25: for ever"),
        setting("max_send_wr", &D::max_send_wr, 1, 32'000, "messages that may wait or be under way"),
        setting("max_pending", &D::max_pending, 1, 65'536,
                "unfinished handshakes with peers that are not authenticated, and as many with others, in a process"),
        setting("max_pending_per_address", &D::max_pending_per_address, 1, 65'536, "likewise, with one address"),
        setting("max_connections", &D::max_connections, 1, 1u << 20,
                "that a process has accepted and not closed; one more is refused with \"try again\""),
        setting("max_connections_per_address", &D::max_connections_per_address, 1, 1u << 20,
                "likewise, from one address"),
    };
  }
};

// What is wrong with a value, whatever the planes are.
proto::MaybeError validate(const DeviceSettings& settings);

class FabricHost;
class Denylist;

struct HostSettings {
  std::vector<std::string> planes;  // as people name them; none: to be found
  DeviceSettings device;
  std::string secret;  // empty: none
  std::string faults;
  std::string capture;
  bool control = true;
  std::shared_ptr<const FabricHost> fabric;  // null: paths are sockets
  std::shared_ptr<const Denylist> denylist;  // null: every path may be used
};

// The value of a variable, empty where it is not set.
using Environment = std::function<std::string(const char*)>;
std::string of_process(const char* variable);

// Whether devices have control sockets.
proto::MaybeError read_control(const Environment& environment, bool& is_wanted);

// Throws HostError.
HostSettings read_settings(const Environment& environment = of_process);

// Default number of lanes: one for every two processors that this process may use, shared with the host's other ranks.
std::uint32_t lanes_here(const Environment& environment, std::uint32_t most);

}  // namespace softmrc::host
