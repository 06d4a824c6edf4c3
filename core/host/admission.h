// Which handshakes and connections a process has, by whom: the limits, and which handshake is dropped where there are
// too many. No sockets, no locks: the registry of acceptors has one.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "host/settings.h"
#include "wire/route.h"

namespace softmrc::host {

struct AcceptorLimits {
  std::chrono::milliseconds handshake{10'000};  // for all of one, from the first byte to the last
  std::uint32_t pending = 256;                  // handshakes that are not authenticated; as many that are
  std::uint32_t pending_per_address = 64;       // likewise
  std::uint32_t connections = 8192;             // accepted and not closed, or authenticated and to be accepted
  std::uint32_t connections_per_address = 2048;
};

AcceptorLimits limits_of(const DeviceSettings& settings);

class Acceptor;

// What clients are counted by: an IPv4 address, or an IPv6 network, of which one host has all addresses. A socket that
// listens at "::" sees all IPv4 clients in one separate network.
std::string origin_of(const wire::Address& address);

class Admission {
 public:
  using Clock = std::chrono::steady_clock;
  struct Key {
    Acceptor* acceptor = nullptr;
    std::uint64_t id = 0;
    auto operator<=>(const Key&) const = default;
  };
  struct Pending {
    std::string origin;
    Clock::time_point since;        // of this step
    bool is_authenticated = false;  // and has a place among the connections
    bool is_complete = false;
  };
  struct Counts {
    std::size_t pending = 0, authenticated = 0, connections = 0;
  };

  // A handshake begins. Its client is not authenticated.
  void begin(const Key& key, std::string origin, Clock::time_point now);
  // It is from here on, competes with those that are, and has a place among the connections. False: there is none.
  bool authenticate(const Key& key, const AcceptorLimits& limits, Clock::time_point now);
  const Pending& state(const Key& key) const { return pending_.at(key); }
  // The client is done, and is not dropped any more.
  void complete(const Key& key) { pending_.at(key).is_complete = true; }
  // It was refused, and its place is free.
  void refuse(const Key& key);
  void end(const Key& key) { pending_.erase(key); }
  // It is a connection, of the origin returned, until `disconnect`.
  std::string connect(const Key& key);
  void disconnect(const std::string& origin);

  // With this one, the newest, there are too many: the one to drop for it. Where all others are another acceptor's, or
  // complete, there is none, and one more is kept: else a crowd at one listener would keep others from the next.
  std::optional<Key> surplus(const Key& newest, const AcceptorLimits& limits) const;
  // The one that has been at this step for longest. The application behind its acceptor knows an authenticated one, so
  // only that acceptor drops it.
  std::optional<Key> oldest(const Acceptor* asking, bool is_authenticated) const;
  Counts counts() const;

 private:
  std::optional<Key> oldest(const Acceptor* asking, bool is_authenticated, const std::string* origin,
                            const Key& newest) const;

  std::map<Key, Pending> pending_;
  std::map<std::string, std::uint32_t> connections_;  // by origin
};

}  // namespace softmrc::host
