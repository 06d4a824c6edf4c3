#include "udp/device.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/prng.h"
#include "udp/device_error.h"

namespace softmrc::udp {

using proto::Error;
using proto::MaybeError;

namespace {

const std::string& link_of(const PlaneConfig& plane) { return plane.interface.empty() ? plane.link : plane.interface; }

// One bit a plane. A link that nobody names is up.
std::uint32_t links_up(const DeviceConfig& plan) {
  std::uint32_t up = ~0u;
  if (!plan.watches_links) return up;
  std::map<std::string, bool> known;
  for (std::uint32_t p = 0; p < plan.planes.size(); ++p) {
    const std::string& link = link_of(plan.planes[p]);
    const auto [here, is_new] = known.try_emplace(link, true);
    if (is_new && !link.empty()) {
      const std::optional<std::uint32_t> index = link_of_name(link);
      const std::optional<bool> is_up = index && *index ? is_link_up(*index) : true;
      if (!index || !is_up) fail_with_errno("cannot ask whether " + link + " is up");
      here->second = *is_up;
    }
    if (!here->second) up &= ~(1u << p);
  }
  return up;
}

int new_descriptor(bool is_readable) {
  const int fd = eventfd(is_readable, EFD_NONBLOCK | EFD_CLOEXEC);
  if (fd < 0) fail_with_errno("cannot make a descriptor to wait for");
  return fd;
}

void make_readable(int fd) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = fd < 0 ? 0 : write(fd, &one, sizeof one);
}

void quieten(int fd) {
  std::uint64_t seen = 0;
  [[maybe_unused]] const ssize_t got = fd < 0 ? 0 : read(fd, &seen, sizeof seen);
}

bool carries_srv6(const DeviceConfig& plan) {
  return std::ranges::all_of(plan.planes, [](const PlaneConfig& plane) { return plane.is_any_local; });
}

}  // namespace

MaybeError validate(const DeviceConfig& plan) {
  const auto config = [](const char* what, std::size_t value, std::string allowed) {
    return Error{Error::Kind::config, what, std::to_string(value), std::move(allowed)};
  };
  if (auto v = proto::validate(plan.engine)) return v;
  if (plan.planes.size() != plan.engine.ports) return config("planes", plan.planes.size(), "as many as engine.ports");
  if (plan.lanes < 1 || plan.lanes > max_lanes) return config("lanes", plan.lanes, "1 to " + std::to_string(max_lanes));
  for (const PlaneConfig& plane : plan.planes)
    if (plane.port && plane.port + plan.lanes - 1 > 0xFFFF)
      return config("port", plane.port,
                    "at most " + std::to_string(0xFFFF + 1 - plan.lanes) + ": every lane has one, from this on");
  return std::nullopt;
}

Device::Queue::~Queue() {
  if (fd >= 0) ::close(fd);
}

Device::Device(DeviceConfig plan)
    : plan_(std::move(plan)),
      profiles_(planes(), carries_srv6(plan_)),
      faults_(plan_.planes.size()),
      spin_(plan_.spin) {
  // First the watch, then a look: what changes in between is then seen at least once.
  if (plan_.watches_links) links_ = std::make_unique<LinkWatch>();
  link_up_ = links_up(plan_);
  open_to(0);
}

Device::~Device() {
  close();
  stop_lingering();
  for (auto& lane : lanes_) lane.reset();
  if (event_fd_ >= 0) ::close(event_fd_);
}

// Lanes ------------------------------------------------------------------------------------------------------------

Lane& Device::lane(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  return open_to(number);
}

// All up to this one, each as the others have become.
Lane& Device::open_to(std::uint32_t number) {
  while (open_ <= number) {
    if (is_closed_) throw DeviceError(ESHUTDOWN, "the device is closed");
    const std::uint32_t next = open_;
    LaneConfig plan = plan_;
    plan.spin = spin_;
    plan.engine.seed = Prng(plan_.engine.seed, "lane", next).bits();
    for (PlaneConfig& plane : plan.planes)
      if (plane.port) plane.port = static_cast<std::uint16_t>(plane.port + next);
    LaneOwner& owner = *this;
    // One that cannot begin goes at once: it holds ports that the next attempt needs.
    auto opened = std::make_unique<Lane>(std::move(plan), clock_, owner, link_up_, std::move(links_));
    Lane& lane = *opened;
    lane.with_engine([&](proto::Endpoint& engine, Time) {
      engine.allow_domains(last_domain_);
      for (const auto& [rkey, region] : regions_) engine.add_region(region);
    });
    for (std::uint32_t p = 0; p < faults_.size(); ++p) lane.set_faults(p, faults_[p]);
    lane.set_capture(capture_);
    lane.set_event_fd(event_fd_);
    lane.begin();
    lanes_[next] = std::move(opened);
    ++open_;
    lane.apply_port_state_soon();  // what changed meanwhile was told to the others only
  }
  return *lanes_[number];
}

