// Set-up, callers and their turns. What the driving thread does is in lane_drive.cpp.
#include "udp/lane.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/check.h"
#include "udp/device_error.h"
#include "udp/epoll_tags.h"
#include "udp/event_fd.h"
#include "udp/lane_drive.h"

namespace softmrc::udp {

Lane::Lane(LaneConfig plan, const Clock& clock, LaneOwner& owner, Profiles& profiles, std::uint32_t links_up,
           std::unique_ptr<LinkWatch> links)
    : plan_(std::move(plan)),
      clock_(clock),
      owner_(owner),
      profiles_(profiles),
      engine_(plan_.engine),
      planes_(open_planes(plan_)),
      links_(std::move(links)),
      links_up_(links_up),
      protectors_(plan_.sender.icrc, plan_.seal),
      sender_(plan_.sender, planes_, peers_, protectors_),
      spin_(plan_.spin) {
  engine_.set_trace(&recorder_, notable_events);
  try {
    open_descriptors();
    apply_ports(clock_.now());
  } catch (...) {
    close_descriptors();
    throw;
  }
}

// A system that has no thread to spare at this moment is no reason to end the process that asked for the lane.
void Lane::begin() {
  try {
    thread_ = std::thread([this] { live(); });
  } catch (const std::system_error& error) {
    throw DeviceError(error.code().value(), "cannot start a lane's thread: " + error.code().message());
  }
}

Lane::~Lane() {
  close();
  stop_lingering();
  if (thread_.joinable()) thread_.join();
  close_descriptors();
}

void Lane::close_descriptors() {
  const std::lock_guard lock(wake_mutex_);
  for (int* fd : {&wake_fd_, &epoll_fd_}) {
    if (*fd >= 0) ::close(*fd);
    *fd = -1;
  }
  links_.reset();
}

std::vector<Plane> Lane::open_planes(const LaneConfig& plan) {
  std::vector<Plane> planes(plan.planes.size());
  // Most packets are data, and need not say how they want to be treated if that is the socket's default.
  const std::uint8_t dscp = plan.engine.peer_trim_nack ? plan.sender.dscp.trimmable : plan.sender.dscp.no_trim;
  for (std::uint32_t p = 0; p < planes.size(); ++p) {
    Plane& plane = planes[p];
    plane.plan = plan.planes[p];
    plane.number = p;
    plane.has_gso = plan.sender.gso;
    SocketConfig socket;
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
    const std::string& link = plane.link();
    if (p > 0 && link == planes[p - 1].link()) plane.link_index = planes[p - 1].link_index;  // as on loopback
    else if (const auto index = link.empty() ? 0 : link_of_name(link)) plane.link_index = *index;
    else fail_with_errno("cannot ask for the number of " + link);
    plane.bound_index = plane.link_index;
    plane.set_up_faults(plan.engine.seed, plan.sender.dscp);
  }
  return planes;
}

void Lane::open_descriptors() {
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (epoll_fd_ < 0 || wake_fd_ < 0) fail_with_errno("cannot make a lane's descriptors");
  const auto add = [this](int fd, std::uint32_t mark, std::uint32_t events = EPOLLIN) {
    epoll_event e{};
    e.events = events;
    e.data.u32 = mark;
    if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &e) != 0) fail_with_errno("cannot have a lane's descriptors watched");
  };
  add(wake_fd_, tag_wake);
  if (links_ && links_->fd() >= 0) add(links_->fd(), tag_links);
  // Of sockets that only send, errors are reported, which needs no asking.
  for (std::uint32_t p = 0; p < planes_.size(); ++p)
    for (std::uint32_t s = 0; s < planes_[p].sockets.size(); ++s)
      add(planes_[p].sockets[s].fd(), tag_of(p, s), s == 0 ? static_cast<std::uint32_t>(EPOLLIN) : 0u);
}

void Lane::close() {
  const LeaderFollower::EngineLock engine_lock(leader_follower_);
  if (closed_) return;
  try {
    transmit();
    engine_.enter_time_wait(clock_.now());
    transmit();
  } catch (const CheckFailure& failure) {
    failure_ = failure.what();
  }
  for (Plane& plane : planes_) plane.set_capture(nullptr);
  progress_handlers_.clear();
  end_bootstrap_watch();
  closed_ = true;
  wake();
  leader_follower_.end();
}

