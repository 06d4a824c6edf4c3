// EV probes that wait to be sent because a caller asked for them, and those that are out.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/prng.h"
#include "base/ring.h"
#include "base/time.h"
#include "proto/queue_pair.h"
#include "proto/transmit.h"

namespace softmrc::proto {

// Whose it is and when it left.
struct PendingProbe {
  // Settled: it is no longer awaited, but its answer, or a copy of that, may still come. Liveness: that anything
  // comes is enough.
  enum class Owner : std::uint8_t { nobody, settled, queue_pair, caller, liveness };

  Owner owner = Owner::nobody;
  std::uint16_t id = 0;
  std::uint32_t slot = 0;  // the queue pair's, or the caller's token; of a ping, the queue pair's number
  std::uint32_t peer = 0;
  ProbeRequest probe;
  Time sent_at{};
  TrafficClass traffic_class = TrafficClass::data_no_trim;

  bool is_awaited() const { return owner > Owner::settled; }
};

// Those of callers, by port, so that one that is stuck holds up only its own.
class CallerProbes {
 public:
  bool empty() const { return ports_ == 0; }
  // False where too many wait for the port already.
  bool add(const PendingProbe& probe) {
    const std::uint8_t port = probe.probe.port;
    if (waiting_.size() <= port) waiting_.resize(port + 1u);
    if (waiting_[port].size() >= max_waiting) return false;
    waiting_[port].push(probe);
    ports_ |= 1u << port;
    return true;
  }
  std::optional<PendingProbe> take(std::uint32_t free_ports) {
    const std::uint32_t ports = ports_ & free_ports;
    if (ports == 0) return std::nullopt;
    auto& waiting = waiting_[static_cast<std::size_t>(std::countr_zero(ports))];
    const PendingProbe probe = waiting.front();
    waiting.pop();
    if (waiting.empty()) ports_ &= ~(ports & ~(ports - 1));
    return probe;
  }
  // How many there were.
  std::size_t remove_port(std::uint32_t port) {
    if (!(ports_ >> port & 1)) return 0;
    const std::size_t count = waiting_[port].size();
    waiting_[port].clear();
    ports_ &= ~(1u << port);
    return count;
  }
  void remove_peer(std::uint32_t peer) {
    for (std::uint32_t port = 0; port < waiting_.size(); ++port) {
      waiting_[port].remove_if([peer](const PendingProbe& probe) { return probe.peer == peer; });
      if (waiting_[port].empty()) ports_ &= ~(1u << port);
    }
  }

 private:
  static constexpr std::size_t max_waiting = 1024;  // for one port

  std::vector<Ring<PendingProbe>> waiting_;
  std::uint32_t ports_ = 0;  // with probes waiting
};

class PendingProbes {
 public:
  explicit PendingProbes(Prng ids) : ids_(ids) {}

  // Numbers are random: an answer must not come from a host that did not get the probe. The table doubles when
  // places are taken, again and again, by probes still worth awaiting.
  std::uint16_t add(const PendingProbe& probe) {
    if (probes_.empty()) probes_.resize(16);
    std::uint16_t id = 0;
    const auto is_taken = [&] {
      const PendingProbe& old = place(id);
      return old.is_awaited() && probe.sent_at - old.sent_at < lifetime;
    };
    for (int draws = 0;; ++draws) {
      id = static_cast<std::uint16_t>(ids_.bits() >> 48);
      if (!is_taken() || (draws >= max_draws && probes_.size() == 65536)) break;
      if (draws < max_draws) continue;
      draws = 0;
      std::vector<PendingProbe> wider(probes_.size() * 2);
      for (const PendingProbe& old : probes_)
        if (old.owner != PendingProbe::Owner::nobody) wider[old.id % wider.size()] = old;
      probes_ = std::move(wider);
    }
    place(id) = probe;
    place(id).id = id;
    return id;
  }
  // The probe that this answers, which is settled then.
  std::optional<PendingProbe> take(std::uint16_t id, std::uint32_t peer, std::uint16_t ticks) {
    if (probes_.empty()) return std::nullopt;
    PendingProbe& pending = place(id);
    if (pending.owner == PendingProbe::Owner::nobody || pending.id != id || pending.peer != peer ||
        ticks != timestamp_ticks(pending.sent_at))
      return std::nullopt;
    const PendingProbe probe = pending;
    pending.owner = PendingProbe::Owner::settled;
    return probe;
  }
  // The queue pair is gone.
  void settle_slot(std::uint32_t slot) {
    for (PendingProbe& probe : probes_)
      if (probe.owner == PendingProbe::Owner::queue_pair && probe.slot == slot)
        probe.owner = PendingProbe::Owner::settled;
  }
  // Another process may be there now; a caller's probe asks about the path to it all the same.
  void settle_peer(std::uint32_t peer) {
    for (PendingProbe& probe : probes_)
      if (probe.peer == peer && probe.is_awaited() && probe.owner != PendingProbe::Owner::caller)
        probe.owner = PendingProbe::Owner::settled;
  }
  void remove_peer(std::uint32_t peer) {
    for (PendingProbe& probe : probes_)
      if (probe.peer == peer) probe = PendingProbe{};
  }

 private:
  static constexpr Duration lifetime = milliseconds(50);  // one that is not answered then gives its number back
  static constexpr int max_draws = 4;

  PendingProbe& place(std::uint16_t id) { return probes_[id % probes_.size()]; }

  std::vector<PendingProbe> probes_;
  Prng ids_;  // which must not be guessable
};

}  // namespace softmrc::proto
