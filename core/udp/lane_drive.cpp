// What the driving thread does in one turn: receive, timers, send; and how it looks for work and sleeps.
#include "udp/lane_drive.h"

#include <unistd.h>

#include <array>

#include "base/cpu_relax.h"
#include "udp/epoll_tags.h"
#include "udp/kernel_compat.h"

namespace softmrc::udp {

// The ready set belongs to the driving thread. Nothing else may be touched here: the engine, and all that callers use,
// may belong to another thread at the moment.
void Lane::poll_sockets(Duration timeout) {
  epoll_event events[24];
  const int count = epoll_wait_for(epoll_fd_, events, timeout);
  for (int i = 0; i < count; ++i) {
    const std::uint32_t mark = events[i].data.u32;
    if (mark == tag_wake) {
      std::uint64_t seen = 0;
      [[maybe_unused]] const ssize_t got = read(wake_fd_, &seen, sizeof seen);
    } else if (mark == tag_links) {
      links_ready_ = true;
    } else if (mark == tag_bootstrap) {
      bootstraps_ready_ = true;
    } else {
      if (events[i].events & EPOLLIN) ready_planes_ |= 1u << plane_of(mark);
      if (events[i].events & EPOLLOUT) rewritable_ |= 1u << plane_of(mark);
      if (events[i].events & EPOLLERR) erring_ |= 1u << plane_of(mark);
    }
  }
}

// True when there was something to do.
bool Lane::process_input() {
  ++stats_.turns;
  if (ready_planes_ == 0) {
    ++stats_.spins;
    poll_sockets(Duration{0});
  }
  bool worked = ready_planes_ != 0 || rewritable_ != 0;
  if (asks_for_links_at_ != Time::never() && asks_for_links_at_ <= clock_.now()) [[unlikely]] {
    asks_for_links_at_ = Time::never();
    links_ready_ = links_ != nullptr;
    has_new_ports_ = true;
  }
  if (links_ready_) [[unlikely]]
    read_links();
  if (has_new_ports_.load(std::memory_order_relaxed)) [[unlikely]] {
    for (Plane& plane : planes_)
      if (!plane.rebind_interface()) ask_again_for_links();
    apply_ports(clock_.now());
  }
  if (erring_) [[unlikely]]
    read_errors();
  for (std::uint32_t p = 0; rewritable_; ++p) {
    if (rewritable_ >> p & 1) {
      rewritable_ &= ~(1u << p);
      planes_[p].blocked_socket = -1;
      watch_room(p);
    }
  }
  const proto::EndpointStats& stats = engine_.stats();
  const std::uint64_t strangers = strangers_, handed_in = stats.datagrams_received, refused = stats.refused();
  receive_ready();
  const std::uint64_t refused_now = stats.refused() - refused;
  is_only_refusing_ = strangers_ - strangers + refused_now > 0 && stats.datagrams_received - handed_in <= refused_now;
  const Time now = clock_.now();
  if (engine_.poll_timeout() <= now) {
    engine_.handle_timeout(now);
    forget_peers();
    worked = true;
  }
  if (protectors_.deadline() <= now) [[unlikely]]
    protectors_.handle_timeout(now);
  if (bootstraps_ready_ || bootstrap_watch_.deadline() <= now) [[unlikely]] {
    read_bootstraps(now);
    worked = true;
  }
  return worked;
}

// After what has come in: a peer leaves when its writes have been acknowledged.
void Lane::read_bootstraps(Time now) {
  bootstraps_ready_ = false;
  std::vector<std::uint32_t> cqs;
  bootstrap_watch_.read(now, cqs);
  bootstrap_watch_.handle_timeout(now, [this](std::uint32_t qpn) {
    return protectors_.received_at(qpn).value_or(engine_.pong_at(qpn));
  }, [this](std::uint32_t qpn) { engine_.ping(qpn); }, [&](std::uint32_t qpn) { engine_.modify_error(now, qpn); }, cqs);
  for (const std::uint32_t cq : cqs) set_readable(cq);
}

void Lane::receive_ready() {
  std::uint32_t ready = ready_planes_;
  if (ready == 0) return;
  ready_planes_ = 0;
  engine_.begin_batch();
  for (std::uint32_t p = 0; ready; ++p) {
    if (!(ready >> p & 1)) continue;
    ready &= ~(1u << p);
    receive_from(p);
  }
  // A plane that has more has not had its say yet, nor have those that got something in this batch.
  // But where it never ends, verdicts must not wait for ever.
  const bool is_over = ready_planes_ == 0 || ++turns_in_batch_ == proto::max_turns_in_batch;
  if (is_over) {
    engine_.end_batch(clock_.now());
    turns_in_batch_ = 0;
  }
  if (ready_planes_) poll_sockets(Duration{0});
}

void Lane::receive_from(std::uint32_t p) {
  const std::span<const GroBatch> messages = planes_[p].io().receive(receiver_);
  if (receiver_.may_have_more()) ready_planes_ |= 1u << p;
  if (messages.empty()) return;
  const Time now = clock_.now();
  for (const GroBatch& in : messages) deliver(p, in, now);
}

void Lane::deliver(std::uint32_t p, const GroBatch& in, Time now) {
  Plane& plane = planes_[p];
  proto::Arrival arrival;
  arrival.peer = peer_at(*in.from);
  if (arrival.peer == proto::no_peer) {
    plane.stats.strangers += in.packets();
    strangers_ += in.packets();
    return;
  }
  Origin origin;
  wire::Route& route = origin.route;
  source_of(*in.from, route.source, route.source_port);
  route.destination = plane.plan.address;
  route.destination_port = plane.sockets[0].port();
  origin.peer = arrival.peer;
  arrival.entropy = route.source_port;
  arrival.port = static_cast<std::uint8_t>(p);
  arrival.congestion = (in.tos & 3) == 3;
  const wire::DscpMap& dscp = plan_.sender.dscp;
  wire::ParseOptions options{.has_icrc = false};  // whatever closes a packet is gone when it is open
  // A trimmed packet has lost what closed it, so where nothing trims the mark means nothing: it is a packet like any
  // other.
  if (plan_.engine.trim_nack && dscp.was_trimmed(in.tos >> 2)) {
    arrival.trim = in.tos >> 2 == dscp.trimmed ? proto::Trim::trimmed : proto::Trim::trimmed_last_hop;
    options.trimmed = origin.is_trimmed = true;
  }
  PacketProtector& seal = protectors_.of(arrival.peer);
  seal.begin(origin);
  for (std::size_t at = 0; at < in.bytes.size(); at += in.segment) {
    wire::MutableBytes packet = in.bytes.subspan(at, std::min<std::size_t>(in.segment, in.bytes.size() - at));
    if (PmtuProbe::is_one(packet)) [[unlikely]] {
      handle_pmtu_probe(p, arrival.peer, packet, now);
      continue;
    }
    arrival.integrity = seal.open(now, packet, arrival.qpn);
    if (proto::is_refused(arrival.integrity)) [[unlikely]]
      ++(arrival.integrity == proto::Integrity::bad ? plane.stats.bad_icrc : plane.stats.bad_seal);
    engine_.handle_datagram(now, packet, arrival, options);
  }
}

// The answer goes to where the peer receives, and not to where the question came from, which may only send. It takes no
// room from data: where there is none, there is no answer.
void Lane::handle_pmtu_probe(std::uint32_t p, std::uint32_t peer, wire::Bytes packet, Time now) {
  const auto probe = PmtuProbe::parse(packet);
  if (!probe) return;
  if (!probe->is_answer) {
    if (planes_[p].has_room() && engine_.may_answer_at_length(now, peer, static_cast<std::uint32_t>(packet.size())))
      send_pmtu_probe(p, 0, peers_.plane(peer, p), {true, probe->number}, packet.size(), now);
    return;
  }
  for (PmtuDiscovery& discovery : discoveries_)
    if (discovery.number == probe->number)
      discovery.answered[p] = std::max(discovery.answered[p], static_cast<std::uint32_t>(packet.size()));
}

// As data goes that no switch is to trim.
void Lane::send_pmtu_probe(std::uint32_t p, std::uint32_t socket, const PeerPlane& to, const PmtuProbe& probe,
                           std::size_t bytes, Time now) {
  std::vector<std::uint8_t> packet(bytes);
  probe.emit(packet);
  iovec piece{packet.data(), packet.size()};
  GsoBatch batch;
  batch.to = &to.to;
  batch.address = &to.address;
  batch.pieces = &piece;
  batch.piece_count = 1;
  batch.segment = batch.bytes = static_cast<std::uint32_t>(bytes);
  batch.packets = 1;
  batch.tos = static_cast<std::uint8_t>(plan_.sender.dscp.no_trim << 2);
  planes_[p].io().send(now, socket, {&batch, 1});
}

std::uint32_t Lane::free_ports() {
  std::uint32_t mask = 0;
  for (std::uint32_t p = 0; p < planes_.size(); ++p)
    if (!planes_[p].is_blocked()) mask |= 1u << p;
  return mask;
}

// Where sockets hold little, a plane is checked for room again after a few packets: the only one with room would
// otherwise be given all there is, and paths would be chosen long before the packets leave.
void Lane::gather(Time now) {
  std::uint32_t ports = free_ports();
  std::array<std::uint32_t, proto::max_ports> given{};
  while (ports && !sender_.is_full() && engine_.poll_transmit(now, ports, sender_.slot())) {
    const std::uint32_t port = sender_.slot().port;
    sender_.take();
    if (++given[port] == plan_.port_burst) ports &= ~(1u << port);
  }
}

// Everything the engine has ready, batch by batch, until it has no more or no port has room.
void Lane::transmit() {
  tx_pending_ = has_posts_ = false;
  const int max_batches = plan_.port_burst ? 64 : 4;
  for (int batches = 0; batches < max_batches; ++batches) {
    Time now = clock_.now();
    for (Plane& plane : planes_) plane.io().send_delayed(now);
    gather(now);
    if (sender_.empty()) break;
    sender_.flush(now);
    // What the kernel refused as a GSO batch waits to go packet by packet, and this may have been the last batch.
    if (batches + 1 == max_batches)
      for (Plane& plane : planes_) plane.io().send_delayed(now);
    // Not scheduled for a while, during sending.
    if (const Time after = clock_.now(); after - now > proto::stall_threshold) {
      ++stats_.hold_ups;
      engine_.handle_stall(after);
    }
  }
  for (std::uint32_t p = 0; p < planes_.size(); ++p)
    if (planes_[p].is_blocked()) watch_room(p);
}

// Keeps the descriptor set in step with which socket has no room. Where the system refuses that, it is tried again in
// the next turn, which is then soon: nothing else would tell that there is room.
void Lane::watch_room(std::uint32_t p) {
  Plane& plane = planes_[p];
  if (plane.watched_socket == plane.blocked_socket) return;
  const auto change = [&](int socket, bool wanted) {
    epoll_event e{};
    e.events = (socket == 0 ? static_cast<std::uint32_t>(EPOLLIN) : 0u) |
               (wanted ? static_cast<std::uint32_t>(EPOLLOUT) : 0u);
    e.data.u32 = tag_of(p, static_cast<std::uint32_t>(socket));
    return epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, plane.sockets[static_cast<std::size_t>(socket)].fd(), &e) == 0;
  };
  if (plane.watched_socket >= 0 && !change(plane.watched_socket, false)) return;
  plane.watched_socket = -1;
  if (plane.blocked_socket >= 0 && change(plane.blocked_socket, true)) plane.watched_socket = plane.blocked_socket;
}