void Lane::run(proto::FunctionRef function) {
  with_engine([&](proto::Endpoint& engine, Time now) { function(engine, now); });
}

void Lane::run_and_send(proto::FunctionRef function) {
  with_engine_and_send([&](proto::Endpoint& engine, Time now) {
    function(engine, now);
    return 0;
  });
}

void Lane::send_pending() {
  const LeaderFollower::EngineLock engine_lock(leader_follower_);
  if (!closed_) transmit();
}

void Lane::stop_lingering() {
  const LeaderFollower::EngineLock engine_lock(leader_follower_);
  lingering_stopped_ = true;
  wake();
}

// No lock: the thread that held it at the fork does not exist here. If it was about to close sockets, who knows which
// are left.
void Lane::close_after_fork() {
  if (lets_sockets_go_) return;
  for (const Plane& plane : planes_)
    for (const Socket& socket : plane.sockets) ::close(socket.fd());
}

bool Lane::wait_until_over(Duration timeout) {
  Lock lock = leader_follower_.enter();
  return leader_follower_.wait_for(lock, timeout, [this] { return is_over_.load(); });
}

std::string Lane::failure() {
  const LeaderFollower::EngineLock engine_lock(leader_follower_);
  return failure_;
}

void Lane::wake() {
  const std::lock_guard lock(wake_mutex_);
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = wake_fd_ < 0 ? 0 : write(wake_fd_, &one, sizeof one);
}

// A driver that sleeps set its timeout by the engine's deadline as it was; a post may have brought that forward.
void Lane::wake_sleeper_if_late() {
  if (sleeps_until_ != Time::long_ago() && next_deadline() < sleeps_until_) wake();
}

proto::MaybeError Lane::modify_rtr(std::uint32_t qpn, const proto::RtrAttributes& attributes, SealKeys* keys) {
  using proto::Error;
  return with_engine_and_send([&](proto::Endpoint&, Time now) -> proto::MaybeError {
    if (keys && keys->is_used)
      return Error{Error::Kind::config, "seal", "keys of another queue pair", "keys that were never used"};
    if (auto refused = connect_as(now, qpn, attributes, keys != nullptr)) return refused;
    if (keys) protectors_.add(qpn, attributes.peer, attributes.dest_qpn, *keys);
    return std::nullopt;
  });
}

// The engine judges first: what it refuses must not cost a queue pair that works its keys.
proto::MaybeError Lane::connect_as(Time now, std::uint32_t qpn, const proto::RtrAttributes& attributes,
                                   bool is_sealed) {
  using proto::Error;
  if (is_sealed && protectors_.has_other(qpn, attributes.peer, attributes.dest_qpn))
    return Error{Error::Kind::config, "dest_qpn", std::to_string(attributes.dest_qpn),
                 "one without another encrypted queue pair"};
  if (auto refused = engine_.modify_rtr(now, qpn, attributes)) return refused;
  if (!is_sealed) protectors_.forget(attributes.peer);  // its encrypted session is over
  return std::nullopt;
}

proto::MaybeError Lane::reduce_mtu(std::uint32_t qpn, std::uint32_t mtu) {
  return with_engine([&](proto::Endpoint& engine, Time) -> proto::MaybeError {
    proto::QueuePair* pair = engine.qp(qpn);
    if (!pair) return proto::Error{proto::Error::Kind::usage, "qpn", std::to_string(qpn), "a queue pair that exists"};
    return pair->reduce_mtu(mtu);
  });
}

std::uint32_t Lane::start_pmtu_discovery(std::vector<PeerPlane> planes) {
  PmtuDiscovery discovery;
  while (getrandom(&discovery.number, sizeof discovery.number, 0) != sizeof discovery.number) {}
  for (PeerPlane& plane : planes) plane.to = destination_of(plane.address, plane.port, plane.scope_id);
  discovery.answered.resize(planes.size());
  discovery.planes = std::move(planes);
  const LeaderFollower::EngineLock engine_lock(leader_follower_);
  discovery.id = ++last_discovery_;
  discoveries_.push_back(std::move(discovery));
  return last_discovery_;
}

