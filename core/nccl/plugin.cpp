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
#include "host/listening.h"
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
constexpr std::chrono::seconds pause_between_warnings{1};

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

// Made of the secret and the token: a peer must know both.
host::Credentials credentials_of(const std::string& secret, const Token& token) {
  return host::Credentials::of_secret({reinterpret_cast<const std::uint8_t*>(secret.data()), secret.size()}, token);
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
  pthread_atfork([] { of_process().before_fork(); }, [] { of_process().after_fork(false); },
                 [] { of_process().after_fork(true); });
  // Before version 11 NCCL does not call `finalize`. Peers may still want their last acknowledgement, perhaps
  // encrypted. Where the process has used the library before, that has its handler of exit() already, which comes after
  // ours.
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

void Plugin::before_fork() {
  connecting_.lock();
  mutex_.lock();
  acceptors_->before_fork();
}

// What a child has are copies; if it kept them, this process's ports and connections would outlive it.
void Plugin::after_fork(bool is_child) {
  acceptors_->after_fork(is_child);
  if (is_child) {
    for (auto& [number, connector] : connectors_) connector.close_after_fork();
    for (const auto& device : devices_)
      if (device) device->node().close_after_fork();
  }
  mutex_.unlock();
  connecting_.unlock();
}

void Plugin::check_process() const {
  if (pid_ != getpid())
    throw host::HostError("this is a forked child and the device is its parent's; start a new process instead");
}

void Plugin::read_settings() {
  const host::HostSettings settings = host::read_settings();
  std::vector<host::LocalPlane> planes;
  for (const std::string& name : settings.planes.empty() ? host::discover_planes() : settings.planes)
    planes.push_back(host::resolve(name));
  host::check(settings, planes);
  if (settings.device.max_send_wr < max_posted)
    throw host::HostError(host::message(
        "max_send_wr",
        "must be at least " + std::to_string(max_posted) + ", as many as a connection of NCCL may have under way",
        std::to_string(settings.device.max_send_wr)));
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
  const bool is_sealed = host::seals(settings.device, !settings.secret.empty(), is_loopback_only);
  settings_ = settings;
  planes_ = std::move(planes);
  properties_ = found;
  logger_.info(log_init | log_net, host::counted(planes_.size(), "plane") + ": " + names + "; " +
                                       host::counted(lanes_, "lane") + "; " +
                                       (settings.secret.empty() ? "no secret" : "with a secret") +
                                       (is_sealed ? ", packets are encrypted" : "") +
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
    const std::scoped_lock lock(connecting_, mutex_);
    if (communicators_ == 0 || --communicators_ > 0) return;
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
  // Accept no connection at an address that no plane has.
  std::vector<wire::Address> addresses;
  if (const std::optional<wire::Ipv6> reached_at = comm->device->tcp_address()) addresses.push_back(*reached_at);
  for (const host::LocalPlane& plane : node.planes())
    if (!comm->device->tcp_address() && addresses.size() < local.address.size() &&
        (node.is_loopback_only() ? addresses.empty() : plane.address.is_v4 == node.planes()[0].address.is_v4))
      addresses.push_back(plane.address);
  for (const wire::Address& address : addresses) local.address[local.addresses++] = as_v6(address);
  comm->listener = std::make_unique<CommListener>(
      host::listen_at(addresses, node.planes()[0].scope_id(), local.port),
      credentials_of(comm->device->secret(), local.token), acceptors_, host::limits_of(node.settings()),
      [device = comm->device] { return std::make_unique<ReceiveComm>(device); });
  handle = local;
  return comm.release();
}

SendComm* Plugin::connect(Handle& handle) {
  check_process();
  if (handle.magic != magic || handle.version != handle_version || handle.addresses > handle.address.size())
    throw host::HostError(
        "the peer's handle is not of this plugin, or of another version: NCCL_NET must name the same on all ranks");
  const std::lock_guard lock(connecting_);
  if (!connectors_.contains(handle.connector)) handle.connector = add_connector(handle);
  return static_cast<SendComm*>(poll_connector(handle.connector).release());
}

std::uint64_t Plugin::add_connector(const Handle& handle) {
  // The device, too, is made by the connector, which tries again where the system is short of something.
  const auto make = [this, is_mirror = handle.process == process_] {
    return std::make_unique<SendComm>(device(is_mirror));
  };
  std::vector<host::DialCandidate> ways;
  host::Credentials own;
  {
    const std::lock_guard lock(mutex_);
    if (!settings_) throw host::HostError("the plugin was not initialised");
    own = credentials_of(settings_->secret, handle.token);
    for (std::uint8_t i = 0; i < handle.addresses; ++i)
      ways.push_back({from_v6(handle.address[i]), handle.port, planes_[0].scope_id()});
    // By the routes first; then over each plane, to the address that the peer has there.
    if (handle.addresses > 1)
      for (std::size_t i = 0; i < std::min<std::size_t>(handle.addresses, planes_.size()); ++i) {
        const host::LocalPlane& plane = planes_[i];
        if (plane.address.is_v4 == ways[i].address.is_v4)
          ways.push_back({ways[i].address, handle.port, plane.scope_id(), plane.address,
                          plane.interface.empty() ? plane.link : plane.interface});
      }
  }
  std::erase_if(connectors_, [](const auto& one) { return one.second.is_abandoned(); });  // NCCL gives up silently
  for (;;)
    if (const std::uint64_t number = host::random_bits();
        number != 0 && connectors_.try_emplace(number, ways, own, make).second)
      return number;
}

// Null: not connected yet.
std::unique_ptr<Party> Plugin::poll_connector(std::uint64_t number) {
  const auto at = connectors_.find(number);
  try {
    std::unique_ptr<Party> comm = at->second.poll();
    if (comm) connectors_.erase(at);
    return comm;
  } catch (...) {
    connectors_.erase(at);
    throw;
  }
}

ReceiveComm* Plugin::accept(ListenComm& comm) {
  check_process();
  // A process that only accepts would not learn otherwise that its secret differs. Thousands of clients may be refused.
  const auto log = [this, &comm](const std::string& words) {
    const auto now = std::chrono::steady_clock::now();
    const bool is_first = now - comm.warned_at >= pause_between_warnings;
    if (is_first) comm.warned_at = now;
    if (is_first) logger_.warn(words);
    else logger_.info(log_net, words);
  };
  return static_cast<ReceiveComm*>(comm.listener->poll(log).release());
}

}  // namespace softmrc::nccl