std::uint32_t Device::least_loaded_lane() {
  const std::lock_guard lock(mutex_);
  const auto emptiest_of = [this](std::uint32_t count) {
    std::uint32_t best = 0;
    std::size_t fewest = ~std::size_t{0};
    for (std::uint32_t i = 0; i < count && fewest > 0; ++i) {
      const std::size_t here = i < open_ ? lanes_[i]->with_engine(
                                               [](proto::Endpoint& e, Time) { return e.queue_pairs() + e.reserves(); })
                                         : 0;
      if (here >= fewest) continue;
      fewest = here;
      best = i;
    }
    return best;
  };
  const std::uint32_t best = emptiest_of(plan_.lanes);
  try {
    open_to(best);
    return best;
  } catch (const DeviceError&) {
    return emptiest_of(open_);
  }
}

void Device::attach(std::unique_ptr<DeviceService> service) {
  const std::lock_guard lock(mutex_);
  services_.push_back(std::move(service));
}

void Device::close() {
  // They may be asking for something that the mutex is for.
  for (const auto& service : services_) service->close();
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  for_each_lane([](Lane& lane) { lane.close(); });
  if (capture_) captured_ = capture_->packets();
  capture_.reset();
  for (auto& [number, queue] : queues_) queue->event_count.notify();
}

bool Device::is_closed() const {
  for (std::uint32_t i = 0; i < open_; ++i)
    if (lanes_[i]->is_closed()) return true;
  return false;
}

bool Device::is_over() const {
  for (std::uint32_t i = 0; i < open_; ++i)
    if (!lanes_[i]->is_over()) return false;
  return true;
}

bool Device::wait_until_over(Duration timeout) {
  const Time until = clock_.now() + timeout;
  bool is_over = true;
  for_each_lane([&](Lane& lane) { is_over &= lane.wait_until_over(std::max(until - clock_.now(), Duration{0})); });
  return is_over;
}

void Device::stop_lingering() {
  for_each_lane([](Lane& lane) { lane.stop_lingering(); });
}

void Device::close_after_fork() {
  for (const auto& service : services_) service->close_after_fork();
  for_each_lane([](Lane& lane) { lane.close_after_fork(); });
}

std::string Device::failure() {
  std::string first;
  for_each_lane([&](Lane& lane) {
    if (first.empty()) first = lane.failure();
  });
  return first;
}

// Queue pairs ------------------------------------------------------------------------------------------------------

MaybeError Device::create_qp(std::uint32_t qpn) {
  const std::lock_guard lock(mutex_);
  return open_to(lane_number(qpn)).with_engine([&](proto::Endpoint& e, Time) { return e.create_qp(qpn); });
}

MaybeError Device::modify_init(std::uint32_t qpn, proto::InitAttributes attributes, const ProfileChoice& choice) {
  for (std::uint32_t* cq : {&attributes.send_cq, &attributes.recv_cq}) {
    const std::lock_guard lock(mutex_);
    const auto found = queues_.find(*cq);
    if (found == queues_.end())
      return Error{Error::Kind::config, "cq", std::to_string(*cq), "a completion queue of this device"};
    *cq = part_in(*found->second, lane_number(qpn));
  }
  return lane_of(qpn).with_engine(
      [&](proto::Endpoint& e, Time now) { return init_with(e, now, qpn, attributes, choice); });
}

MaybeError Device::init(proto::Endpoint& engine, Time now, std::uint32_t qpn, const proto::InitAttributes& attributes,
                        bool has_own_paths) {
  return init_with(engine, now, qpn, attributes, {has_own_paths ? std::nullopt : std::optional<std::uint32_t>(0), 0});
}

MaybeError Device::init_with(proto::Endpoint& engine, Time now, std::uint32_t qpn,
                             const proto::InitAttributes& attributes, const ProfileChoice& choice) {
  return profiles_.assign(qpn, choice, [&](const Profiles::Assignment& assignment) {
    return init_with(engine, now, qpn, attributes, assignment);
  });
}

