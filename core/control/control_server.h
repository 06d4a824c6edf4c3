// The control socket of a device: a request is a line of JSON, and so is its answer. docs/reference/control.md says
// which there are. One thread serves all clients, and sleeps without requests; their handlers are in
// control/requests.cpp.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>

#include "control/bursts.h"
#include "host/host_error.h"
#include "host/json.h"
#include "host/node.h"
#include "host/settings.h"
#include "udp/device.h"

namespace softmrc::control {

using host::Environment;
using host::HostError;
using host::Json;

// What the device itself does not know.
struct DeviceInfo {
  std::string kind;  // of user: "nccl", "verbs"
  std::uint32_t mtu = 0;
  Json settings;
  std::vector<std::uint64_t> speeds_bps;  // by plane; 0: not known
  const BurstLog* bursts = nullptr;       // null: none are marked
  std::uint32_t number = 0;               // of the device in its process, and
  double started = 0;  // when it was made, in seconds since 1970, its own clock's zero: the control's to fill in
};

// What a request is answered with; `{"ok": false, …}` where it is refused.
Json answer(udp::Device& device, const DeviceInfo& facts, const std::string& line);

// The folder of the sockets of this user's devices, made if it is missing. Throws HostError where others could write to
// it.
std::string control_directory(const Environment& environment = host::of_process);

class ControlServer final : public udp::DeviceService {
 public:
  // Throws HostError where there can be none, and DeviceError where the system is short of something.
  ControlServer(udp::Device& device, DeviceInfo facts, const std::string& folder);
  ~ControlServer() override { close(); }

  const std::string& path() const { return path_; }
  void close() override;
  void close_after_fork() override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Client {
    std::atomic<int> fd{-1};
    std::string in;
    std::string out;
  };

  void claim(const std::string& folder);
  void run(const std::string& folder);
  void accept_clients();
  void serve(Client& client);
  void serve_safely(Client& client);
  bool read(Client& client);
  bool write(Client& client);
  void disconnect(Client& client);
  void back_off();
  bool may_pass(int error);
  // False where this second's requests are used up.
  bool is_within_rate_limit();

  udp::Device& device_;
  DeviceInfo facts_;
  std::string path_;
  int socket_ = -1;
  int wake_fd_ = -1;  // written to, to end it
  std::array<Client, 16> clients_;
  Clock::time_point second_ = Clock::now();
  std::uint32_t answered_ = 0;  // in it
  Clock::time_point backs_off_until_{};
  std::mutex mutex_;  // of who closes
  std::thread thread_;
};

// Opens one for a node's device, where it is wanted. Returns its path, or why there is none.
std::string open_control(host::Node& node, const std::string& kind, bool is_wanted, const BurstLog* bursts);
// Opens one for the device. Returns its path; empty, with `why`, where there can be none. Throws DeviceError where the
// system is short of something.
std::string open_control(udp::Device& device, DeviceInfo facts, std::string& why);

}  // namespace softmrc::control
