// Makes queue pairs for those that live on an endpoint: a controller may have set the paths of those that have
// none, and a driver may have to encrypt what they send. All calls are made under the engine's lock.
#pragma once

#include <cstdint>

#include "base/time.h"
#include "proto/config.h"

namespace softmrc::proto {

class Endpoint;

class QpFactory {
 public:
  virtual ~QpFactory() = default;
  // The engine's number for the peer at a place that the driver knows; no_peer where another peer is there now.
  // And back.
  virtual std::uint32_t admit(std::uint32_t place) = 0;
  virtual std::uint32_t place_of(std::uint32_t peer) const = 0;
  // RESET to INIT, INIT to RTR, and the end of a queue pair.
  virtual MaybeError init(Endpoint& engine, Time now, std::uint32_t qpn, const InitAttributes& attributes,
                          bool has_own_paths) = 0;
  virtual MaybeError connect(Endpoint& engine, Time now, std::uint32_t qpn, const RtrAttributes& attributes) = 0;
  virtual void destroy(Endpoint& engine, Time now, std::uint32_t qpn) = 0;
};

// The endpoint alone decides: nothing is laid down or encrypted, and all peers have numbers from the start, which are
// their places.
class PlainQpFactory final : public QpFactory {
 public:
  std::uint32_t admit(std::uint32_t place) override { return place; }
  std::uint32_t place_of(std::uint32_t peer) const override { return peer; }
  MaybeError init(Endpoint& engine, Time now, std::uint32_t qpn, const InitAttributes& attributes,
                  bool has_own_paths) override;
  MaybeError connect(Endpoint& engine, Time now, std::uint32_t qpn, const RtrAttributes& attributes) override;
  void destroy(Endpoint& engine, Time now, std::uint32_t qpn) override;
};

}  // namespace softmrc::proto