// The queue pair keeps what it was given; nobody else is to find it in the engine.
MaybeError Device::init_with(proto::Endpoint& engine, Time now, std::uint32_t qpn, proto::InitAttributes attributes,
                             const Profiles::Assignment& assignment) {
  bool has_evs = false, has_control = false;
  MaybeError problem;
  if (assignment.evs)
    has_evs = !(problem = engine.add_ev_profile(std::make_shared<proto::EvProfile>(assignment.evs->evs),
                                                attributes.ev_profile));
  if (assignment.control && !problem)
    has_control = !(problem = engine.add_cc_profile(assignment.control, attributes.cc_profile));
  if (!problem) problem = engine.modify_init(qpn, attributes);
  if (has_evs) engine.remove_ev_profile(attributes.ev_profile);
  if (has_control) engine.remove_cc_profile(attributes.cc_profile);
  if (problem || !assignment.evs) return problem;
  for (const std::uint32_t listed : assignment.evs->denied)
    for (const std::uint16_t ev : places_of(engine, qpn, assignment.evs->evs, listed)) engine.deny_ev(now, qpn, ev);
  return std::nullopt;
}

// A peer's queue pairs are all sealed or none is, whichever lanes they are in. One is decided on at a time.
// spec: seal-agreed
MaybeError Device::modify_rtr(std::uint32_t qpn, proto::RtrAttributes attributes, SealKeys* keys) {
  const std::lock_guard lock(mutex_);
  const std::uint32_t peer = attributes.peer;
  if (auto v = part_in(peer, lane_number(qpn), attributes.peer)) return v;
  for (std::uint32_t i = 0; i < open_; ++i)
    if (auto v = lanes_[i]->check_sealed(peers_.at(peer).planes, keys != nullptr)) return v;
  return lane_of(qpn).modify_rtr(qpn, attributes, keys);
}

bool Device::destroy_qp(std::uint32_t qpn) {
  const bool was_there = lane_of(qpn).destroy_qp(qpn);
  profiles_.release(qpn);
  return was_there;
}

std::size_t Device::queue_pairs() {
  std::size_t count = 0;
  for_each_lane(
      [&](Lane& lane) { count += lane.with_engine([](proto::Endpoint& e, Time) { return e.queue_pairs(); }); });
  return count;
}

std::pair<bool, bool> Device::end_gone() {
  std::pair<bool, bool> found;
  for_each_lane([&](Lane& lane) {
    const auto [has_ended, has_unconfirmed] = lane.end_gone();
    found.first |= has_ended;
    found.second |= has_unconfirmed;
  });
  return found;
}

// Memory -----------------------------------------------------------------------------------------------------------

proto::Domain Device::create_domains(std::uint32_t count) {
  const std::lock_guard lock(mutex_);
  const proto::Domain first = last_domain_ + 1;
  last_domain_ += count;
  for_each_lane(
      [&](Lane& lane) { lane.with_engine([&](proto::Endpoint& e, Time) { e.allow_domains(last_domain_); }); });
  return first;
}

bool Device::add_region(const proto::MemoryRegion& region) {
  const std::lock_guard lock(mutex_);
  std::uint32_t added = 0;
  for (; added < open_; ++added)
    if (!lanes_[added]->with_engine([&](proto::Endpoint& e, Time) { return e.add_region(region); })) break;
  if (added == open_) {
    regions_.emplace(region.rkey, region);
    return true;
  }
  while (added-- > 0)
    lanes_[added]->with_engine([&](proto::Endpoint& e, Time) { return e.remove_region(region.rkey); });
  return false;
}

bool Device::remove_region(std::uint32_t rkey) {
  const std::lock_guard lock(mutex_);
  if (regions_.erase(rkey) == 0) return false;
  for_each_lane([&](Lane& lane) { lane.with_engine([&](proto::Endpoint& e, Time) { return e.remove_region(rkey); }); });
  return true;
}

bool Device::reads_from(const std::uint8_t* begin, const std::uint8_t* end) {
  bool reads = false;
  for_each_lane([&](Lane& lane) {
    reads |= lane.with_engine([&](proto::Endpoint& e, Time) { return e.reads_from(begin, end); });
  });
  return reads;
}

std::size_t Device::regions() {
  std::size_t most = 0;  // a lane may have some of its own
  for_each_lane([&](Lane& lane) {
    most = std::max(most, lane.with_engine([](proto::Endpoint& e, Time) { return e.regions(); }));
  });
  return most;
}

// Completion queues ------------------------------------------------------------------------------------------------

