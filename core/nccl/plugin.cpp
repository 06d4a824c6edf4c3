#include "nccl/plugin.h"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "face/refusal.h"
#include "seal/crypto.h"
#include "udp/failure.h"

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

Plugin::Plugin() : process_(face::random_bits()), pid_(getpid()) {
  // What a child has are copies; if it kept them, this process's ports would outlive it.
  pthread_atfork(nullptr, nullptr, [] {
    for (const auto& station : of_process().stations_)
      if (station) station->node().abandon();
  });
  // Before version 11 nobody says when it is over. Peers may still want their last acknowledgement, sealed perhaps. Where the
  // process has used the library before, that has its handler of exit() already, which comes after ours.
  seal::keep_until_the_end();
  std::atexit([] {
    Plugin& plugin = of_process();
    if (plugin.pid_ != getpid()) return;
    Stations left;
    {
      const std::lock_guard lock(plugin.mutex_);
      left = plugin.stations_;
    }
    depart(left);
  });
}

void Plugin::check_process() const {
  if (pid_ != getpid()) throw face::Refusal("this is a forked child: the device is its parent's, start the process anew");
}

void Plugin::read_settings() {
  const face::Settings settings = face::read_settings();
  std::vector<face::LocalPlane> planes;
  for (const std::string& name : settings.planes.empty() ? face::planes_found() : settings.planes) planes.push_back(face::resolve(name));
  face::check(settings, planes);
  if (settings.device.max_send_wr < most_posted)
    throw face::Refusal("max_send_wr is " + std::to_string(settings.device.max_send_wr) + "; allowed: at least " + std::to_string(most_posted) +
                        ", which a connection of NCCL may have under way");
  lanes_ = settings.device.lanes ? settings.device.lanes : settings.device.port ? 1 : face::lanes_here(face::of_process, most_lanes_by_default);
  Properties found;
  std::uint64_t mbps = 0;
  std::string names;
  for (const face::LocalPlane& plane : planes) {
    mbps += plane.speed_bps() ? plane.speed_bps() / 1'000'000 : unknown_speed_mbps;
    names += (names.empty() ? "" : ", ") + udp::text_of(plane.address) + (plane.link.empty() ? "" : " on " + plane.link);
  }
  found.speed_mbps = static_cast<int>(std::min<std::uint64_t>(mbps, INT_MAX));
  if (const std::string path = pci_path_of(planes[0].link); !path.empty()) found.pci_path = pci_paths_.insert(path).first->c_str();
  const bool stays_here = std::all_of(planes.begin(), planes.end(), [](const face::LocalPlane& plane) { return face::is_loopback(plane.address); });
  const bool is_sealed = face::seals(settings.device, settings.secret, stays_here);
  settings_ = settings;
  planes_ = std::move(planes);
  properties_ = found;
  words_.tell(log_init | log_net, face::counted(planes_.size(), "plane") + ": " + names + "; " + face::counted(lanes_, "lane") + "; " +
                                      (settings.secret.empty() ? "no secret" : "with a secret") + (is_sealed ? ", packets are sealed" : "") +
                                      (settings.faults.empty() ? "" : "; faults " + settings.faults));
}

void Plugin::begin(Logger logger) {
  check_process();
  words_.set(logger);
  const std::lock_guard lock(mutex_);
  if (!settings_) read_settings();
}

void Plugin::enter() {
  const std::lock_guard lock(mutex_);
  ++communicators_;
}

void Plugin::leave() {
  check_process();
  Stations left;
  {
    const std::lock_guard lock(mutex_);
    if (communicators_ == 0 || --communicators_ > 0) return;
    for (face::Call* call : calls_) delete call;
    calls_.clear();
    left = std::exchange(stations_, {});
    settings_.reset();
  }
  depart(left);
}

void Plugin::depart(const Stations& stations) {
  for (const auto& station : stations)
    if (station) station->close();
  for (const auto& station : stations)
    if (station) station->wait_until_over();
}

const Properties& Plugin::properties() {
  const std::lock_guard lock(mutex_);
  return properties_;
}

