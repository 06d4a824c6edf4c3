#include "host/acceptor.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "udp/device_error.h"

namespace softmrc::host {
namespace {

constexpr int admitted_at_once = 64;
constexpr std::size_t reasons_kept = 16;
constexpr auto pause_when_short = std::chrono::milliseconds(100);
constexpr auto time_to_hear_why = std::chrono::seconds(1);
constexpr auto grace = std::chrono::seconds(1);  // after each step, for the next
constexpr std::uint64_t of_wake = ~std::uint64_t{0};
constexpr auto never = Acceptor::Clock::time_point::max();

HandshakeRefused too_many() {
  return HandshakeRefused("was dropped: too many had not finished the handshake", "too many connect at once; try again",
                          true);
}

HandshakeRefused short_of_means(const std::string& why) {
  return HandshakeRefused("could not be connected: " + why, "this side is short of descriptors or memory; try again",
                          true);
}

}  // namespace

// AcceptorRegistry -------------------------------------------------------------------------------------------------

Admission::Counts AcceptorRegistry::counts() const {
  const std::lock_guard lock(mutex_);
  return admission_.counts();
}

void AcceptorRegistry::after_fork(bool is_child) {
  if (is_child)
    for (Acceptor* acceptor : acceptors_) acceptor->close_after_fork();
  mutex_.unlock();
}

AcceptedSlot::~AcceptedSlot() {
  const std::lock_guard lock(registry_->mutex_);
  if (!origin_.empty()) registry_->admission_.disconnect(origin_);
}

// Acceptor ---------------------------------------------------------------------------------------------------------

Acceptor::Acceptor(std::vector<UniqueFd> listening, const Credentials& own, AcceptorLimits limits,
                   std::shared_ptr<AcceptorRegistry> registry)
    : own_(own),
      limits_(limits),
      registry_(std::move(registry)),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      listening_(std::move(listening)) {
  if (wake_.get() < 0) udp::fail_with_errno("cannot make an event descriptor");
  waits_.add(wake_.get(), EPOLLIN, of_wake);
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
  for (auto& [id, pending] : pending_) {
    if (!pending.is_refused && !pending.is_finished) pending.io.refuse(closed);
    admission().end(key(id));
  }
  pending_.clear();
  listening_.clear();
  waits_.close();
  wake_ = UniqueFd();
  resumes_at_ = never;
}

void Acceptor::resume_listening() {
  for (std::size_t i = 0; i < listening_.size(); ++i) {
    waits_.remove(listening_[i].get());
    waits_.add(listening_[i].get(), EPOLLIN, i);
  }
  resumes_at_ = never;
}

// Accepts at once: a shortage has lasted only if it is still there at the next accept.
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
    if (eventfd_t ignored; number == of_wake) eventfd_read(wake_.get(), &ignored);
    else if (number < listening_.size()) admit(listening_[number]);
    else attend(number);
  expire();
  return std::exchange(events_, {});
}

// Data that a client has sent may be unread: only so many events are returned at a time. Handling one client may end
// others.
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
      return;  // or the client has left by now
    }
    // A client cannot be accepted: a handshake is dropped for it, or no client is accepted for a moment.
    if (short_since_ == never) short_since_ = Clock::now();
    if (!drop_oldest(false) && !drop_oldest(true)) pause_listening();
    return;
  }
}

void Acceptor::admit_one(UniqueFd socket) {
  short_since_ = never;
  const std::uint64_t id = next_id_++;
  try {
    const auto [at, is_new] = pending_.try_emplace(id, std::move(socket), own_);
    Pending& pending = at->second;
    const auto now = Clock::now();
    admission().begin(key(id), origin_of(pending.io.address()), now);
    pending.until = now + limits_.handshake;
    pending.events = EPOLLIN;
    waits_.add(pending.io.fd(), pending.events, id);
    make_way_for(id);
  } catch (const std::exception& why) {  // ours, and it may pass: others may find more
    report(std::string("a client could not be received: ") + why.what(), true);
    if (const auto at = pending_.find(id); at != pending_.end()) erase(at);
  }
}

void Acceptor::make_way_for(std::uint64_t newest) {
  for (;;)
    if (const auto surplus = admission().surplus(key(newest), limits_); !surplus || drop(*surplus)) return;
}

bool Acceptor::drop_oldest(bool is_authenticated) {
  for (;;) {
    const auto oldest = admission().oldest(this, is_authenticated);
    if (!oldest || drop(*oldest)) return oldest.has_value();
  }
}

// False: it is complete.
bool Acceptor::drop(const Admission::Key& one) {
  Acceptor& owner = *one.acceptor;
  if (&owner == this) {  // what it has sent by now may bring it a step further
    const bool was_authenticated = admission().state(one).is_authenticated;
    attend(one.id);
    if (!pending_.contains(one.id) || admission().state(one).is_authenticated != was_authenticated) return true;
    if (admission().state(one).is_complete) return false;
  }
  owner.end(owner.pending_.find(one.id), too_many(), true);
  if (&owner != this) eventfd_write(owner.wake_.get(), 1);
  return true;
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
  } catch (const std::exception& why) {  // our failure, not the client's: other clients are still accepted
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
        if (!admission().authenticate(key(at->first), limits_, Clock::now()))
          throw HandshakeRefused("came when there were too many connections",
                                 "there are too many connections to this process; try again", true);
        make_way_for(at->first);
        pending.is_known = true;
        tell(Event::Kind::offered, pending.io.handshake().content());
        continue;
      }
      case Handshake::Event::ready:
        admission().complete(key(at->first));
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
  if (at_once || pending.is_refused || why.message_to_peer.empty()) return erase(at);
  pending.is_refused = true;
  admission().refuse(key(at->first));
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
  admission().end(key(at->first));
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
  auto slot = std::make_unique<AcceptedSlot>(registry_);  // first: it locks as it is destroyed
  const std::lock_guard lock(registry_->mutex_);
  const auto at = pending_.find(id);
  if (at == pending_.end() || !at->second.is_finished) return {};
  HandshakeIo& io = at->second.io;
  Handshake& handshake = io.handshake();
  std::optional<Accepted> taken(
      {io.take_socket(), io.peer(), handshake.goodbye(), handshake.goodbye_of_peer(), handshake.rest(), nullptr});
  slot->origin_ = admission().connect(key(id));
  taken->slot = std::move(slot);
  erase(at);
  return taken;
}

std::size_t Acceptor::pending() const {
  const std::lock_guard lock(registry_->mutex_);
  return pending_.size();
}

void Acceptor::close_after_fork() {
  listening_.clear();
  for (const auto& [id, pending] : pending_) admission().end(key(id));
  pending_.clear();
  waits_.close();
  wake_ = UniqueFd();
}

}  // namespace softmrc::host