std::uint32_t Device::create_cq() {
  const std::lock_guard lock(mutex_);
  queues_.emplace(next_queue_, std::make_shared<Queue>());
  return next_queue_++;
}

std::shared_ptr<Device::Queue> Device::queue(std::uint32_t cq) {
  const std::lock_guard lock(mutex_);
  const auto found = queues_.find(cq);
  return found == queues_.end() ? nullptr : found->second;
}

bool Device::has_cq(std::uint32_t cq) { return queue(cq) != nullptr; }

std::size_t Device::completion_queues() {
  const std::lock_guard lock(mutex_);
  return queues_.size();
}

std::uint32_t Device::part_in(Queue& queue, std::uint32_t number) {
  for (const Queue::Part& part : queue.parts)
    if (part.lane == number) return part.cq;
  Lane& lane = open_to(number);
  const std::uint32_t cq = lane.with_engine([](proto::Endpoint& e, Time) { return e.create_cq(); });
  queue.parts.push_back({number, cq});
  lane.set_comp_channel(cq, &queue.event_count, queue.fd);
  // Who waits in the first lane alone would not hear of this one.
  if (queue.parts.size() == 2) {
    queue.state = QueueState::of_several;
    lanes_[queue.parts[0].lane]->wake_waiters();
  }
  return cq;
}

std::uint32_t Device::part_of_cq(std::uint32_t cq, std::uint32_t lane) {
  const std::lock_guard lock(mutex_);
  return part_in(*queues_.at(cq), lane);
}

MaybeError Device::destroy_cq(std::uint32_t cq) {
  const std::lock_guard lock(mutex_);
  const auto found = queues_.find(cq);
  if (found == queues_.end())
    return Error{Error::Kind::usage, "cq", std::to_string(cq), "a completion queue that was created"};
  Queue& queue = *found->second;
  for (const Queue::Part& part : queue.parts)
    if (lanes_[part.lane]->with_engine([&](proto::Endpoint& e, Time) { return e.is_cq_in_use(part.cq); }))
      return Error{Error::Kind::usage, "cq", std::to_string(cq), "a queue that no queue pair uses any longer"};
  queue.state = QueueState::gone;
  for (const Queue::Part& part : queue.parts) {
    Lane& lane = *lanes_[part.lane];
    lane.set_comp_channel(part.cq, nullptr, -1);
    lane.with_engine([&](proto::Endpoint& e, Time) { return e.destroy_cq(part.cq); });
    lane.wake_waiters();
  }
  queue.event_count.notify();
  queues_.erase(found);
  return std::nullopt;
}

std::size_t Device::take(Queue& queue, std::span<proto::Completion> out) {
  std::vector<Queue::Part> parts;
  int fd = -1;
  {
    const std::lock_guard lock(mutex_);
    parts = queue.parts;
    fd = queue.fd;
    // A lane that always has something must not hide the others.
    if (!parts.empty()) std::rotate(parts.begin(), parts.begin() + queue.turn++ % parts.size(), parts.end());
    // First quiet, then look: what comes in between makes it readable again. One lane alone can be looked at first. No
    // lane joins while the mutex is held: one that is not looked at below makes it readable after this.
    if (parts.size() != 1) quieten(fd);
  }
  const bool is_one = parts.size() == 1;
  std::size_t count = 0;
  bool has_more = false;
  for (const Queue::Part& part : parts) {
    lanes_[part.lane]->with_engine([&](proto::Endpoint& e, Time) {
      if (queue.state == QueueState::gone) return;
      count += e.poll_completions(part.cq, out.subspan(count));
      has_more |= e.completions_waiting(part.cq) > 0;
      if (is_one && !has_more) quieten(fd);
    });
  }
  // A second lane may have joined after the look at which there are, and what it told of is not to be lost with the
  // rest.
  const bool has_grown = is_one && queue.state == QueueState::of_several;
  // That the device is closed stays to be read.
  if (is_closed() || (!is_one && has_more) || has_grown) make_readable(fd);
  return count;
}

std::size_t Device::poll(std::uint32_t cq, std::span<proto::Completion> out) {
  const std::shared_ptr<Queue> known = queue(cq);
  return known ? take(*known, out) : 0;
}