void Lane::send_pmtu_probes(std::uint32_t id, std::span<const std::uint32_t> sizes) {
  const LeaderFollower::EngineLock engine_lock(leader_follower_);
  const auto discovery = std::ranges::find(discoveries_, id, &PmtuDiscovery::id);
  if (closed_ || discovery == discoveries_.end()) return;
  const Time now = clock_.now();
  for (std::uint32_t p = 0; p < planes_.size(); ++p) {
    if (!(engine_.up_ports() >> p & 1)) continue;
    const std::uint32_t socket = (discovery->id + discovery->rounds) %
                                 static_cast<std::uint32_t>(planes_[p].sockets.size());
    for (const std::uint32_t bytes : sizes)
      if (bytes >= PmtuProbe::least)
        send_pmtu_probe(p, socket, discovery->planes[p], {false, discovery->number}, bytes, now);
    watch_room(p);
  }
  ++discovery->rounds;
}

std::vector<std::uint32_t> Lane::pmtu_results(std::uint32_t id) {
  const LeaderFollower::EngineLock engine_lock(leader_follower_);
  const auto discovery = std::ranges::find(discoveries_, id, &PmtuDiscovery::id);
  return discovery == discoveries_.end() ? std::vector<std::uint32_t>{} : discovery->answered;
}

void Lane::end_pmtu_discovery(std::uint32_t id) {
  const LeaderFollower::EngineLock engine_lock(leader_follower_);
  std::erase_if(discoveries_, [id](const PmtuDiscovery& discovery) { return discovery.id == id; });
}

void Lane::expect_seal(std::uint32_t place, std::uint32_t qpn, std::uint32_t dest_qpn, SealKeys& keys) {
  const LeaderFollower::EngineLock engine_lock(leader_follower_);
  protectors_.expect(qpn, place, dest_qpn, keys);
  const std::uint32_t peer = expected_[place].peer;
  if (peer != proto::no_peer && !engine_.has_working_qp(peer)) protectors_.admit(place, peer, false);
}

std::size_t Lane::expected_seals() {
  const LeaderFollower::EngineLock engine_lock(leader_follower_);
  return protectors_.expected();
}

proto::MaybeError Lane::connect(proto::Endpoint&, Time now, std::uint32_t qpn, const proto::RtrAttributes& attributes) {
  const bool is_sealed = protectors_.is_expected(qpn);
  if (auto refused = check_sealed(attributes.peer, is_sealed)) return refused;
  if (auto refused = connect_as(now, qpn, attributes, is_sealed)) return refused;
  if (is_sealed) protectors_.begin_expected(qpn, attributes.peer);
  return std::nullopt;
}

void Lane::destroy(proto::Endpoint& engine, Time now, std::uint32_t qpn) {
  protectors_.end(now, qpn);
  if (engine.destroy_qp(now, qpn)) profiles_.release(qpn);
}

proto::MaybeError Lane::check_sealed(const std::vector<PeerPlane>& planes, bool is_to_be) {
  const LeaderFollower::EngineLock engine_lock(leader_follower_);
  forget_peers();
  return check_sealed(peers_.find_same(planes), is_to_be);
}

proto::MaybeError Lane::check_sealed(std::uint32_t peer, bool is_to_be) {
  if (peer == proto::no_peer || !engine_.has_peer(peer) || !engine_.has_working_qp(peer) ||
      protectors_.is_sealed(peer) == is_to_be)
    return std::nullopt;
  return proto::Error{proto::Error::Kind::config, "seal", is_to_be ? "keys" : "none",
                      is_to_be ? "none: other queue pairs to this peer are not encrypted"
                               : "keys: other queue pairs to this peer are encrypted"};
}

bool Lane::destroy_qp(std::uint32_t qpn) {
  send_pending();  // while it still knows its paths
  return with_engine_and_send([&](proto::Endpoint& engine, Time now) {
    protectors_.end(now, qpn);
    bootstrap_watch_.remove(qpn);
    if (bootstrap_watch_.is_empty()) end_bootstrap_watch();
    return engine.destroy_qp(now, qpn);
  });
}

