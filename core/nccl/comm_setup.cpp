#include "nccl/comm_setup.h"

#include <cerrno>

#include "udp/device_error.h"
#include "udp/socket.h"

namespace softmrc::nccl {
namespace {

using host::Handshake;
using host::HandshakeRefused;

constexpr auto pause_between_tries = std::chrono::milliseconds(50);
constexpr auto longest_lull = std::chrono::seconds(10);  // in a row: a connector may have tried its other addresses
constexpr int most_rounds = 4;                           // of events, each time that a listener is polled
constexpr auto dial_timeout = std::chrono::seconds(5);   // then all paths are tried again

std::string seconds_text(std::chrono::steady_clock::duration lasted) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(lasted).count()) + " s";
}

HandshakeRefused refusal_of(const host::HostError& why) {
  if (const auto* const refused = dynamic_cast<const HandshakeRefused*>(&why)) return *refused;
  return HandshakeRefused(why.what(), why.what());
}

}  // namespace

bool FailureStreak::lasts(std::chrono::milliseconds patience) {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_ > longest_lull) first_ = now;
  last_ = now;
  return now - first_ >= patience;
}

// CommListener -----------------------------------------------------------------------------------------------------

CommListener::CommListener(std::vector<host::UniqueFd> listening, const host::Credentials& own,
                           std::shared_ptr<host::AcceptorRegistry> registry, host::AcceptorLimits limits,
                           MakeParty make, std::chrono::milliseconds patience)
    : acceptor_(std::move(listening), own, limits, std::move(registry)), make_(std::move(make)), patience_(patience) {}

std::unique_ptr<Party> CommListener::poll(const Log& log) {
  // What follows from an answer comes at once, as a rule; clients that are refused may come without end, and must not
  // keep the caller.
  std::vector<host::Acceptor::Event> events = acceptor_.poll();
  for (int round = 0; round < most_rounds && !events.empty(); ++round, events = acceptor_.poll())
    for (host::Acceptor::Event& event : events) handle(event, log);
  for (host::Acceptor::Event& event : events) handle(event, log);
  const auto short_since = acceptor_.short_since();
  const bool is_short = short_since != host::Acceptor::Clock::time_point::max();
  if (is_short && !std::exchange(is_short_logged_, true)) log("connections wait: descriptors or memory are short");
  is_short_logged_ = is_short;
  if (accepted_.empty() && is_short && acceptor_.pending() == 0 &&
      host::Acceptor::Clock::now() - short_since >= patience_)
    throw udp::DeviceError(EMFILE, "no connection could be accepted for lack of descriptors or memory");
  if (accepted_.empty()) return nullptr;
  std::unique_ptr<Party> party = std::move(accepted_.front());
  accepted_.pop_front();
  short_ = {};
  return party;
}

void CommListener::handle(host::Acceptor::Event& event, const Log& log) {
  using Kind = host::Acceptor::Event::Kind;
  switch (event.kind) {
    case Kind::identified: return acceptor_.allow(event.id);
    case Kind::ready: return acceptor_.finish(event.id, false);
    case Kind::refused: return log("refused: " + event.words);
    case Kind::ended: pending_.erase(event.id); return;
    case Kind::offered: break;
    case Kind::finished: {
      auto found = pending_.extract(event.id);
      if (auto taken = acceptor_.take(event.id); taken && !found.empty()) {
        found.mapped()->hold(std::move(taken->slot));
        accepted_.push_back(std::move(found.mapped()));
      }
      return;
    }
  }
  try {
    answer(event);
  } catch (const host::HostError& why) {
    acceptor_.refuse(event.id, refusal_of(why));
  } catch (const std::exception& why) {
    const bool may_pass = udp::is_transient(why) && !short_.lasts(patience_);
    acceptor_.refuse(event.id, HandshakeRefused(std::string("could not be connected: ") + why.what(),
                                                std::string("the other side: ") + why.what(), may_pass));
  }
}

