// The plugin as one process has it: settings, a device, and the calls of every version of NCCL's table in one shape.
// Nothing here is ever destroyed: NCCL may unload the plugin, and fork, while threads of ours run.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "nccl/abi.h"
#include "nccl/comm.h"
#include "nccl/comm_setup.h"
#include "nccl/logger.h"

namespace softmrc::nccl {

struct Properties {
  const char* name = "softmrc0";
  const char* pci_path = nullptr;
  int speed_mbps = 0;
  float latency_us = 15;
};

using Token = std::array<std::uint8_t, 16>;

// What a listener passes to a connector through NCCL, and where the connector keeps how far it has come.
struct Handle {
  std::uint32_t magic = 0;
  std::uint16_t port = 0;
  std::uint8_t version = 0;
  std::uint8_t addresses = 0;
  Token token{};
  std::uint64_t process = 0;
  std::array<wire::Ipv6, 4> address{};  // IPv4 as ::ffff:a.b.c.d
  std::uint64_t connector = 0;          // its number in this process
};
static_assert(sizeof(Handle) <= handle_bytes && std::is_trivially_copyable_v<Handle>);

struct ListenComm {
  std::shared_ptr<PluginDevice> device;
  std::unique_ptr<CommListener> listener;
  std::chrono::steady_clock::time_point warned_at{};
};

class Plugin {
 public:
  static Plugin& of_process();

  Logger& logger() { return logger_; }

  // Each throws HostError or udp::DeviceError where it cannot.
  void begin(LogFunction logger);
  // One more, or one fewer, communicator; when the last one ends, the device is left.
  void add_communicator();
  void remove_communicator();
  const Properties& properties();

  // Waits a little where the system is short of something: NCCL calls once.
  ListenComm* listen(Handle& handle);
  // Null: call again.
  SendComm* connect(Handle& handle);
  ReceiveComm* accept(ListenComm& comm);

 private:
  // The process's, and a second one for connections between two communicators of the same process.
  using Devices = std::array<std::shared_ptr<PluginDevice>, 2>;

  Plugin();
  // Closes all connections, and waits until that is acknowledged.
  static void shut_down(const Devices& devices);
  void read_settings();
  std::shared_ptr<PluginDevice> device(bool is_mirror);
  ListenComm* listen_now(Handle& handle);
  std::uint64_t add_connector(const Handle& handle);
  std::unique_ptr<Party> poll_connector(std::uint64_t number);
  void before_fork();
  void after_fork(bool is_child);
  void check_process() const;

  Logger logger_;
  std::mutex connecting_;  // for connectors_; locked before mutex_
  // By random numbers, so that a handle of a peer, or one of a connection that has failed, names none of them.
  std::map<std::uint64_t, CommConnector> connectors_;
  std::mutex mutex_;  // for what follows
  std::uint32_t communicators_ = 0;
  std::optional<host::HostSettings> settings_;
  std::vector<host::LocalPlane> planes_;
  std::uint32_t lanes_ = 1;
  Properties properties_;
  std::set<std::string> pci_paths_;  // all that NCCL was ever given: it keeps no copy
  Devices devices_;
  const std::shared_ptr<host::AcceptorRegistry> acceptors_ = std::make_shared<host::AcceptorRegistry>();
  std::uint64_t process_;
  int pid_;
};

}  // namespace softmrc::nccl