std::size_t Device::wait(std::uint32_t cq, std::span<proto::Completion> out, Duration timeout) {
  const Time until = clock_.now() + std::min(timeout, seconds(86'400));
  const std::shared_ptr<Queue> known = queue(cq);
  if (!known) return 0;
  Queue::Part first;
  {
    const std::lock_guard lock(mutex_);
    if (known->state == QueueState::gone) return 0;
    if (known->parts.empty()) part_in(*known, 0);
    first = known->parts[0];
  }
  // One lane: who waits for it drives it. Several: their own threads do.
  if (known->state == QueueState::of_one_lane) {
    const std::size_t count = lanes_[first.lane]->wait(first.cq, known->state, out, timeout);
    if (known->state != QueueState::of_several || count) return count;
  }
  EventCount::Waiter listener(known->event_count);
  while (true) {
    const std::size_t count = take(*known, out);
    const Time now = clock_.now();
    if (count || known->state == QueueState::gone || is_closed() || now >= until) return count;
    listener.wait(until - now);
  }
}

int Device::completion_fd(std::uint32_t cq) {
  const std::lock_guard lock(mutex_);
  Queue& queue = *queues_.at(cq);
  if (queue.fd < 0) {
    queue.fd = new_descriptor(is_closed());
    if (queue.parts.empty()) part_in(queue, 0);  // it also tells that the device is closed
    for (const Queue::Part& part : queue.parts)
      lanes_[part.lane]->set_comp_channel(part.cq, &queue.event_count, queue.fd);
  }
  return queue.fd;
}

// Peers ------------------------------------------------------------------------------------------------------------

// Refused where a lane knows somebody else there.
MaybeError Device::check_peer(const std::vector<PeerPlane>& planes) {
  if (planes.size() != plan_.planes.size())
    return Error{Error::Kind::config, "planes", std::to_string(planes.size()),
                 "as many as the device has: " + std::to_string(plan_.planes.size())};
  for (std::uint32_t i = 0; i < open_; ++i)
    if (auto v = lanes_[i]->check_peer(planes)) return v;
  return std::nullopt;
}

MaybeError Device::expect_peer(std::uint32_t lane, std::vector<PeerPlane> planes, std::uint32_t& place) {
  const std::lock_guard lock(mutex_);
  if (auto v = check_peer(planes)) return v;
  return open_to(lane).expect(std::move(planes), place);
}

MaybeError Device::add_peer(std::vector<PeerPlane> planes, std::uint32_t& peer) {
  const std::lock_guard lock(mutex_);
  if (auto v = check_peer(planes)) return v;
  peer = next_peer_++;
  peers_.emplace(peer, Peer{std::move(planes), {}});
  // Where there is no choice of lanes, it may as well be asked for signs of life now.
  std::uint32_t known_as = 0;
  if (plan_.lanes > 1) return std::nullopt;
  auto refused = part_in(peer, 0, known_as);  // somebody may have come to be there since it was checked
  if (refused) peers_.erase(peer);
  return refused;
}

bool Device::remove_peer(std::uint32_t peer) {
  const std::lock_guard lock(mutex_);
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return false;
  for (const auto& [lane, known_as] : found->second.parts) lanes_[lane]->remove_peer(known_as);
  peers_.erase(found);
  return true;
}

MaybeError Device::part_in(std::uint32_t peer, std::uint32_t number, std::uint32_t& known_as) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return Error{Error::Kind::config, "peer", std::to_string(peer), "a peer that was added"};
  for (const auto& [lane, part] : found->second.parts)
    if (lane == number) {
      known_as = part;
      return std::nullopt;
    }
  if (auto v = open_to(number).add_peer(found->second.planes, known_as)) return v;
  found->second.parts.emplace_back(number, known_as);
  return std::nullopt;
}

std::size_t Device::peers() {
  std::size_t count = 0;
  for_each_lane([&](Lane& lane) { count += lane.with_engine([](proto::Endpoint& e, Time) { return e.peers(); }); });
  return count;
}

std::size_t Device::expected_seals() {
  std::size_t count = 0;
  for_each_lane([&](Lane& lane) { count += lane.expected_seals(); });
  return count;
}

std::size_t Device::probe(std::uint32_t peer, std::uint8_t plane, std::span<const std::uint32_t> entropies,
                          std::uint32_t token, proto::TrafficClass traffic_class) {
  std::uint32_t number = 0;
  std::uint32_t known_as = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto found = peers_.find(peer);
    if (found != peers_.end() && !found->second.parts.empty()) number = found->second.parts[0].first;
    if (const auto there = of_lane(peer)) std::tie(number, known_as) = *there;
    else if (part_in(peer, number, known_as)) return 0;
  }
  return lanes_[number]->with_engine_and_send([&](proto::Endpoint& e, Time now) {
    std::size_t sent = 0;
    while (sent < entropies.size() && e.probe(now, known_as, plane, entropies[sent], token++, traffic_class)) ++sent;
    return sent;
  });
}

