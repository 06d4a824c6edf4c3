// The plugin as one process has it: settings, a station, and the calls of every version of NCCL's table in one shape.
// Nothing here is ever destroyed: NCCL may unload the plugin, and fork, while threads of ours run.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "face/door.h"
#include "nccl/abi.h"
#include "nccl/comm.h"
#include "nccl/words.h"

namespace softmrc::nccl {

struct Properties {
  const char* name = "softmrc0";
  const char* pci_path = nullptr;
  int speed_mbps = 0;
  float latency_us = 15;
};

// What a listener tells a connector, by way of NCCL, and where the connector keeps how far it has come.
struct Handle {
  std::uint32_t magic = 0;
  std::uint16_t port = 0;
  std::uint8_t version = 0;
  std::uint8_t addresses = 0;
  face::Token token{};
  std::uint64_t process = 0;
  std::array<wire::Ipv6, 4> address{};  // IPv4 as ::ffff:a.b.c.d
  face::Call* call = nullptr;
};
static_assert(sizeof(Handle) <= handle_bytes && std::is_trivially_copyable_v<Handle>);

struct ListenComm {
  std::shared_ptr<Station> station;
  std::unique_ptr<face::Door> door;
};

class Plugin {
 public:
  static Plugin& of_process();

  Words& words() { return words_; }

  // Each throws Refusal or udp::DeviceFailure where it cannot.
  void begin(Logger logger);
  // One more, or one fewer, communicator; when the last one ends, the station is left.
  void enter();
  void leave();
  const Properties& properties();

  // Waits a little where the system is short of something: NCCL asks once.
  ListenComm* listen(Handle& handle);
  // Null: ask again.
  SendComm* connect(Handle& handle);
  ReceiveComm* accept(ListenComm& comm);

 private:
  // The process's, and a second one for connections between two communicators of the same process.
  using Stations = std::array<std::shared_ptr<Station>, 2>;

  Plugin();
  // Lets go of peers, and stays until they have heard the last of it.
  static void depart(const Stations& stations);
  void read_settings();
  std::shared_ptr<Station> station(bool is_mirror);
  ListenComm* listen_now(Handle& handle);
  void forget(face::Call* call);
  void check_process() const;

  Words words_;
  std::mutex mutex_;                        // for what follows
  std::uint32_t communicators_ = 0;
  std::optional<face::Settings> settings_;
  std::vector<face::LocalPlane> planes_;
  std::uint32_t lanes_ = 1;
  Properties properties_;
  std::set<std::string> pci_paths_;         // all that were ever told: NCCL keeps no copy
  Stations stations_;
  std::set<face::Call*> calls_;
  std::uint64_t process_;
  int pid_;
};

}  // namespace softmrc::nccl