namespace {

// A driver that was loaded again makes an interface of the same name. It is the plane's only once the old one is gone,
// which may merely have another name now. And an address that no socket is bound to an interface for may move to
// another one; while the old one has it still, it was only given to both. Nothing where that is not known yet.
std::optional<bool> is_now_of(const Plane& plane, const LinkState& change) {
  const bool may_be = change.address ? plane.plan.interface.empty() && *change.address == plane.plan.address
                                     : change.is_up && change.name == plane.link();
  if (!may_be) return false;
  const auto is_still = change.address ? has_address(plane.link_index, plane.plan.address) : is_link(plane.link_index);
  return is_still ? std::optional(!*is_still) : std::nullopt;
}

constexpr Duration links_rest = milliseconds(100);  // until a query that the system could not answer is repeated
constexpr std::size_t max_link_changes = 4096;      // that are kept until then

}  // namespace

// Queries that the system could not answer are repeated, with the messages that led to them; newer messages
// follow.
void Lane::read_links() {
  links_ready_ = false;
  if (!links_unknown_) link_changes_.clear();
  if (!links_->read(link_changes_)) links_missed_ = true;
  if (link_changes_.size() > max_link_changes) {
    link_changes_.clear();
    links_missed_ = true;
  }
  links_unknown_ = false;
  const auto known = [this](auto answer) {
    links_unknown_ |= !answer;
    return answer;
  };
  std::uint32_t up = links_up_;
  const auto set = [&up](std::uint32_t p, std::optional<bool> is_up) {
    if (is_up) up = (up & ~(1u << p)) | static_cast<std::uint32_t>(*is_up) << p;
  };
  bool has_moved = false;
  for (std::uint32_t p = 0; p < planes_.size(); ++p) {
    Plane& plane = planes_[p];
    if (plane.link_index == 0) continue;
    for (const LinkState& change : link_changes_) {
      if (plane.link_index != change.index && !known(is_now_of(plane, change)).value_or(false)) continue;
      has_moved |= plane.link_index != change.index;
      plane.link_index = change.index;
      set(p, change.address ? known(is_link_up(change.index)) : change.is_up);
    }
    if (links_missed_) {
      const std::uint32_t index = known(link_of_name(plane.link())).value_or(0);
      if (index && !known(is_link(plane.link_index)).value_or(true)) {
        has_moved = true;
        plane.link_index = index;
      }
      set(p, known(is_link_up(plane.link_index)));
    }
    if (!known(plane.rebind_interface()).value_or(true)) set(p, false);
  }
  if (links_unknown_) ask_again_for_links();
  else links_missed_ = false;
  if (up == links_up_ && !has_moved) return;
  links_up_ = up;
  owner_.on_links(up);
}

