#include "control/control_server.h"

#include <dirent.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>
#include <system_error>

#include "host/host_error.h"
#include "udp/device_error.h"

namespace softmrc::control {
namespace {

constexpr std::size_t longest_request = 64 << 10;
constexpr std::uint32_t max_a_second = 1000;
constexpr int tidies_after_ms = 200;
constexpr std::uint32_t max_devices = 4096;  // of a process

// A device goes without a control socket where there can be none; not because the system was short of something for a
// moment.
[[noreturn]] void refuse_with_errno(const std::string& what) {
  if (udp::is_transient(errno)) udp::fail_with_errno(what);
  throw HostError(what + ": " + std::strerror(errno));
}

std::optional<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return std::nullopt;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

bool is_answered(const std::string& path) {
  const auto address = address_of(path);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (!address || fd < 0) return true;  // not known to be dead
  const bool refuses = connect(fd, reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0 &&
                       errno == ECONNREFUSED;
  close(fd);
  return !refuses;
}

// Sockets that killed processes left behind. One whose process id is in use again is found another time.
void remove_stale(const std::string& folder) {
  DIR* const opened = opendir(folder.c_str());
  if (!opened) return;
  while (const dirent* entry = readdir(opened)) {
    const std::string name = entry->d_name;
    const long pid = std::atol(name.c_str());
    if (pid <= 0 || !name.ends_with(".sock") || access(("/proc/" + std::to_string(pid)).c_str(), F_OK) == 0) continue;
    const std::string path = folder + "/" + name;
    if (!is_answered(path)) unlink(path.c_str());  // of another PID namespace it may be
  }
  closedir(opened);
}

bool is_ours(int fd) {
  ucred who{};
  socklen_t size = sizeof who;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) return false;
  return who.uid == geteuid() || who.uid == 0;
}

// As poll; after an error it pauses, so that a loop around it does not spin.
int wait_for(std::span<pollfd> set, int timeout_ms) {
  const int count = ::poll(set.data(), set.size(), timeout_ms);
  if (count < 0 && errno != EINTR) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return count;
}

}  // namespace

std::string control_directory(const Environment& environment) {
  const std::string runtime = environment("XDG_RUNTIME_DIR");
  struct stat found{};
  // Who became another user may still have the first one's variable.
  const bool is_usable = !runtime.empty() && stat(runtime.c_str(), &found) == 0 && S_ISDIR(found.st_mode) &&
                         found.st_uid == geteuid();
  const std::string folder = is_usable ? runtime + "/softmrc" : "/tmp/softmrc-" + std::to_string(geteuid());
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) refuse_with_errno("cannot make " + folder);
  if (lstat(folder.c_str(), &found) != 0) refuse_with_errno(folder);
  if (!S_ISDIR(found.st_mode) || found.st_uid != geteuid() || (found.st_mode & 077) != 0)
    throw HostError(folder + " must be this user's folder, with mode 0700");
  return folder;
}

std::string open_control(udp::Device& device, DeviceInfo facts, std::string& why) {
  try {
    auto control = std::make_unique<ControlServer>(device, std::move(facts), control_directory());
    const std::string path = control->path();
    device.attach(std::move(control));
    return path;
  } catch (const HostError& refusal) {
    why = refusal.what();
    return "";
  }
}

std::string open_control(host::Node& node, const std::string& kind, bool is_wanted, const BurstLog* bursts) {
  if (!is_wanted) return "no control socket: SOFTMRC_CONTROL is 0";
  DeviceInfo facts;
  facts.kind = kind;
  facts.mtu = node.mtu();
  facts.bursts = bursts;
  Json::Object named;
  proto::each_setting<host::DeviceSettings>(
      [&](const auto& one) { named.emplace_back(one.name, node.settings().*one.member); });
  facts.settings = std::move(named);
  for (const host::LocalPlane& plane : node.planes()) facts.speeds_bps.push_back(plane.speed_bps);
  std::string why;
  const std::string path = open_control(node.device(), std::move(facts), why);
  return path.empty() ? "no control socket: " + why : "control socket " + path;
}

ControlServer::ControlServer(udp::Device& device, DeviceInfo facts, const std::string& folder)
    : device_(device), facts_(std::move(facts)) {
  facts_.started = static_cast<double>(udp::wall_ns()) / 1e9 - static_cast<double>(device_.clock().now().ps) / 1e12;
  try {
    wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (wake_fd_ < 0) refuse_with_errno("cannot make a control socket");
    claim(folder);
    thread_ = std::thread([this, folder] { run(folder); });
  } catch (const std::system_error& error) {
    close();
    throw udp::DeviceError(error.code().value(), "cannot start a control socket's thread: " + error.code().message());
  } catch (...) {
    close();
    throw;
  }
}

// The first free number.
void ControlServer::claim(const std::string& folder) {
  socket_ = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket_ < 0) refuse_with_errno("cannot make a control socket");
  for (std::uint32_t number = 0; number < max_devices; ++number) {
    const std::string path = folder + "/" + std::to_string(getpid()) + "-" + std::to_string(number) + ".sock";
    const auto address = address_of(path);
    if (!address) throw HostError(path + " is too long for a socket");
    bool is_bound = bind(socket_, reinterpret_cast<const sockaddr*>(&*address), sizeof *address) == 0;
    bool is_taken = !is_bound && errno == EADDRINUSE;
    if (is_taken && !is_answered(path)) {  // of an earlier process with our number
      unlink(path.c_str());
      is_bound = bind(socket_, reinterpret_cast<const sockaddr*>(&*address), sizeof *address) == 0;
      is_taken = !is_bound && errno == EADDRINUSE;
    }
    if (is_taken) continue;
    if (!is_bound) refuse_with_errno("cannot make " + path);
    path_ = path;
    facts_.number = number;
    chmod(path.c_str(), 0600);
    if (listen(socket_, 16) != 0) refuse_with_errno("cannot listen on " + path);
    return;
  }
  throw HostError("there are " + std::to_string(max_devices) + " devices with control sockets in this process");
}