void CommListener::answer(const host::Acceptor::Event& event) {
  const Handshake* const handshake = acceptor_.handshake(event.id);
  if (!handshake) return;
  std::unique_ptr<Party> party = make_();
  party->accept(event.content, *handshake);
  const host::Bytes offer = party->offer();
  pending_[event.id] = std::move(party);
  acceptor_.answer(event.id, offer);
}

// CommConnector ----------------------------------------------------------------------------------------------------

CommConnector::CommConnector(std::vector<host::DialCandidate> ways, const host::Credentials& own, MakeParty make,
                             std::chrono::milliseconds patience)
    : ways_(std::move(ways)), own_(own), make_(std::move(make)), patience_(patience) {
  if (ways_.empty() || ways_[0].port == 0) throw host::HostError("the handle names no address");
}

void CommConnector::try_again() {
  connector_.reset();
  party_.reset();
  rests_until_ = Clock::now() + pause_between_tries;
}

std::unique_ptr<Party> CommConnector::poll() {
  polled_at_ = Clock::now();
  if (polled_at_ < rests_until_) return nullptr;
  try {
    return advance();
  } catch (const HandshakeRefused& why) {
    const std::string words = connector_->peer() + " " + why.what();
    connector_->refuse(why);
    if (!why.is_busy) throw host::HostError(words);
    // Anybody on the path can send a refusal before the peer is authenticated.
    if (connector_->handshake().is_confirmed()) unproved_ = {};
    else if (unproved_.lasts(patience_))
      throw host::HostError(connector_->peer() + " has refused for " + seconds_text(patience_) +
                            " without proof that it knows the secret: " + why.what());
    answered_at_ = polled_at_;
  } catch (const host::NotReached& why) {
    if (polled_at_ - answered_at_ >= patience_)
      throw host::HostError(udp::text_of(ways_[0].address) + " port " + std::to_string(ways_[0].port) +
                            " has not answered for " + seconds_text(polled_at_ - answered_at_) + ", by any of " +
                            host::counted(ways_.size(), "way") + ": " + why.what());
  } catch (const host::PeerClosed& why) {
    // A peer that only closes connections is given up in time. One that has sent something, or does not poll yet, may
    // accept a later connection.
    if (connector_->handshake().has_heard() || polled_at_ - began_ >= patience_) closed_early_ = {};
    else if (closed_early_.lasts(patience_))
      throw host::HostError(connector_->peer() + " keeps closing connections: " + why.what());
    answered_at_ = polled_at_;
  } catch (const host::HostError& why) {
    const std::string words = (connector_ ? connector_->peer() : "the peer") + " " + why.what();
    if (connector_) connector_->refuse(refusal_of(why));
    throw host::HostError(words);
  } catch (const std::exception& why) {
    if (!udp::is_transient(why) || short_.lasts(patience_)) throw;
  }
  try_again();
  return nullptr;
}

std::unique_ptr<Party> CommConnector::advance() {
  if (!connector_) {
    party_ = make_();
    connector_ = std::make_unique<host::Connector>(ways_, own_);
    began_ = polled_at_;
  }
  for (Handshake::Event event; (event = connector_->poll()) != Handshake::Event::none;) {
    Handshake& handshake = connector_->handshake();
    if (event == Handshake::Event::identified) {
      handshake.allow();
      handshake.offer(party_->offer());
    } else if (event == Handshake::Event::offered) {
      party_->accept(handshake.content(), handshake);
      handshake.ready(0, false);
    }
  }
  if (connector_->is_done()) {
    connector_.reset();
    return std::move(party_);
  }
  if (!connector_->is_connected() && polled_at_ - began_ >= std::min<Clock::duration>(dial_timeout, patience_))
    throw host::NotReached(ETIMEDOUT, "nothing comes back");
  if (connector_->is_connected() && polled_at_ - began_ >= patience_) throw host::PeerClosed("did not answer");
  return nullptr;
}

}  // namespace softmrc::nccl
