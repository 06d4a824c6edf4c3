// Set-up, callers and their turns. What the driving thread does is in device_drive.cpp.
#include "udp/device.h"

#include <net/if.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>

#include "base/check.h"
#include "udp/device_drive.h"
#include "udp/device_events.h"
#include "udp/failure.h"

namespace softmrc::udp {

Device::Device(DevicePlan plan)
    : plan_(std::move(plan)),
      engine_(plan_.engine),
      planes_(open_planes(plan_)),
      sender_(plan_.sender, planes_, peers_) {
  open_descriptors();
  for (std::uint32_t p = 0; p < planes_.size(); ++p)
    if (plan_.watches_links && planes_[p].link_index && !is_link_up(planes_[p].link_index)) set_link(clock_.now(), p, false);
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "softmrc");
}

Device::~Device() {
  close();
  cut_short();
  if (thread_.joinable()) thread_.join();
  for (int fd : cq_fds_)
    if (fd >= 0) ::close(fd);
  if (event_fd_ >= 0) ::close(event_fd_);
  if (kick_fd_ >= 0) ::close(kick_fd_);
  if (epoll_fd_ >= 0) ::close(epoll_fd_);
}

std::vector<Plane> Device::open_planes(const DevicePlan& plan) {
  std::vector<Plane> planes(plan.planes.size());
  // Most packets are data, and need not say how they want to be treated if that is the socket's default.
  const std::uint8_t dscp = plan.engine.peer_trim_nack ? plan.sender.dscp.trimmable : plan.sender.dscp.no_trim;
  for (std::uint32_t p = 0; p < planes.size(); ++p) {
    Plane& plane = planes[p];
    plane.plan = plan.planes[p];
    SocketPlan socket;
    socket.address = plane.plan.address;
    socket.scope_id = plane.plan.scope_id;
    socket.port = plane.plan.port;
    socket.interface = plane.plan.interface;
    socket.is_any_local = plane.plan.is_any_local;
    socket.buffer_bytes = plane.plan.buffer_bytes;
    socket.send_buffer_bytes = plane.plan.send_buffer_bytes;
    socket.tos = static_cast<std::uint8_t>(dscp << 2 | (plan.sender.ecn ? 2 : 0));
    for (std::uint32_t s = 0; s < plane.plan.sockets; ++s) {
      plane.sockets.emplace_back(socket);
      socket.receives = false;
      socket.port = 0;
    }
    const std::string& link = plane.plan.interface.empty() ? plane.plan.link : plane.plan.interface;
    if (!link.empty()) plane.link_index = if_nametoindex(link.c_str());
    plane.weather.seed(plan.engine.seed, p);
  }
  return planes;
}

void Device::open_descriptors() {
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  kick_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (epoll_fd_ < 0 || kick_fd_ < 0) fail_with_errno("cannot make the device's descriptors");
  const auto add = [this](int fd, std::uint32_t mark, std::uint32_t events = EPOLLIN) {
    epoll_event e{};
    e.events = events;
    e.data.u32 = mark;
    if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &e) != 0) fail_with_errno("epoll");
  };
  add(kick_fd_, mark_kick);
  if (plan_.watches_links && links_.fd() >= 0) add(links_.fd(), mark_links);
  // Of sockets that only send, errors are heard, which needs no asking.
  for (std::uint32_t p = 0; p < planes_.size(); ++p)
    for (std::uint32_t s = 0; s < planes_[p].sockets.size(); ++s)
      add(planes_[p].sockets[s].fd(), mark_of(p, s), s == 0 ? static_cast<std::uint32_t>(EPOLLIN) : 0u);
}

void Device::close() {
  const Visit visit(*this);
  if (closed_) return;
  try {
    transmit();
    engine_.depart(clock_.now());
    transmit();
  } catch (const CheckFailure& failure) {
    failure_ = failure.what();
  }
  end_capture();
  attendants_.clear();
  closed_ = true;
  kick();
  turn_.notify_all();
  standby_.notify_all();
}

void Device::cut_short() {
  const Visit visit(*this);
  is_cut_short_ = true;
  kick();
}

// No lock: the thread that held it at the fork does not exist here.
void Device::abandon() {
  for (const Plane& plane : planes_)
    for (const Socket& socket : plane.sockets) ::close(socket.fd());
}

