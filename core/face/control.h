// The control socket of a device: a request is a line of JSON, and so is its answer. docs/control.md says which there are.
// One thread serves all clients, and sleeps while nobody asks; what they ask is looked up in control_ops.cpp.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>

#include "face/bursts.h"
#include "face/json.h"
#include "face/settings.h"
#include "udp/device.h"

namespace softmrc::face {

// What a device does not know of itself.
struct Facts {
  std::string kind;             // of face: "nccl", …
  std::uint32_t mtu = 0;
  Json settings;
  std::vector<std::uint64_t> speeds_bps;  // by plane; 0: not known
  const Bursts* bursts = nullptr;         // null: this face marks none
  std::uint32_t number = 0;     // of the device in its process, and
  double started = 0;           // when it was made, in seconds since 1970, its own clock's zero: the control's to fill in
};

// What a request is answered with; `{"ok": false, …}` where it is refused.
Json answer(udp::Device& device, const Facts& facts, const std::string& line);

// Where the sockets of this user's devices are. It is made if need be. Throws Refusal where it is not to be trusted.
std::string control_folder(const Environment& environment = of_process);

class Control final : public udp::Companion {
 public:
  // Throws Refusal where there can be none, and DeviceFailure where the system is short of something.
  Control(udp::Device& device, Facts facts, const std::string& folder);
  ~Control() override { close(); }

  const std::string& path() const { return path_; }
  void close() override;
  void abandon() override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Client {
    std::atomic<int> fd{-1};
    std::string in;
    std::string out;
  };

  void claim(const std::string& folder);
  void live(const std::string& folder);
  void admit();
  void serve(Client& client);
  void serve_safely(Client& client);
  bool read(Client& client);
  bool write(Client& client);
  void let_go(Client& client);
  void rest();
  bool may_pass(int error);
  // False while too much was asked in this second.
  bool may_answer();

  udp::Device& device_;
  Facts facts_;
  std::string path_;
  int socket_ = -1;
  int bell_ = -1;               // rung to end it
  std::array<Client, 16> clients_;
  Clock::time_point second_ = Clock::now();
  std::uint32_t answered_ = 0;  // in it
  Clock::time_point rests_until_{};
  std::mutex mutex_;            // of who closes
  std::thread thread_;
};

// Gives the device one: its path. Empty, with `why`, where there can be none. Throws DeviceFailure where the system is short
// of something.
std::string open_control(udp::Device& device, Facts facts, std::string& why);

}  // namespace softmrc::face