void Lane::ask_again_for_links() { asks_for_links_at_ = clock_.now() + links_rest; }

void Lane::apply_port_state() {
  with_engine_and_send([&](proto::Endpoint&, Time now) {
    apply_ports(now);
    return 0;
  });
}

void Lane::apply_port_state_soon() {
  has_new_ports_ = true;
  wake();
}

// The current state, not the one at the time of the request, which may be old by now.
void Lane::apply_ports(Time now) {
  has_new_ports_ = false;
  const std::uint32_t up = owner_.up_ports();
  for (std::uint32_t p = 0; p < planes_.size(); ++p)
    if ((up ^ ports_) >> p & 1) engine_.set_port(now, p, up >> p & 1);
  ports_ = up;
}

// A report names where the packet went, and with that a peer.
void Lane::read_errors() {
  constexpr int max_at_once = 64;
  const Time now = clock_.now();
  for (std::uint32_t p = 0; erring_; ++p) {
    if (!(erring_ >> p & 1)) continue;
    erring_ &= ~(1u << p);
    Plane& plane = planes_[p];
    for (std::uint32_t s = 0; s < plane.sockets.size(); ++s) {
      SendError error;
      for (int i = 0; i < max_at_once && plane.io().next_error(s, error); ++i) {
        ++plane.stats.errors_reported;
        if (!error.is_port_unreachable) continue;
        if (const std::uint32_t peer = peers_.find(error.to); peer != proto::no_peer) engine_.on_unreachable(now, peer);
      }
    }
  }
}

