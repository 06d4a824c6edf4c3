#include "udp/bootstrap_watch.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "udp/device_error.h"

namespace softmrc::udp {
namespace {

// Takes as long wherever they differ.
bool is_same(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

// Zero if the descriptor is closed.
std::uint64_t inode_of(int fd) {
  struct stat found{};
  return fstat(fd, &found) == 0 ? found.st_ino : 0;
}

}  // namespace

void BootstrapWatch::open() {
  // A separate set: if a descriptor was closed nevertheless, its number is not read from.
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_fd_ < 0) fail_with_errno("cannot watch the TCP connections to peers");
}

void BootstrapWatch::clear() {
  entries_.clear();
  first_due_ = Time::never();
  if (epoll_fd_ >= 0) ::close(epoll_fd_);
  epoll_fd_ = -1;
}

void BootstrapWatch::add(Time now, std::uint32_t qpn, int fd, std::string goodbye, std::string received,
                         std::vector<std::uint32_t> cqs) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.u32 = qpn;
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0)
    fail_with_errno("cannot watch the TCP connection to a peer");
  Entry& entry = entries_[qpn];
  entry.fd = fd;
  entry.inode = inode_of(fd);
  entry.goodbye = std::move(goodbye);
  entry.received = std::move(received);
  entry.cqs = std::move(cqs);
  receive(entry, now);
}

void BootstrapWatch::remove(std::uint32_t qpn) {
  const auto found = entries_.find(qpn);
  if (found == entries_.end()) return;
  stop_reading(found->second);
  entries_.erase(found);
}

void BootstrapWatch::stop_reading(Entry& entry) {
  if (entry.fd >= 0 && inode_of(entry.fd) == entry.inode) epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, entry.fd, nullptr);
  entry.fd = -1;
}

PeerState BootstrapWatch::judge(const Entry& entry) {
  if (entry.goodbye.empty()) return entry.received.empty() ? PeerState::present : PeerState::gone;
  if (entry.received.size() < entry.goodbye.size()) return PeerState::present;
  return is_same(entry.received, entry.goodbye) ? PeerState::gone : PeerState::unconfirmed;
}

void BootstrapWatch::receive(Entry& entry, Time now) {
  if (inode_of(entry.fd) != entry.inode) return stop_reading(entry);
  std::array<char, 256> bytes;
  PeerState state = judge(entry);
  while (state == PeerState::present) {
    const ssize_t count = recv(entry.fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (count > 0) entry.received.append(bytes.data(), static_cast<std::size_t>(count));
    state = count > 0 ? judge(entry) : entry.goodbye.empty() ? PeerState::gone : PeerState::unconfirmed;
  }
  stop_reading(entry);
  entry.state = state;
  entry.due = state == PeerState::gone ? now + grace : now;
  first_due_ = std::min(first_due_, entry.due);
}

void BootstrapWatch::read(Time now, std::vector<std::uint32_t>& cqs) {
  std::array<epoll_event, 64> events;
  int count = static_cast<int>(events.size());
  while (epoll_fd_ >= 0 && count == static_cast<int>(events.size())) {
    count = epoll_wait(epoll_fd_, events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < count; ++i) {
      const auto found = entries_.find(events[static_cast<std::size_t>(i)].data.u32);
      if (found == entries_.end() || found->second.fd < 0) continue;
      receive(found->second, now);
      if (found->second.state == PeerState::gone)
        cqs.insert(cqs.end(), found->second.cqs.begin(), found->second.cqs.end());
    }
  }
}

PeerState BootstrapWatch::state(std::uint32_t qpn) const {
  const auto found = entries_.find(qpn);
  return found == entries_.end() ? PeerState::present : found->second.state;
}

bool BootstrapWatch::has_unconfirmed() const {
  return std::ranges::any_of(entries_, [](const auto& one) { return one.second.state == PeerState::unconfirmed; });
}

std::vector<std::uint32_t> BootstrapWatch::gone() const {
  std::vector<std::uint32_t> found;
  for (const auto& [qpn, entry] : entries_)
    if (entry.state == PeerState::gone) found.push_back(qpn);
  return found;
}

}  // namespace softmrc::udp
