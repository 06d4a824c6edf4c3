#include "nccl/plugin.h"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "crypto/crypto.h"
#include "host/host_error.h"
#include "udp/device_error.h"

namespace softmrc::nccl {
namespace {

constexpr std::uint32_t magic = 0x534D5243;
constexpr std::uint8_t handle_version = 1;
constexpr std::uint32_t most_lanes_by_default = 4;
constexpr int unknown_speed_mbps = 10'000;
// So long a listener tries again where the system is short of something.
constexpr std::chrono::seconds shortage_borne{10};
constexpr std::chrono::milliseconds pause_between_tries{50};

wire::Ipv6 as_v6(const wire::Address& address) {
  if (!address.is_v4) return address.bytes;
  wire::Ipv6 mapped{};
  mapped[10] = mapped[11] = 0xFF;
  std::copy_n(address.bytes.begin(), 4, mapped.begin() + 12);
  return mapped;
}

wire::Address from_v6(const wire::Ipv6& bytes) {
  wire::Ipv6 mapped{};
  mapped[10] = mapped[11] = 0xFF;
  if (!std::equal(mapped.begin(), mapped.begin() + 12, bytes.begin())) return bytes;
  wire::Ipv4 v4;
  std::copy_n(bytes.begin() + 12, 4, v4.begin());
  return v4;
}

std::string pci_path_of(const std::string& link) {
  char path[PATH_MAX];
  return !link.empty() && realpath(("/sys/class/net/" + link + "/device").c_str(), path) ? path : "";
}

}  // namespace

Plugin& Plugin::of_process() {
  static Plugin* const plugin = new Plugin;  // for ever
  return *plugin;
}

Plugin::Plugin() : process_(host::random_bits()), pid_(getpid()) {
  // What a child has are copies; if it kept them, this process's ports would outlive it.
  pthread_atfork(nullptr, nullptr, [] {
    for (const auto& device : of_process().devices_)
      if (device) device->node().close_after_fork();
  });
  // Before version 11 nobody says when it is over. Peers may still want their last acknowledgement, sealed perhaps.
  // Where the process has used the library before, that has its handler of exit() already, which comes after ours.
  crypto::keep_until_the_end();
  std::atexit([] {
    Plugin& plugin = of_process();
    if (plugin.pid_ != getpid()) return;
    Devices left;
    {
      const std::lock_guard lock(plugin.mutex_);
      left = plugin.devices_;
    }
    shut_down(left);
  });
}

void Plugin::check_process() const {
  if (pid_ != getpid())
    throw host::HostError("this is a forked child: the device is its parent's, start the process anew");
}

void Plugin::read_settings() {
  const host::HostSettings settings = host::read_settings();
  std::vector<host::LocalPlane> planes;
  for (const std::string& name : settings.planes.empty() ? host::discover_planes() : settings.planes)
    planes.push_back(host::resolve(name));
  host::check(settings, planes);
  if (settings.device.max_send_wr < max_posted)
    throw host::HostError("max_send_wr is " + std::to_string(settings.device.max_send_wr) + "; allowed: at least " +
                          std::to_string(max_posted) + ", which a connection of NCCL may have under way");
  lanes_ = settings.device.lanes  ? settings.device.lanes
           : settings.device.port ? 1
                                  : host::lanes_here(host::of_process, most_lanes_by_default);
  Properties found;
  std::uint64_t mbps = 0;
  std::string names;
  for (const host::LocalPlane& plane : planes) {
    mbps += plane.speed_bps ? plane.speed_bps / 1'000'000 : unknown_speed_mbps;
    names += (names.empty() ? "" : ", ") + udp::text_of(plane.address) +
             (plane.link.empty() ? "" : " on " + plane.link);
  }
  found.speed_mbps = static_cast<int>(std::min<std::uint64_t>(mbps, INT_MAX));
  if (const std::string path = pci_path_of(planes[0].link); !path.empty())
    found.pci_path = pci_paths_.insert(path).first->c_str();
  const bool is_loopback_only = std::all_of(
      planes.begin(), planes.end(), [](const host::LocalPlane& plane) { return host::is_loopback(plane.address); });
  const bool is_sealed = host::seals(settings.device, settings.secret, is_loopback_only);
  settings_ = settings;
  planes_ = std::move(planes);
  properties_ = found;
  logger_.info(log_init | log_net, host::counted(planes_.size(), "plane") + ": " + names + "; " +
                                       host::counted(lanes_, "lane") + "; " +
                                       (settings.secret.empty() ? "no secret" : "with a secret") +
                                       (is_sealed ? ", packets are sealed" : "") +
                                       (settings.faults.empty() ? "" : "; faults " + settings.faults));
}

void Plugin::begin(LogFunction logger) {
  check_process();
  logger_.set(logger);
  const std::lock_guard lock(mutex_);
  if (!settings_) read_settings();
}

void Plugin::add_communicator() {
  const std::lock_guard lock(mutex_);
  ++communicators_;
}

void Plugin::remove_communicator() {
  check_process();
  Devices left;
  {
    const std::lock_guard lock(mutex_);
    if (communicators_ == 0 || --communicators_ > 0) return;
    for (host::HandshakeConnector* call : connectors_) delete call;
    connectors_.clear();
    left = std::exchange(devices_, {});
    settings_.reset();
  }
  shut_down(left);
}

void Plugin::shut_down(const Devices& devices) {
  for (const auto& device : devices)
    if (device) device->close();
  for (const auto& device : devices)
    if (device) device->wait_until_over();
}

const Properties& Plugin::properties() {
  const std::lock_guard lock(mutex_);
  return properties_;
}

std::shared_ptr<PluginDevice> Plugin::device(bool is_mirror) {
  check_process();
  const std::lock_guard lock(mutex_);
  if (!settings_) throw host::HostError("the plugin was not initialised");
  std::shared_ptr<PluginDevice>& device = devices_[is_mirror];
  if (device) return device;
  host::HostSettings settings = *settings_;
  if (is_mirror && !settings.capture.empty()) settings.capture += ".mirror";
  if (is_mirror) settings.device.port = 0;  // that one is the first device's; no firewall is between the two
  device = std::make_shared<PluginDevice>(settings, planes_, lanes_, logger_);
  logger_.info(log_init | log_net, device->control());
  return device;
}

// Connections ------------------------------------------------------------------------------------------------------

ListenComm* Plugin::listen(Handle& handle) {
  for (const auto until = std::chrono::steady_clock::now() + shortage_borne;;
       std::this_thread::sleep_for(pause_between_tries))
    try {
      return listen_now(handle);
    } catch (const std::exception& why) {
      if (!udp::is_transient(why) || std::chrono::steady_clock::now() >= until) throw;
      logger_.info(log_net, std::string("tried again: ") + why.what());
    }
}

ListenComm* Plugin::listen_now(Handle& handle) {
  auto comm = std::make_unique<ListenComm>();
  comm->device = device(false);
  host::Node& node = comm->device->node();
  Handle local;
  local.magic = magic;
  local.version = handle_version;
  local.process = process_;
  for (std::size_t i = 0; i < local.token.size(); i += 8) {
    const std::uint64_t bits = host::random_bits();
    std::memcpy(local.token.data() + i, &bits, 8);
  }
  const std::optional<wire::Ipv6> reached_at = comm->device->tcp_address();
  if (reached_at) local.address[local.addresses++] = *reached_at;
  for (const host::LocalPlane& plane : node.planes())
    if (!reached_at && local.addresses < local.address.size() &&
        (node.is_loopback_only() ? local.addresses == 0 : plane.address.is_v4 == node.planes()[0].address.is_v4))
      local.address[local.addresses++] = as_v6(plane.address);
  const auto make = [device = comm->device] { return std::make_unique<ReceiveComm>(device); };
  comm->listener = std::make_unique<host::HandshakeListener>(node.planes()[0].address, node.is_loopback_only(),
                                                             comm->device->secret(), local.token, make);
  local.port = comm->listener->port();
  handle = local;
  return comm.release();
}

SendComm* Plugin::connect(Handle& handle) {
  check_process();
  if (handle.magic != magic || handle.version != handle_version || handle.addresses > handle.address.size())
    throw host::HostError(
        "the peer's handle is not of this plugin, or of another version: NCCL_NET must name the same on all ranks");
  host::HandshakeConnector* call = handle.call;
  {
    const std::lock_guard lock(mutex_);
    if (!connectors_.contains(call)) call = nullptr;  // what a handle says that came from a peer is no address of ours
  }
  if (!call) {
    std::vector<wire::Address> addresses;
    for (std::uint8_t i = 0; i < handle.addresses; ++i) addresses.push_back(from_v6(handle.address[i]));
    // The device, too, is made by the call, which tries again where the system is short of something.
    const auto make = [this, is_mirror = handle.process == process_] {
      return std::make_unique<SendComm>(device(is_mirror));
    };
    const std::lock_guard lock(mutex_);
    if (!settings_) throw host::HostError("the plugin was not initialised");
    call = new host::HandshakeConnector(std::move(addresses), planes_[0].scope_id(), handle.port, settings_->secret,
                                        handle.token, make);
    std::erase_if(connectors_, [](host::HandshakeConnector* old) {
      const std::unique_ptr<host::HandshakeConnector> taken(
          old->is_abandoned() ? old : nullptr);  // NCCL gave up, and does not say so
      return taken != nullptr;
    });
    connectors_.insert(call);
    handle.call = call;
  }
  try {
    std::unique_ptr<host::HandshakeDelegate> party = call->poll();
    if (!party) return nullptr;
    drop_connector(call);
    return static_cast<SendComm*>(party.release());
  } catch (...) {
    drop_connector(call);
    throw;
  }
}

void Plugin::drop_connector(host::HandshakeConnector* call) {
  const std::lock_guard lock(mutex_);
  connectors_.erase(call);
  delete call;
}

ReceiveComm* Plugin::accept(ListenComm& comm) {
  check_process();
  const auto log_rejected = [this](const std::string& who) { logger_.info(log_net, "turned away: " + who); };
  return static_cast<ReceiveComm*>(comm.listener->poll(log_rejected).release());
}

}  // namespace softmrc::nccl