void Lane::watch_bootstrap(std::uint32_t qpn, int fd, std::string goodbye, std::string received,
                           std::vector<std::uint32_t> cqs) {
  const LeaderFollower::EngineLock engine_lock(leader_follower_);
  if (closed_) return;
  if (bootstrap_watch_.fd() < 0) {
    bootstrap_watch_.open();
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u32 = tag_bootstrap;
    if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, bootstrap_watch_.fd(), &event) != 0) {
      const int error = errno;
      bootstrap_watch_.clear();
      errno = error;
      fail_with_errno("cannot watch the TCP connections to peers");
    }
  }
  bootstrap_watch_.add(clock_.now(), qpn, fd, std::move(goodbye), std::move(received), std::move(cqs));
  wake_sleeper_if_late();
}

// A forked child may have the set, too, so that closing it here does not take it out of the lane's.
void Lane::end_bootstrap_watch() {
  if (bootstrap_watch_.fd() >= 0) epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, bootstrap_watch_.fd(), nullptr);
  bootstrap_watch_.clear();
}

PeerState Lane::peer_state(std::uint32_t qpn) {
  const LeaderFollower::EngineLock engine_lock(leader_follower_);
  std::vector<std::uint32_t> cqs;
  bootstrap_watch_.read(clock_.now(), cqs);
  for (const std::uint32_t cq : cqs) set_readable(cq);
  if (!cqs.empty()) look_again();
  wake_sleeper_if_late();
  return bootstrap_watch_.state(qpn);
}

std::pair<bool, bool> Lane::end_gone() {
  return with_engine_and_send([&](proto::Endpoint& engine, Time now) {
    std::vector<std::uint32_t> cqs;
    bootstrap_watch_.read(now, cqs);
    for (const std::uint32_t cq : cqs) set_readable(cq);
    const std::vector<std::uint32_t> gone = bootstrap_watch_.gone();
    for (const std::uint32_t qpn : gone) engine.modify_error(now, qpn);
    if (!gone.empty()) look_again();
    return std::pair(!gone.empty(), bootstrap_watch_.has_unconfirmed());
  });
}

proto::MaybeError Lane::check_peer(const std::vector<PeerPlane>& planes) {
  const LeaderFollower::EngineLock engine_lock(leader_follower_);
  forget_peers();
  return check_new(planes, peers_.find_same(planes));
}

proto::MaybeError Lane::check_new(const std::vector<PeerPlane>& planes, std::uint32_t same) {
  return peers_.check(planes,
                      [this, same](std::uint32_t other) { return other != same && engine_.has_working_qp(other); });
}

proto::MaybeError Lane::add_peer(std::vector<PeerPlane> planes, std::uint32_t& peer) {
  const LeaderFollower::EngineLock engine_lock(leader_follower_);
  return introduce(std::move(planes), peer);
}

proto::MaybeError Lane::introduce(std::vector<PeerPlane> planes, std::uint32_t& peer) {
  forget_peers();
  peer = peers_.find_same(planes);
  if (auto v = check_new(planes, peer)) return v;
  if (peer != proto::no_peer) {
    engine_.claim_peer(peer);
    peers_.claim(peer);
    return std::nullopt;
  }
  peer = engine_.add_peer();
  peers_.add(peer, std::move(planes));
  return std::nullopt;
}

bool Lane::remove_peer(std::uint32_t peer) {
  const LeaderFollower::EngineLock engine_lock(leader_follower_);
  const bool was_known = engine_.remove_peer(peer);
  forget_peers();
  return was_known;
}

proto::MaybeError Lane::expect(std::vector<PeerPlane> planes, std::uint32_t& place) {
  const LeaderFollower::EngineLock engine_lock(leader_follower_);
  forget_peers();
  if (auto v = check_new(planes, peers_.find_same(planes))) return v;
  place = places_.find_same(planes);
  if (place == proto::no_peer) {
    const auto free = std::find_if(expected_.begin(), expected_.end(), [](const Expected& e) { return e.times == 0; });
    place = static_cast<std::uint32_t>(free - expected_.begin());
    if (free == expected_.end()) expected_.emplace_back();
    places_.add(place, std::move(planes));
  }
  ++expected_[place].times;
  return std::nullopt;
}