bool Device::wait_until_over(Duration timeout) {
  Lock lock(mutex_);
  return turn_.wait_for(lock, std::chrono::nanoseconds(timeout.ps / 1'000), [this] { return is_over_.load(); });
}

void Device::kick() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(kick_fd_, &one, sizeof one);
}

// Whoever sleeps set an alarm for the engine's deadline as it was; a post may have brought that forward.
void Device::wake_sleeper_if_late() {
  if (sleeps_until_ != Time::long_ago() && next_deadline() < sleeps_until_) kick();
}

proto::Verdict Device::add_peer(std::vector<PeerPlane> planes, std::uint32_t& peer) {
  const Visit visit(*this);
  if (planes.size() != planes_.size())
    return proto::Problem{proto::Problem::Kind::config, "planes", std::to_string(planes.size()),
                          "as many as the device has: " + std::to_string(planes_.size())};
  forget_peers();
  peer = peers_.find_same(planes);
  if (peer != proto::no_peer) {
    engine_.claim_peer(peer);
    return std::nullopt;
  }
  if (auto v = peers_.check(planes, [this](std::uint32_t other) { return engine_.has_working_qp(other); })) return v;
  peer = engine_.add_peer();
  peers_.add(peer, std::move(planes));
  return std::nullopt;
}

bool Device::remove_peer(std::uint32_t peer) {
  const Visit visit(*this);
  const bool was_known = engine_.remove_peer(peer);
  forget_peers();
  return was_known;
}

// The engine lets go of peers that nobody holds; from then on their packets are a stranger's. Before it gives a number to
// another, this must be done.
void Device::forget_peers() {
  if (engine_.stats().peers_forgotten == peers_forgotten_) return;
  peers_forgotten_ = engine_.stats().peers_forgotten;
  std::vector<std::uint32_t> gone;
  peers_.for_each([&](std::uint32_t peer) {
    if (!engine_.has_peer(peer)) gone.push_back(peer);
  });
  for (std::uint32_t peer : gone) peers_.remove(peer);
  sender_.on_peers_removed();
}

proto::Verdict Device::destroy_cq(std::uint32_t cq) {
  const Visit visit(*this);
  if (auto v = engine_.destroy_cq(cq)) return v;
  if (cq < cq_fds_.size() && cq_fds_[cq] >= 0) {
    ::close(cq_fds_[cq]);
    cq_fds_[cq] = -1;
  }
  return std::nullopt;
}

std::size_t Device::poll(std::uint32_t cq, std::span<proto::Completion> out) {
  const Visit visit(*this);
  const std::size_t count = engine_.poll_completions(cq, out);
  if (cq < cq_fds_.size() && engine_.completions_waiting(cq) == 0) quieten(cq_fds_[cq]);
  return count;
}

int Device::completion_fd(std::uint32_t cq) {
  const Visit visit(*this);
  if (cq >= cq_fds_.size()) cq_fds_.resize(cq + 1, -1);
  if (cq_fds_[cq] < 0) cq_fds_[cq] = eventfd(closed_, EFD_NONBLOCK | EFD_CLOEXEC);
  notify();
  return cq_fds_[cq];
}

int Device::event_fd() {
  const Visit visit(*this);
  if (event_fd_ < 0) event_fd_ = eventfd(closed_, EFD_NONBLOCK | EFD_CLOEXEC);
  return event_fd_;
}

// Nothing to read from it any more, unless that the device is closed, which stays true.
void Device::quieten(int fd) {
  if (fd < 0 || closed_) return;
  std::uint64_t seen = 0;
  [[maybe_unused]] const ssize_t got = read(fd, &seen, sizeof seen);
}

// Whoever waits for a descriptor learns so that the device is closed.
void Device::wake_descriptors() {
  const auto wake = [](int fd) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = fd < 0 ? 0 : write(fd, &one, sizeof one);
  };
  for (int fd : cq_fds_) wake(fd);
  wake(event_fd_);
}

void Device::take_events(std::vector<proto::Event>& out, std::size_t most) {
  const Visit visit(*this);
  proto::Event event;
  while (out.size() < most && engine_.poll_event(event)) out.push_back(event);
  quieten(event_fd_);
}

namespace {

Time later(Time start, Duration timeout) {
  return timeout.ps > (Time::never() - start).ps ? Time::never() : start + timeout;
}

}  // namespace

std::size_t Device::wait(std::uint32_t cq, std::span<proto::Completion> out, Duration timeout) {
  const Time until = later(clock_.now(), timeout);
  knocking_.fetch_add(1, std::memory_order_relaxed);
  Lock lock(mutex_);
  knocking_.fetch_sub(1, std::memory_order_relaxed);
  lead_until(lock, until, [&] { return engine_.completions_waiting(cq) > 0 || closed_; });
  return engine_.poll_completions(cq, out);
}