void ControlServer::close() {
  const std::lock_guard lock(mutex_);
  if (thread_.joinable()) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_fd_, &one, sizeof one);
    thread_.join();
  }
  if (!path_.empty()) unlink(path_.c_str());
  path_.clear();
  for (Client& client : clients_) disconnect(client);
  for (int* fd : {&socket_, &wake_fd_}) {
    if (*fd >= 0) ::close(*fd);
    *fd = -1;
  }
}

void ControlServer::close_after_fork() {
  for (Client& client : clients_)
    if (client.fd >= 0) ::close(client.fd);
  for (const int fd : {socket_, wake_fd_})
    if (fd >= 0) ::close(fd);
}

// A client's next request is read only once it has read the last answer, so that at most one answer is kept for each.
void ControlServer::run(const std::string& folder) {
  prctl(PR_SET_NAME, "softmrc-control");
  bool is_tidy = false;  // cleaning up waits until this process has started
  while (true) {
    const auto rests = std::chrono::ceil<std::chrono::milliseconds>(backs_off_until_ - Clock::now()).count();
    if (pollfd bell{wake_fd_, POLLIN, 0}; rests > 0 && wait_for({&bell, 1}, static_cast<int>(rests)) > 0) return;
    std::array<pollfd, 2 + std::tuple_size_v<decltype(clients_)>> waits{};
    waits[0] = {wake_fd_, POLLIN, 0};
    waits[1] = {socket_, POLLIN, 0};
    for (std::size_t i = 0; i < clients_.size(); ++i)
      waits[2 + i] = {clients_[i].fd, static_cast<short>(clients_[i].out.empty() ? POLLIN : POLLOUT), 0};
    bool has_more = false;  // lines that came with others
    for (const Client& client : clients_) has_more |= client.out.empty() && client.in.find('\n') != std::string::npos;
    if (wait_for(waits, has_more ? 0 : is_tidy ? -1 : tidies_after_ms) == 0 && !has_more) {
      remove_stale(folder);
      is_tidy = true;
    }
    if (waits[0].revents) return;
    if (waits[1].revents) accept_clients();
    for (std::size_t i = 0; i < clients_.size(); ++i)
      if (clients_[i].fd >= 0 && (has_more || waits[2 + i].revents)) serve_safely(clients_[i]);
  }
}

// Where memory is short for one answer, the others are still answered.
void ControlServer::serve_safely(Client& client) {
  try {
    serve(client);
  } catch (const std::exception&) {
    disconnect(client);
    back_off();
  }
}

void ControlServer::back_off() { backs_off_until_ = Clock::now() + std::chrono::milliseconds(100); }

// Whether it is worth to try again. Nothing tells when the system has memory again, so this rests until then.
bool ControlServer::may_pass(int error) {
  if (error == EAGAIN || error == EINTR) return true;
  if (error != ENOMEM && error != ENOBUFS) return false;
  back_off();
  return true;
}

void ControlServer::accept_clients() {
  const int fd = accept4(socket_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) {
    // Connections stay in the backlog while this process has no descriptor to spare.
    if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) back_off();
    return;
  }
  for (Client& client : clients_)
    if (client.fd < 0 && is_ours(fd)) {
      client.fd = fd;
      return;
    }
  ::close(fd);
}

void ControlServer::serve(Client& client) {
  if (!client.out.empty() && !write(client)) return disconnect(client);
  if (!client.out.empty()) return;
  if (!read(client)) return disconnect(client);
  for (std::size_t end;
       client.out.empty() && (end = client.in.find('\n')) != std::string::npos && is_within_rate_limit();) {
    const std::string line = client.in.substr(0, end);
    client.in.erase(0, end + 1);
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    client.out = answer(device_, facts_, line).text() + "\n";
    if (!write(client)) return disconnect(client);
  }
  if (client.in.size() > longest_request && client.in.find('\n') == std::string::npos) disconnect(client);
}

bool ControlServer::is_within_rate_limit() {
  if (const auto now = Clock::now(); now - second_ >= std::chrono::seconds(1)) {
    second_ = now;
    answered_ = 0;
  }
  if (answered_++ < max_a_second) return true;
  backs_off_until_ = second_ + std::chrono::seconds(1);
  return false;
}

bool ControlServer::read(Client& client) {
  char buffer[4096];
  while (client.in.size() <= longest_request) {
    const ssize_t got = recv(client.fd, buffer, sizeof buffer, 0);
    if (got < 0) return may_pass(errno);
    if (got == 0) return client.in.find('\n') != std::string::npos;  // it may have asked, and shut its side
    client.in.append(buffer, static_cast<std::size_t>(got));
  }
  return true;
}

bool ControlServer::write(Client& client) {
  while (!client.out.empty()) {
    const ssize_t sent = send(client.fd, client.out.data(), client.out.size(), MSG_NOSIGNAL);
    if (sent < 0) return may_pass(errno);
    client.out.erase(0, static_cast<std::size_t>(sent));
  }
  return true;
}

void ControlServer::disconnect(Client& client) {
  if (client.fd >= 0) ::close(client.fd);
  client.fd = -1;
  client.in.clear();
  client.out.clear();
}

}  // namespace softmrc::control