// What it tells, and what it is told ---------------------------------------------------------------------------------

std::uint32_t Device::named(std::uint32_t lane, std::uint32_t known_as) const {
  for (const auto& [peer, known] : peers_)
    for (const auto& part : known.parts)
      if (part == std::pair(lane, known_as)) return peer;
  return known_as == proto::no_peer ? known_as : first_of_lanes + known_as * plan_.lanes + lane;
}

std::optional<std::pair<std::uint32_t, std::uint32_t>> Device::of_lane(std::uint32_t peer) const {
  if (peer < first_of_lanes || (peer - first_of_lanes) % plan_.lanes >= open_) return std::nullopt;
  return std::pair((peer - first_of_lanes) % plan_.lanes, (peer - first_of_lanes) / plan_.lanes);
}

std::uint32_t Device::name_of_peer(std::uint32_t lane, std::uint32_t known_as) {
  const std::lock_guard lock(mutex_);
  return named(lane, known_as);
}

std::vector<PeerPlane> Device::planes_of_peer(std::uint32_t peer) {
  const std::lock_guard lock(mutex_);
  if (const auto found = peers_.find(peer); found != peers_.end()) return found->second.planes;
  const auto there = of_lane(peer);
  return there ? lanes_[there->first]->planes_of_peer(there->second) : std::vector<PeerPlane>{};
}

void Device::take_events(std::vector<proto::Event>& out, std::size_t most) {
  const std::lock_guard lock(mutex_);
  quieten(event_fd_);
  bool has_more = false;
  const std::uint32_t first = event_turn_++;
  for (std::uint32_t k = 0; k < open_; ++k) {
    const std::uint32_t i = (first + k) % open_;
    lanes_[i]->with_engine([&](proto::Endpoint& e, Time) {
      proto::Event event;
      while (out.size() < most && e.poll_event(event)) {
        // Every lane has the same ports; it is told once.
        if (event.type == proto::EventType::port_state && i > 0) continue;
        if (event.type == proto::EventType::peer_ports) event.code = named(i, event.code);
        out.push_back(event);
      }
      has_more |= e.events_waiting() > 0;
    });
  }
  if (is_closed() || has_more) make_readable(event_fd_);
  std::stable_sort(out.begin(), out.end(),
                   [](const proto::Event& a, const proto::Event& b) { return a.at_ps < b.at_ps; });
}

std::uint64_t Device::recent_events(std::vector<std::uint64_t>& from, std::vector<proto::Event>& out) {
  const std::lock_guard lock(mutex_);
  std::uint64_t lost = 0;
  from.resize(open_, 0);
  for (std::uint32_t i = 0; i < open_; ++i) {
    std::vector<proto::Event> found;
    lanes_[i]->with_engine([&](proto::Endpoint&, Time) {
      lost += lanes_[i]->recorder().copy(from[i], found);
      from[i] = lanes_[i]->recorder().next();
    });
    for (proto::Event& event : found) {
      if (event.type == proto::EventType::port_state && i > 0) continue;
      if (event.type == proto::EventType::peer_ports) event.code = named(i, event.code);
      out.push_back(event);
    }
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const proto::Event& a, const proto::Event& b) { return a.at_ps < b.at_ps; });
  return lost;
}

int Device::event_fd() {
  const std::lock_guard lock(mutex_);
  if (event_fd_ < 0) {
    event_fd_ = new_descriptor(is_closed());
    for_each_lane([this](Lane& lane) { lane.set_event_fd(event_fd_); });
  }
  return event_fd_;
}

void Device::set_port(std::uint32_t plane, bool is_up) {
  const std::lock_guard lock(mutex_);
  const std::uint32_t bit = 1u << plane;
  admin_up_ = is_up ? admin_up_ | bit : admin_up_ & ~bit;
  for_each_lane([](Lane& lane) { lane.apply_port_state(); });
}

void Device::on_links(std::uint32_t up) {
  link_up_ = up;
  for_each_lane([](Lane& lane) { lane.apply_port_state_soon(); });
}

// The device counts as closed: whoever waits, for whichever lane, is told.
void Device::on_failure() {
  const std::lock_guard lock(mutex_);
  for (auto& [number, queue] : queues_) {
    make_readable(queue->fd);
    queue->event_count.notify();
  }
  make_readable(event_fd_);
}

}  // namespace softmrc::udp
