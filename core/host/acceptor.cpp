#include "host/acceptor.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "udp/device_error.h"
#include "udp/socket.h"

namespace softmrc::host {
namespace {

constexpr int backlog = 1024;  // clients that the kernel holds until they are accepted
constexpr int admitted_at_once = 64;
constexpr std::size_t reasons_kept = 16;
constexpr auto pause_when_short = std::chrono::milliseconds(100);
constexpr auto time_to_hear_why = std::chrono::seconds(1);
constexpr auto grace = std::chrono::seconds(1);  // after each step, for the next
constexpr auto never = Acceptor::Clock::time_point::max();

// What clients are counted by: an IPv4 address, or an IPv6 network, of which one host has all addresses. A socket that
// listens at "::" sees IPv4 clients in a network of their own.
std::string origin_of(const wire::Address& address) {
  constexpr std::array<std::uint8_t, 12> mapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
  const char* const bytes = reinterpret_cast<const char*>(address.bytes.data());
  if (!address.is_v4 && std::ranges::equal(std::span(address.bytes).first(mapped.size()), mapped))
    return {bytes + mapped.size(), 4};
  return {bytes, address.is_v4 ? 4u : 8u};
}

HandshakeRefused too_many() {
  return HandshakeRefused("made room for others: too many had not finished", "too many connect at once; try again",
                          true);
}

HandshakeRefused short_of_means(const std::string& why) {
  return HandshakeRefused("could not be connected: " + why, "this side is short of descriptors or memory; try again",
                          true);
}

UniqueFd listening_socket(const wire::Address& address, std::uint32_t scope_id, std::uint16_t port) {
  UniqueFd made(socket(address.is_v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const udp::Destination to = udp::destination_of(address, port, scope_id);
  const int on = 1;
  if (made.get() < 0 || setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      bind(made.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.size) != 0 ||
      listen(made.get(), backlog) != 0) {
    const int error = errno;
    throw udp::DeviceError(error, "cannot listen on " + udp::text_of(address) + " port " + std::to_string(port) + ": " +
                                      std::strerror(error));
  }
  return made;
}

std::uint16_t port_of(const UniqueFd& listening) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  wire::Address ignored;
  std::uint16_t port = 0;
  if (getsockname(listening.get(), reinterpret_cast<sockaddr*>(&storage), &size) != 0)
    udp::fail_with_errno("cannot see which port a listener has");
  udp::source_of(storage, ignored, port);
  return port;
}

}  // namespace

AcceptorLimits limits_of(const DeviceSettings& settings) {
  return {AcceptorLimits{}.handshake, settings.max_pending, settings.max_pending_per_address, settings.max_connections,
          settings.max_connections_per_address};
}

std::vector<UniqueFd> listen_at(const std::vector<wire::Address>& addresses, std::uint32_t scope_id,
                                std::uint16_t& port) {
  constexpr int most_tries = 16;
  for (int tries = port ? most_tries : 1;; ++tries) {
    std::vector<UniqueFd> made;
    made.push_back(listening_socket(addresses.at(0), scope_id, port));
    const std::uint16_t found = port_of(made[0]);
    bool is_taken = false;
    for (auto at = addresses.begin() + 1; at != addresses.end(); ++at) {
      if (std::find(addresses.begin(), at, *at) != at) continue;
      try {
        made.push_back(listening_socket(*at, scope_id, found));
      } catch (const udp::DeviceError& why) {
        // Where the port is taken, or the address is not there, connectors come by another. A shortage would pass, and
        // leave a listener with fewer addresses for good.
        if (udp::is_transient(why)) throw;
        is_taken = is_taken || why.code == EADDRINUSE;
      }
    }
    if (is_taken && tries < most_tries) continue;  // one that the system chose is free at the first address only
    port = found;
    return made;
  }
}

// AcceptorRegistry -------------------------------------------------------------------------------------------------

AcceptorRegistry::Counts AcceptorRegistry::counts() const {
  const std::lock_guard lock(mutex_);
  Counts found;
  for (const Acceptor* acceptor : acceptors_)
    for (const auto& [id, pending] : acceptor->pending_) ++(pending.is_offered ? found.authenticated : found.pending);
  for (const auto& [origin, count] : connections_) found.connections += count;
  return found;
}

void AcceptorRegistry::after_fork(bool is_child) {
  if (is_child)
    for (Acceptor* acceptor : acceptors_) acceptor->close_after_fork();
  mutex_.unlock();
}

AcceptedSlot::AcceptedSlot(std::shared_ptr<AcceptorRegistry> registry, std::string origin)
    : registry_(std::move(registry)), origin_(std::move(origin)) {
  const std::lock_guard lock(registry_->mutex_);
  ++registry_->connections_[origin_];
}

AcceptedSlot::~AcceptedSlot() {
  const std::lock_guard lock(registry_->mutex_);
  const auto at = registry_->connections_.find(origin_);
  if (--at->second == 0) registry_->connections_.erase(at);
}

// Acceptor ---------------------------------------------------------------------------------------------------------

Acceptor::Acceptor(std::vector<UniqueFd> listening, Credentials own, AcceptorLimits limits,
                   std::shared_ptr<AcceptorRegistry> registry)
    : own_(own), limits_(limits), registry_(std::move(registry)), listening_(std::move(listening)) {
  resume_listening();
  const std::lock_guard lock(registry_->mutex_);
  registry_->acceptors_.insert(this);
}

Acceptor::~Acceptor() {
  close();
  const std::lock_guard lock(registry_->mutex_);
  registry_->acceptors_.erase(this);
}

void Acceptor::close() {
  const std::lock_guard lock(registry_->mutex_);
  const HandshakeRefused closed("was there when the listener was closed", "the listener was closed");
  for (auto& [id, pending] : pending_)
    if (!pending.is_refused && !pending.is_finished) pending.io.refuse(closed);
  pending_.clear();
  listening_.clear();
  waits_.close();
  resumes_at_ = never;
}

void Acceptor::resume_listening() {
  for (std::size_t i = 0; i < listening_.size(); ++i) {
    waits_.remove(listening_[i].get());
    waits_.add(listening_[i].get(), EPOLLIN, i);
  }
  resumes_at_ = never;
}

// Accepts at once: a shortage has lasted only if it is still there when it is asked about.
void Acceptor::try_listening() {
  try {
    resume_listening();
  } catch (const udp::DeviceError&) {  // the kernel is still short of memory
    resumes_at_ = Clock::now() + pause_when_short;
    return;
  }
  for (UniqueFd& socket : listening_) admit(socket);
}

void Acceptor::pause_listening() {
  for (const UniqueFd& socket : listening_) waits_.remove(socket.get());
  resumes_at_ = Clock::now() + pause_when_short;
}

Acceptor::Clock::time_point Acceptor::due() const {
  const std::lock_guard lock(registry_->mutex_);
  if (!events_.empty()) return Clock::time_point::min();
  Clock::time_point due = resumes_at_;
  for (const auto& [id, pending] : pending_)
    if (!pending.is_finished) due = std::min(due, pending.until);
  return due;
}

std::vector<Acceptor::Event> Acceptor::poll() {
  const std::lock_guard lock(registry_->mutex_);
  if (resumes_at_ <= Clock::now()) try_listening();
  for (const std::uint64_t number : waits_.ready())
    if (number < listening_.size()) admit(listening_[number]);
    else attend(number);
  expire();
  return std::exchange(events_, {});
}

// What somebody has sent may not have been looked at yet: no more than some are ready at a time. Others may be gone
// after a look at one.
void Acceptor::expire() {
  const auto now = Clock::now();
  std::uint64_t id = 0;
  for (auto at = pending_.begin(); at != pending_.end(); at = pending_.upper_bound(id)) {
    id = at->first;
    const auto is_late = [&] { return at != pending_.end() && at->second.until <= now && !at->second.is_finished; };
    if (!is_late()) continue;
    if (at->second.is_refused) {
      erase(at);
      continue;
    }
    attend(id);
    at = pending_.find(id);
    if (is_late())
      end(at, HandshakeRefused("did not finish the handshake in time", "you took too long; try again", true), true);
  }
}

void Acceptor::admit(UniqueFd& listening) {
  for (int i = 0; i < admitted_at_once; ++i) {
    UniqueFd socket(accept4(listening.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.get() >= 0) {
      admit_one(std::move(socket));
      continue;
    }
    const int error = errno;
    if (error == EBADF || error == EINVAL || error == ENOTSOCK || error == EOPNOTSUPP)
      throw HostError(std::string("cannot accept connections: ") + std::strerror(error));
    if (error == EAGAIN || error == EWOULDBLOCK || error == EINTR || !udp::is_transient(error)) {
      if (error == EAGAIN || error == EWOULDBLOCK) short_since_ = never;
      return;  // or the client has gone meanwhile
    }
    // A client cannot be accepted: a handshake is dropped for it, or nobody is accepted for a moment.
    if (short_since_ == never) short_since_ = Clock::now();
    if (!evict_oldest(false) && !evict_oldest(true)) pause_listening();
    return;
  }
}

void Acceptor::admit_one(UniqueFd socket) {
  short_since_ = never;
  const std::uint64_t id = next_id_++;
  try {
    const auto [at, is_new] = pending_.try_emplace(id, std::move(socket), own_);
    Pending& pending = at->second;
    pending.origin = origin_of(pending.io.address());
    pending.since = Clock::now();
    pending.until = pending.since + limits_.handshake;
    pending.events = EPOLLIN;
    waits_.add(pending.io.fd(), pending.events, id);
    make_room(*at);
  } catch (const std::exception& why) {  // ours, and it may pass: others may find more
    report(std::string("a client could not be received: ") + why.what(), true);
    if (const auto at = pending_.find(id); at != pending_.end()) erase(at);
  }
}

// Whoever is authenticated competes with those who are, and no longer with the crowd that is not. Where all of those
// are another acceptor's, or ready, there is room for one more: else a crowd at one listener would keep others from the
// next.
void Acceptor::make_room(const Table::value_type& newest) {
  const auto& [newest_id, newcomer] = newest;
  std::uint32_t alike = 0, from_there = 0;
  for (const Acceptor* acceptor : registry_->acceptors_)
    for (const auto& [id, pending] : acceptor->pending_)
      if (pending.is_offered == newcomer.is_offered && !pending.is_ready) {
        ++alike;
        from_there += pending.origin == newcomer.origin;
      }
  if (from_there > limits_.pending_per_address) evict_oldest(newcomer.is_offered, &newcomer.origin, newest_id);
  else if (alike > limits_.pending) evict_oldest(newcomer.is_offered, nullptr, newest_id);
}

// The one that has been at this step for longest, and none that takes itself for connected. What an application knows
// of is left to its own acceptor.
bool Acceptor::evict_oldest(bool is_offered, const std::string* origin, std::uint64_t newest) {
  for (;;) {
    Acceptor* owner = nullptr;
    Table::iterator oldest;
    for (Acceptor* acceptor : registry_->acceptors_) {
      if (is_offered && acceptor != this) continue;
      for (auto at = acceptor->pending_.begin(); at != acceptor->pending_.end(); ++at) {
        const Pending& pending = at->second;
        if (pending.is_offered != is_offered || pending.is_ready || (origin && pending.origin != *origin) ||
            (acceptor == this && at->first == newest) || (owner && pending.since >= oldest->second.since))
          continue;
        owner = acceptor;
        oldest = at;
      }
    }
    if (!owner) return false;
    if (owner == this) {  // what it has sent meanwhile may bring it a step further
      const std::uint64_t id = oldest->first;
      attend(id);
      oldest = pending_.find(id);
      if (oldest == pending_.end() || oldest->second.is_offered != is_offered) return true;
      if (oldest->second.is_ready) continue;
    }
    owner->end(oldest, too_many(), true);
    return true;
  }
}

void Acceptor::attend(std::uint64_t id) {
  const auto at = pending_.find(id);
  if (at == pending_.end() || at->second.is_finished) return;
  if (at->second.is_refused) {
    if (at->second.io.has_drained()) erase(at);
    return;
  }
  try {
    const bool had_heard = at->second.io.handshake().has_heard();
    const std::size_t events = events_.size();
    advance(at);
    // It was not late: what it has sent was not looked at in time.
    if (at->second.io.handshake().has_heard() != had_heard || events_.size() != events)
      at->second.until = std::max(at->second.until, Clock::now() + grace);
  } catch (const HandshakeRefused& why) {
    end(at, why, false);
  } catch (const PeerClosed& why) {
    end(at, HandshakeRefused(why.what()), true);
  } catch (const std::exception& why) {  // ours: it is no fault of the client's, nor a reason to receive nobody else
    end(at, short_of_means(why.what()), true);
  }
}

void Acceptor::advance(Table::iterator at) {
  Pending& pending = at->second;
  const auto tell = [&](Event::Kind kind, Bytes content = {}, std::uint32_t mtu = 0) {
    events_.push_back({kind, at->first, mtu, std::move(content)});
  };
  for (;;) {
    switch (pending.io.advance()) {
      case Handshake::Event::identified: {
        if (own_.kind == Credentials::Kind::key) {
          const crypto::Secret& key = pending.io.handshake().peer_key();
          pending.is_known = true;
          tell(Event::Kind::identified, Bytes(key.begin(), key.end()));
        } else {
          pending.io.handshake().allow();
        }
        continue;
      }
      case Handshake::Event::offered: {
        std::uint32_t all = 0;
        for (const auto& [origin, count] : registry_->connections_) all += count;
        const auto its = registry_->connections_.find(pending.origin);
        if (all >= limits_.connections ||
            (its != registry_->connections_.end() && its->second >= limits_.connections_per_address))
          throw HandshakeRefused("came when there were too many connections",
                                 "there are too many connections to this process; try again", true);
        pending.is_offered = true;
        pending.since = Clock::now();
        make_room(*at);
        pending.is_known = true;
        tell(Event::Kind::offered, pending.io.handshake().content());
        continue;
      }
      case Handshake::Event::ready:
        pending.is_ready = true;
        tell(Event::Kind::ready, {}, pending.io.handshake().mtu());
        continue;
      case Handshake::Event::done:
      case Handshake::Event::none: break;
    }
    break;
  }
  if (pending.io.is_done()) {
    pending.is_finished = true;
    waits_.remove(pending.io.fd());
    return tell(Event::Kind::finished);
  }
  if (const std::uint32_t events = pending.io.events(); events != pending.events) {
    waits_.change(pending.io.fd(), events, at->first);
    pending.events = events;
  }
}

void Acceptor::end(Table::iterator at, const HandshakeRefused& why, bool at_once) {
  Pending& pending = at->second;
  if (!pending.is_refused) {
    report(pending.io.peer() + " " + why.what(), why.is_busy);
    pending.io.refuse(why);
    if (pending.is_known) events_.push_back({Event::Kind::ended, at->first});
  }
  if (at_once || pending.is_refused || why.told.empty()) return erase(at);
  pending.is_refused = true;
  pending.is_offered = pending.is_ready = false;
  pending.until = std::min(pending.until, Clock::now() + time_to_hear_why);
  try {
    waits_.change(pending.io.fd(), EPOLLIN, at->first);
  } catch (const udp::DeviceError&) {
    erase(at);
  }
}

// A socket that is closed leaves the set by itself only where no forked child has a copy.
void Acceptor::erase(Table::iterator at) {
  waits_.remove(at->second.io.fd());
  pending_.erase(at);
}

void Acceptor::report(std::string words, bool is_busy) {
  ++refusals_.count;
  refusals_.busy += is_busy;
  refusals_.reasons.push_back(words);
  if (refusals_.reasons.size() > reasons_kept) refusals_.reasons.pop_front();
  events_.push_back({Event::Kind::refused, 0, 0, {}, std::move(words), is_busy});
}

Acceptor::Refusals Acceptor::refusals() const {
  const std::lock_guard lock(registry_->mutex_);
  return refusals_;
}

void Acceptor::count_refusal(const std::string& why) {
  const std::lock_guard lock(registry_->mutex_);
  report(why, true);
}

void Acceptor::allow(std::uint64_t id) {
  const std::lock_guard lock(registry_->mutex_);
  const auto at = pending_.find(id);
  if (at == pending_.end() || at->second.is_refused) return;
  at->second.io.handshake().allow();
  attend(id);
}

void Acceptor::answer(std::uint64_t id, std::span<const std::uint8_t> offer) {
  const std::lock_guard lock(registry_->mutex_);
  const auto at = pending_.find(id);
  if (at == pending_.end() || at->second.is_refused) return;
  at->second.io.handshake().offer(offer);
  attend(id);
}

void Acceptor::finish(std::uint64_t id, bool is_narrowed) {
  const std::lock_guard lock(registry_->mutex_);
  const auto at = pending_.find(id);
  if (at == pending_.end() || at->second.is_refused) return;
  at->second.io.handshake().finish(is_narrowed);
  attend(id);
}

void Acceptor::refuse(std::uint64_t id, const HandshakeRefused& why) {
  const std::lock_guard lock(registry_->mutex_);
  const auto at = pending_.find(id);
  if (at != pending_.end()) end(at, why, false);
}

const Handshake* Acceptor::handshake(std::uint64_t id) const {
  const std::lock_guard lock(registry_->mutex_);
  const auto at = pending_.find(id);
  return at == pending_.end() || at->second.is_refused ? nullptr : &at->second.io.handshake();
}

std::string Acceptor::peer(std::uint64_t id) const {
  const std::lock_guard lock(registry_->mutex_);
  const auto at = pending_.find(id);
  return at == pending_.end() ? "the peer" : at->second.io.peer();
}

std::optional<Acceptor::Accepted> Acceptor::take(std::uint64_t id) {
  std::optional<Accepted> taken;
  std::string origin;
  {
    const std::lock_guard lock(registry_->mutex_);
    const auto at = pending_.find(id);
    if (at == pending_.end() || !at->second.is_finished) return {};
    HandshakeIo& io = at->second.io;
    Handshake& handshake = io.handshake();
    origin = at->second.origin;
    taken.emplace(Accepted{io.take_socket(), io.peer(), handshake.goodbye(), handshake.goodbye_of_peer(),
                           handshake.rest(), nullptr});
    erase(at);
  }
  taken->slot = std::make_unique<AcceptedSlot>(registry_, origin);
  return taken;
}

std::size_t Acceptor::pending() const {
  const std::lock_guard lock(registry_->mutex_);
  return pending_.size();
}

void Acceptor::close_after_fork() {
  listening_.clear();
  pending_.clear();
  waits_.close();
}

}  // namespace softmrc::host