std::shared_ptr<Station> Plugin::station(bool is_mirror) {
  check_process();
  const std::lock_guard lock(mutex_);
  if (!settings_) throw face::Refusal("the plugin was not initialised");
  std::shared_ptr<Station>& station = stations_[is_mirror];
  if (station) return station;
  face::Settings settings = *settings_;
  if (is_mirror && !settings.capture.empty()) settings.capture += ".mirror";
  if (is_mirror) settings.device.port = 0;  // that one is the first station's; no firewall is between the two
  station = std::make_shared<Station>(settings, planes_, lanes_, words_);
  words_.tell(log_init | log_net, station->node().control());
  return station;
}

// Connections ------------------------------------------------------------------------------------------------------

ListenComm* Plugin::listen(Handle& handle) {
  for (const auto until = std::chrono::steady_clock::now() + shortage_borne;; std::this_thread::sleep_for(pause_between_tries)) try {
      return listen_now(handle);
    } catch (const std::exception& why) {
      if (!udp::is_shortage(why) || std::chrono::steady_clock::now() >= until) throw;
      words_.tell(log_net, std::string("tried again: ") + why.what());
    }
}

ListenComm* Plugin::listen_now(Handle& handle) {
  auto comm = std::make_unique<ListenComm>();
  comm->station = station(false);
  face::Node& node = comm->station->node();
  Handle told;
  told.magic = magic;
  told.version = handle_version;
  told.process = process_;
  for (std::size_t i = 0; i < told.token.size(); i += 8) {
    const std::uint64_t bits = face::random_bits();
    std::memcpy(told.token.data() + i, &bits, 8);
  }
  const std::optional<wire::Ipv6> reached_at = comm->station->tcp_address();
  if (reached_at) told.address[told.addresses++] = *reached_at;
  for (const face::LocalPlane& plane : node.planes())
    if (!reached_at && told.addresses < told.address.size() && (node.stays_here() ? told.addresses == 0 : plane.address.is_v4 == node.planes()[0].address.is_v4))
      told.address[told.addresses++] = as_v6(plane.address);
  const auto make = [station = comm->station] { return std::make_unique<ReceiveComm>(station); };
  comm->door = std::make_unique<face::Door>(node.planes()[0].address, node.stays_here(), comm->station->secret(), told.token, make);
  told.port = comm->door->port();
  handle = told;
  return comm.release();
}

SendComm* Plugin::connect(Handle& handle) {
  check_process();
  if (handle.magic != magic || handle.version != handle_version || handle.addresses > handle.address.size())
    throw face::Refusal("the peer's handle is not of this plugin, or of another version: NCCL_NET must name the same on all ranks");
  face::Call* call = handle.call;
  {
    const std::lock_guard lock(mutex_);
    if (!calls_.contains(call)) call = nullptr;  // what a handle says that came from a peer is no address of ours
  }
  if (!call) {
    std::vector<wire::Address> addresses;
    for (std::uint8_t i = 0; i < handle.addresses; ++i) addresses.push_back(from_v6(handle.address[i]));
    // The station, too, is made by the call, which tries again where the system is short of something.
    const auto make = [this, is_mirror = handle.process == process_] { return std::make_unique<SendComm>(station(is_mirror)); };
    const std::lock_guard lock(mutex_);
    if (!settings_) throw face::Refusal("the plugin was not initialised");
    call = new face::Call(std::move(addresses), planes_[0].scope_id(), handle.port, settings_->secret, handle.token, make);
    std::erase_if(calls_, [](face::Call* old) {
      const std::unique_ptr<face::Call> taken(old->is_forgotten() ? old : nullptr);  // NCCL gave up, and does not say so
      return taken != nullptr;
    });
    calls_.insert(call);
    handle.call = call;
  }
  try {
    std::unique_ptr<face::Party> party = call->poll();
    if (!party) return nullptr;
    forget(call);
    return static_cast<SendComm*>(party.release());
  } catch (...) {
    forget(call);
    throw;
  }
}

void Plugin::forget(face::Call* call) {
  const std::lock_guard lock(mutex_);
  calls_.erase(call);
  delete call;
}

ReceiveComm* Plugin::accept(ListenComm& comm) {
  check_process();
  const auto tell = [this](const std::string& who) { words_.tell(log_net, "turned away: " + who); };
  return static_cast<ReceiveComm*>(comm.door->poll(tell).release());
}

}  // namespace softmrc::nccl