void Lane::forget(std::uint32_t place) {
  const LeaderFollower::EngineLock engine_lock(leader_follower_);
  Expected& here = expected_[place];
  if (--here.times) return;
  if (here.peer != proto::no_peer) engine_.remove_peer(here.peer);
  here = {};
  protectors_.forget_place(place);
  places_.remove(place);
  forget_peers();
}

// For as long as it is expected it stays the same peer. Where a plain queue pair to it works, an encrypted one is
// refused when it is connected; until then the plain one must go on, so the peer counts as encrypted only where there
// is none.
std::uint32_t Lane::admit(std::uint32_t place) {
  Expected& here = expected_[place];
  if (here.peer != proto::no_peer) return here.peer;
  if (introduce(places_.planes(place), here.peer)) return here.peer = proto::no_peer;
  const bool is_plain = protectors_.is_to_be_sealed(place) && !protectors_.is_sealed(here.peer);
  protectors_.admit(place, here.peer, is_plain && engine_.has_working_qp(here.peer));
  return here.peer;
}

std::vector<PeerPlane> Lane::planes_of_peer(std::uint32_t peer) {
  const LeaderFollower::EngineLock engine_lock(leader_follower_);
  forget_peers();
  return peers_.contains(peer) ? peers_.planes(peer) : std::vector<PeerPlane>{};
}

std::uint32_t Lane::place_of(std::uint32_t peer) const {
  const auto found = std::find_if(expected_.begin(), expected_.end(),
                                  [peer](const Expected& e) { return e.times && e.peer == peer; });
  return found == expected_.end() ? proto::no_peer : static_cast<std::uint32_t>(found - expected_.begin());
}

std::uint32_t Lane::peer_at(const sockaddr_storage& from) {
  const std::uint32_t peer = peers_.find(from);
  if (peer != proto::no_peer) return peer;
  const std::uint32_t place = places_.find(from);
  return place == proto::no_peer ? place : admit(place);
}

// The engine drops peers without a holder; from then on their packets are of an unknown source. Before it gives a
// number to another, this must be done.
void Lane::forget_peers() {
  if (engine_.stats().peers_forgotten == peers_forgotten_) return;
  peers_forgotten_ = engine_.stats().peers_forgotten;
  std::vector<std::uint32_t> gone;
  peers_.for_each([&](std::uint32_t peer) {
    if (!engine_.has_peer(peer)) gone.push_back(peer);
  });
  for (std::uint32_t peer : gone) peers_.remove(peer);
  protectors_.on_peers_removed(gone);
}

void Lane::set_comp_channel(std::uint32_t cq, EventCount* event_count, int fd) {
  const LeaderFollower::EngineLock engine_lock(leader_follower_);
  std::erase_if(comp_channels_, [cq](const CompletionChannel& comp_channel) { return comp_channel.cq == cq; });
  if (!event_count) return;
  comp_channels_.push_back({cq, event_count, fd});
  notify();
}

void Lane::set_event_fd(int fd) {
  const LeaderFollower::EngineLock engine_lock(leader_follower_);
  event_fd_ = fd;
  notify();
}

void Lane::wake_waiters() {
  const LeaderFollower::EngineLock engine_lock(leader_follower_);
  wake();
  leader_follower_.wake_all();
}

void Lane::look_again() {
  wake();
  leader_follower_.wake_done();
}

void Lane::set_readable(std::uint32_t cq) {
  for (const CompletionChannel& comp_channel : comp_channels_)
    if (comp_channel.cq == cq) make_readable(comp_channel.fd);
}

// That the lane is closed stays to be read.
bool Lane::clear_readable(std::uint32_t cq) {
  std::uint64_t seen = 0;
  for (const CompletionChannel& comp_channel : comp_channels_)
    if (comp_channel.cq == cq && comp_channel.fd >= 0 && !closed_) return read(comp_channel.fd, &seen, sizeof seen) > 0;
  return false;
}

void Lane::notify() {
  if (event_fd_ >= 0 && engine_.events_waiting()) [[unlikely]]
    make_readable(event_fd_);
  for (const CompletionChannel& comp_channel : comp_channels_) {
    if (engine_.completions_waiting(comp_channel.cq) == 0) continue;
    make_readable(comp_channel.fd);
    comp_channel.event_count->notify();
  }
  leader_follower_.wake_done();
}

