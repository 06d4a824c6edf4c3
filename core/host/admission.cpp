#include "host/admission.h"

#include <algorithm>
#include <array>
#include <span>

namespace softmrc::host {

AcceptorLimits limits_of(const DeviceSettings& settings) {
  return {AcceptorLimits{}.handshake, settings.max_pending, settings.max_pending_per_address, settings.max_connections,
          settings.max_connections_per_address};
}

std::string origin_of(const wire::Address& address) {
  constexpr std::array<std::uint8_t, 12> mapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
  const char* const bytes = reinterpret_cast<const char*>(address.bytes.data());
  if (!address.is_v4 && std::ranges::equal(std::span(address.bytes).first(mapped.size()), mapped))
    return {bytes + mapped.size(), 4};
  return {bytes, address.is_v4 ? 4u : 8u};
}

void Admission::begin(const Key& key, std::string origin, Clock::time_point now) {
  pending_[key] = {std::move(origin), now};
}

bool Admission::authenticate(const Key& key, const AcceptorLimits& limits, Clock::time_point now) {
  Pending& one = pending_.at(key);
  std::size_t all = 0, from_there = 0;
  const auto count = [&](const std::string& origin, std::size_t more) {
    all += more;
    if (origin == one.origin) from_there += more;
  };
  for (const auto& [origin, connections] : connections_) count(origin, connections);
  for (const auto& [other, pending] : pending_) count(pending.origin, pending.is_authenticated);
  if (all >= limits.connections || from_there >= limits.connections_per_address) return false;
  one.is_authenticated = true;
  one.since = now;
  return true;
}

void Admission::refuse(const Key& key) {
  Pending& one = pending_.at(key);
  one.is_authenticated = one.is_complete = false;
}

std::string Admission::connect(const Key& key) {
  std::string origin = std::move(pending_.at(key).origin);
  pending_.erase(key);
  ++connections_[origin];
  return origin;
}

void Admission::disconnect(const std::string& origin) {
  const auto at = connections_.find(origin);
  if (--at->second == 0) connections_.erase(at);
}

std::optional<Admission::Key> Admission::surplus(const Key& newest, const AcceptorLimits& limits) const {
  const Pending& one = pending_.at(newest);
  std::size_t all = 0, from_there = 0;
  for (const auto& [key, pending] : pending_)
    if (pending.is_authenticated == one.is_authenticated && !pending.is_complete) {
      ++all;
      from_there += pending.origin == one.origin;
    }
  if (from_there > limits.pending_per_address)
    return oldest(newest.acceptor, one.is_authenticated, &one.origin, newest);
  if (all > limits.pending) return oldest(newest.acceptor, one.is_authenticated, nullptr, newest);
  return {};
}

std::optional<Admission::Key> Admission::oldest(const Acceptor* asking, bool is_authenticated) const {
  return oldest(asking, is_authenticated, nullptr, {});
}

std::optional<Admission::Key> Admission::oldest(const Acceptor* asking, bool is_authenticated,
                                                const std::string* origin, const Key& newest) const {
  auto found = pending_.end();
  for (auto at = pending_.begin(); at != pending_.end(); ++at) {
    const auto& [key, pending] = *at;
    if (pending.is_authenticated == is_authenticated && !pending.is_complete && key != newest &&
        (!is_authenticated || key.acceptor == asking) && (!origin || pending.origin == *origin) &&
        (found == pending_.end() || pending.since < found->second.since))
      found = at;
  }
  return found == pending_.end() ? std::nullopt : std::optional(found->first);
}

Admission::Counts Admission::counts() const {
  Counts found;
  for (const auto& [key, pending] : pending_) ++(pending.is_authenticated ? found.authenticated : found.pending);
  for (const auto& [origin, count] : connections_) found.connections += count;
  return found;
}

}  // namespace softmrc::host