bool Device::wait_until(const std::function<bool()>& is_done, Duration timeout) {
  const Time until = later(clock_.now(), timeout);
  knocking_.fetch_add(1, std::memory_order_relaxed);
  Lock lock(mutex_);
  knocking_.fetch_sub(1, std::memory_order_relaxed);
  lead_until(lock, until, [&] { return is_done() || closed_; });
  return is_done();
}

void Device::add_attendant(Attendant* attendant) {
  const Visit visit(*this);
  attendants_.push_back(attendant);
}

void Device::remove_attendant(Attendant* attendant) {
  const Visit visit(*this);
  std::erase(attendants_, attendant);
}

// Until it is done or too late: drives if nobody does, else waits for a turn.
template <typename Done>
void Device::lead_until(Lock& lock, Time until, Done done) {
  while (!done() && clock_.now() < until) {
    if (!is_driven_) {
      is_driven_ = true;
      ++leads_;
      ++stats_.handovers;
      try {
        drive(lock, until, done);
      } catch (const CheckFailure& failure) {
        failure_ = failure.what();
        closed_ = true;
      }
      is_driven_ = false;
      if (closed_) turn_.notify_all();
      if (followers_) turn_.notify_one();
      if (is_parked_) standby_.notify_one();
      continue;
    }
    ++followers_;
    if (own_thread_drives_) kick();
    if (until == Time::never()) turn_.wait(lock);
    else turn_.wait_for(lock, std::chrono::nanoseconds((until - clock_.now()).ps / 1'000 + 1));
    --followers_;
    if (closed_) turn_.notify_all();
  }
}

// The device's own thread drives while no caller does. A caller that has just driven will most likely be back in a
// moment, so this thread waits a little before it takes over, and parks while one caller stays for long.
void Device::run() {
  prctl(PR_SET_TIMERSLACK, 1);
  constexpr auto patience = std::chrono::microseconds(200);
  std::uint64_t leads_seen = 0;
  Lock lock(mutex_);
  while (!closed_) {
    if (is_driven_ || followers_) {
      const bool same_caller = is_driven_ && leads_ == leads_seen;
      leads_seen = leads_;
      is_parked_ = same_caller;
      if (same_caller) standby_.wait(lock);
      else standby_.wait_for(lock, patience);
      is_parked_ = false;
      continue;
    }
    if (leads_ != leads_seen) {
      leads_seen = leads_;
      standby_.wait_for(lock, patience);
      continue;
    }
    is_driven_ = own_thread_drives_ = true;
    try {
      drive(lock, Time::never(), [this] { return closed_ || followers_ > 0; });
    } catch (const CheckFailure& failure) {
      failure_ = failure.what();
      closed_ = true;
      turn_.notify_all();
    }
    is_driven_ = own_thread_drives_ = false;
    turn_.notify_one();
  }
  wake_descriptors();
  turn_.wait(lock, [this] { return !is_driven_ && followers_ == 0; });
  try {
    if (failure_.empty()) linger(lock);
  } catch (const CheckFailure& failure) {
    failure_ = failure.what();
  }
  for (Plane& plane : planes_) plane.sockets.clear();
  is_over_ = true;
  turn_.notify_all();
}

void Device::start_capture(const std::string& path, std::uint64_t most_bytes) {
  const Visit visit(*this);
  capture_ = std::make_unique<Capture>(clock_, path, static_cast<std::uint32_t>(planes_.size()), most_bytes);
  sender_.set_capture(capture_.get());
}

std::uint64_t Device::stop_capture() {
  const Visit visit(*this);
  end_capture();
  return captured_;
}

void Device::end_capture() {
  sender_.set_capture(nullptr);
  if (capture_) captured_ = capture_->packets();
  capture_.reset();
}

void Device::start_series(std::uint32_t qpn, Duration bin, std::uint32_t bins) {
  const Visit visit(*this);
  const proto::QueuePair* pair = engine_.qp(qpn);
  series_ = Series{qpn, bin, clock_.now(), pair ? pair->stats().bytes_placed : 0, std::vector<std::uint64_t>(bins, 0)};
}

std::vector<std::uint64_t> Device::series() {
  const Visit visit(*this);
  return series_.bins;
}

}  // namespace softmrc::udp
