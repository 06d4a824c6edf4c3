// Which planes a process uses, and how its device is set, from the same variables and file as Python's `softmrc.torch`:
//
//   SOFTMRC_PLANES   eth0,eth1: addresses or interfaces; without it those of the file, or what is found
//   SOFTMRC_CONFIG   a file: planes = ["eth0", "eth1"], and a table [device] with the settings below
//   SOFTMRC_FABRIC   a fabric's file, and SOFTMRC_HOST a number: this host has that fabric's planes and paths, see
//   fabric.h SOFTMRC_SECRET   what both ends of a connection have to know SOFTMRC_FAULTS   weather, see faults.h
//   SOFTMRC_CAPTURE  a file for what passes the sockets, as pcapng; %p in its name is the process
//   SOFTMRC_CONTROL  0: no control socket, see control.h
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "proto/congestion/controller.h"
#include "proto/settings.h"

namespace softmrc::host {

// What `softmrc.DeviceConfig` is to Python, by the same names and with the same defaults.
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

  static auto settings() {
    using D = DeviceSettings;
    using proto::setting;
    return std::tuple{
        setting("port", &D::port, 0, 65'535, "UDP, of every plane"),
        setting("lanes", &D::lanes, 0, 64, "threads that move packets; 0: by cores"),
        setting("sockets_per_plane", &D::sockets_per_plane, 1, 256, "source ports"),
        setting("quantum", &D::quantum, 0, 64, "packets in a row that may share a path; 0: two trains"),
        setting("mtu", &D::mtu, 0, 16'384, "payload of a full packet; 0: what the links carry"),
        setting("mtu_limit", &D::mtu_limit, 512, 16'384, "the largest that is chosen"),
        setting("icrc", &D::icrc, "packets are checked"),
        setting("seal", &D::seal, "packets are hidden and authentic: auto, on or off"),
        setting("rekey_packets", &D::rekey_packets, 16, std::uint64_t{1} << 36, "that a key serves"),
        setting("rekey_s", &D::rekey_s, 10, 86'400, "and how long"),
        setting("gso", &D::gso, "trains"),
        setting("ecn", &D::ecn, "marks of congestion"),
        setting("trimming", &D::trimming, "the network trims"),
        setting("prove_addresses", &D::prove_addresses, "data goes where a probe was answered"),
        setting("watch_links", &D::watch_links, "links that go down"),
        setting("leave_slow_planes", &D::leave_slow_planes, "a plane three times as slow as the others is not used"),
        setting("spin_us", &D::spin_us, 0, 1e12, "before a lane sleeps"),
        setting("buffer_bytes", &D::buffer_bytes, 0, 1u << 30, "of a plane"),
        setting("send_buffer_bytes", &D::send_buffer_bytes, 0, 1u << 30, "of a socket; 0: an eighth of the other"),
        setting("congestion_control", &D::congestion_control, "the controller"),
        setting("queue_us", &D::queue_us, 0, 1e7, "the queue that stands in front of each plane"),
        setting("rate_bps", &D::rate_bps, 0, 100'000'000'000'000, "of all planes; 0: what their links say"),
        setting("base_rtt_us", &D::base_rtt_us, 0.1, 1e7, "shorter round trips tell of scheduling"),
        setting("window_bytes", &D::window_bytes, 1, std::uint64_t{1} << 40, "the window is no larger"),
        setting("reorder_us", &D::reorder_us, 0, 1e7, "how late is lost"),
        setting("sack_threshold_bytes", &D::sack_threshold_bytes, 1, 1 << 24, "between two SACKs"),
        setting("sack_gap_us", &D::sack_gap_us, 0, 1e6, "and the time between two"),
        setting("probe_interval_us", &D::probe_interval_us, 1, 6e7, "between two probes"),
        setting("answers_per_s", &D::answers_per_s, 0, 10'000'000, "to probes"),
        setting("mpr", &D::mpr, 8, 255, "window offered, of 128 packets each"),
        setting("max_wimm", &D::max_wimm, 1, 16'384, "immediates under way"),
        setting("timeout", &D::timeout, 0, 24, "1.024 us, doubled so often"),
        setting("retry_linear", &D::retry_linear, 0, 7, "timeouts of that length"),
        setting("retry_exponential", &D::retry_exponential, 0, 25, "and of twice the length of the one before"),
        setting("max_send_wr", &D::max_send_wr, 1, 32'000, "messages under way"),
    };
  }
};

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

// Lanes where nobody says: one for every two processors that this process may use, shared with the ranks beside it.
std::uint32_t lanes_here(const Environment& environment, std::uint32_t most);

}  // namespace softmrc::host