// Who missed the last acknowledgement asks again within milliseconds, and a few times more if that is lost as well.
constexpr Duration quiet_enough = milliseconds(200);
constexpr Duration longest_linger = seconds(3);
// But a process that gets no processor for a while, or whose timers have backed off, asks later than that. So all is
// said again unasked, and waits in the peer's sockets.
constexpr Duration repeat_interval = milliseconds(50);
constexpr std::uint32_t repeats = 3;

void Lane::linger(Lock& lock) {
  if (!engine_.in_time_wait()) return;
  const Time began = clock_.now();
  Time asked_at = began;
  Time repeats_at = began + repeat_interval;
  std::uint32_t repeated = 0;
  std::uint64_t answered = engine_.stats().departed_answers;
  while (!lingering_stopped_) {
    process_input();
    if (repeated < repeats && clock_.now() >= repeats_at) {
      engine_.resend_final_acks(repeated++);
      repeats_at = clock_.now() + repeat_interval;
    }
    transmit();
    const Time now = clock_.now();
    if (engine_.stats().departed_answers != answered) asked_at = now;
    answered = engine_.stats().departed_answers;
    const Time quiet_at = std::min(asked_at + quiet_enough, began + longest_linger);
    if (now >= quiet_at && repeated == repeats) return;
    const Time until = repeated < repeats ? repeats_at : quiet_at;
    const Duration nap = std::max(std::min(until, next_deadline()) - now, microseconds(50));
    lock.unlock();
    poll_sockets(nap);
    lock.lock();
  }
}

constexpr Duration unwatched_rest = milliseconds(1);  // until a socket without room is watched after all

bool Lane::progress() {
  bool has_more = false;
  const Time now = clock_.now();
  for (std::size_t i = 0; i < progress_handlers_.size(); ++i) has_more |= progress_handlers_[i]->progress(engine_, now);
  return has_more;
}

Time Lane::next_deadline() {
  Time at = std::min({engine_.poll_timeout(), protectors_.deadline(), asks_for_links_at_, bootstrap_watch_.deadline()});
  for (Plane& plane : planes_) {
    at = std::min(at, plane.io().deadline());
    if (plane.is_blocked() && plane.watched_socket != plane.blocked_socket) [[unlikely]]
      at = std::min(at, clock_.now() + unwatched_rest);
  }
  for (const proto::ProgressHandler* progress_handler : progress_handlers_)
    at = std::min(at, progress_handler->deadline());
  return at;
}

}  // namespace softmrc::udp