// Those that wait notice so that the lane is closed.
void Lane::wake_comp_channels() {
  for (const CompletionChannel& comp_channel : comp_channels_) {
    make_readable(comp_channel.fd);
    comp_channel.event_count->notify();
  }
  make_readable(event_fd_);
}

namespace {

Time later(Time start, Duration timeout) {
  return timeout.ps > (Time::never() - start).ps ? Time::never() : start + timeout;
}

}  // namespace

std::size_t Lane::wait(std::uint32_t cq, const std::atomic<QueueState>& state, std::span<proto::Completion> out,
                       Duration timeout) {
  const Time until = later(clock_.now(), timeout);
  Lock lock = leader_follower_.enter();
  lead_until(lock, until,
             [&] { return engine_.completions_waiting(cq) > 0 || state != QueueState::of_one_lane || closed_; });
  return state == QueueState::of_one_lane ? engine_.poll_completions(cq, out) : 0;
}

bool Lane::wait_until(const std::function<bool()>& is_done, Duration timeout) {
  const Time until = later(clock_.now(), timeout);
  Lock lock = leader_follower_.enter();
  lead_until(lock, until, [&] { return is_done() || closed_; });
  return is_done();
}

void Lane::add_progress_handler(proto::ProgressHandler* progress_handler) {
  const LeaderFollower::EngineLock engine_lock(leader_follower_);
  progress_handlers_.push_back(progress_handler);
}

void Lane::remove_progress_handler(proto::ProgressHandler* progress_handler) {
  const LeaderFollower::EngineLock engine_lock(leader_follower_);
  std::erase(progress_handlers_, progress_handler);
}

template <typename Done>
void Lane::lead_until(Lock& lock, Time until, Done done) {
  const auto drive_now = [&] {
    ++stats_.handovers;
    drive_safely(lock, until, done);
  };
  leader_follower_.drive_until(lock, clock_, until, done, drive_now, [this] { wake(); });
}

template <typename Done>
void Lane::drive_safely(Lock& lock, Time until, Done done) {
  try {
    drive(lock, until, done);
  } catch (const CheckFailure& failure) {
    failure_ = failure.what();
    closed_ = true;
    leader_follower_.end();
  }
}

// The lane's own thread.
void Lane::live() {
  prctl(PR_SET_NAME, "softmrc");  // from outside it takes a file in /proc
  prctl(PR_SET_TIMERSLACK, 1);
  Lock lock = leader_follower_.enter();
  leader_follower_.run(
      lock, [&] { drive_safely(lock, Time::never(), [this] { return closed_ || leader_follower_.has_followers(); }); });
  wake_comp_channels();
  try {
    if (failure_.empty()) linger(lock);
  } catch (const CheckFailure& failure) {
    failure_ = failure.what();
  }
  if (!failure_.empty()) {
    lock.unlock();
    owner_.on_failure();
    lock.lock();
  }
  lets_sockets_go_ = true;
  for (Plane& plane : planes_) plane.sockets.clear();
  close_descriptors();  // callers may keep what is over for as long as they like
  is_over_ = true;
  leader_follower_.wake_all();
}

void Lane::set_spin(Duration spin) {
  const LeaderFollower::EngineLock engine_lock(leader_follower_);
  spin_.set_longest(spin);
}

bool Lane::has_gso() {
  const LeaderFollower::EngineLock engine_lock(leader_follower_);
  return std::all_of(planes_.begin(), planes_.end(), [](const Plane& plane) { return plane.has_gso; });
}

void Lane::set_capture(const std::shared_ptr<Capture>& capture) {
  const LeaderFollower::EngineLock engine_lock(leader_follower_);
  if (closed_) return;
  for (Plane& plane : planes_) plane.set_capture(capture);
}

void Lane::set_faults(std::uint32_t plane, const Faults& faults) {
  const LeaderFollower::EngineLock engine_lock(leader_follower_);
  if (is_over_) return;
  if (has_posts_ && !closed_) transmit();  // under the faults under which it was posted
  planes_[plane].set_faults(clock_.now(), faults);
  watch_room(plane);
}

}  // namespace softmrc::udp
