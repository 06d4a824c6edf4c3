// The hosts of a network, or of one shard of it, whichever transport they speak. A host is known by its number. It is
// called for what happens to it, sends what its free ports allow at that moment, and says when it wants to be called;
// everything that it finds out goes to the observer.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/prng.h"
#include "proto/stats.h"
#include "sim/network_config.h"
#include "sim/partition.h"
#include "sim/scheduler.h"
#include "sim/sim_packet.h"
#include "sim/workload.h"

namespace softmrc::sim {

// A host as its links know it.
struct Nic {
  std::uint32_t busy_ports = 0;
  std::uint32_t paused_ports = 0;  // by PFC: replies only
  Time timer_at = Time::never();   // when the host is called
};

// Part of a flow lies in the memory of the host that it was for.
struct Placement {
  std::uint32_t flow = 0;
  std::uint32_t source = 0;  // the ends of the connection that carried it
  std::uint32_t destination = 0;
  std::uint64_t offset = 0;
  std::uint32_t bytes = 0;
  std::uint8_t port = 0;
  std::uint64_t packet = 0;  // of MRC: the packet, as Recovery names it
};

// Part of what a collective moves lies in a rank's memory.
struct Landing {
  std::uint32_t host = 0;
  std::uint32_t rkey = 0;
  std::uint64_t region = 0;  // the key's at that moment
  std::uint64_t va = 0;
  std::uint32_t bytes = 0;
  std::uint8_t port = 0;
  std::uint64_t packet = 0;
};

// What hosts report to their network.
struct HostObserver {
  virtual ~HostObserver() = default;
  // A packet leaves by the port of its plane.
  virtual void on_leave(std::uint32_t host, std::uint32_t packet_id) = 0;
  virtual void on_placed(const Placement& placement) = 0;
  virtual void on_landed(const Landing& landing) = 0;
  virtual void on_bad_evs(std::int64_t change) = 0;
  virtual void on_delivered(std::uint32_t flow) = 0;
  virtual void on_completed(std::uint32_t flow) = 0;
  virtual bool is_port_down(std::uint32_t host, std::uint32_t plane) const = 0;
};

class Hosts;

// Where hosts of a shard stand; all of it outlives them.
struct ShardContext {
  const NetworkConfig& config;
  const Partition& partition;
  std::uint32_t shard;
  const Scheduler& clock;
  PacketPool& packets;
  std::span<const Nic> nics;
  HostObserver& network;
};

// All hosts of a network, and who talks to whom, which is known before anything moves. What belongs to a host is
// touched by the shard of that host alone; the rest changes only while all shards wait.
class HostFactory {
 public:
  virtual ~HostFactory() = default;

  // Ranks, by their hosts; and what they will call. Where hosts have no collectives, -1.
  virtual void add_group(const std::vector<std::uint32_t>&) {}
  virtual std::int32_t add_collective(const Collective&) { return -1; }
  // What travels to this queue pair: flows, or the bulk data or the messages of collectives.
  enum class Carried : std::uint8_t { flow, bulk, message };
  virtual Carried carried(std::uint32_t) const { return Carried::flow; }

  // The hosts of one shard.
  virtual std::unique_ptr<Hosts> make_shard(const ShardContext& place) = 0;
  // Once all stand, and before the first flow starts: who will talk to whom. How many bytes are to land because of
  // collectives.
  virtual std::uint64_t begin(const std::vector<Flow>& flows) = 0;

  // EVs of all queue pairs that send, by state; sums of the counters of every queue pair.
  virtual std::array<std::uint64_t, 4> ev_census() const { return {}; }
  virtual proto::QpStats total_stats() const { return {}; }
};

class Hosts {
 public:
  struct Counters {
    std::uint64_t data_packets = 0, control_packets = 0, retransmitted = 0, arrived = 0, dropped = 0,
                  broken_connections = 0;

    Counters& operator+=(const Counters& o) {
      data_packets += o.data_packets, control_packets += o.control_packets, retransmitted += o.retransmitted;
      arrived += o.arrived, dropped += o.dropped, broken_connections += o.broken_connections;
      return *this;
    }
  };
  // Why a collective failed.
  struct CollectiveError {
    std::uint32_t flow = 0;
    std::string text;
  };

  virtual ~Hosts() = default;
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  virtual std::vector<CollectiveError> errors() const { return {}; }
  // The source of a flow is given it to send. A link's delay later, long before a packet can be there, its destination
  // learns to expect it.
  virtual void start(std::uint32_t id, const Flow& flow) = 0;
  virtual void expect(std::uint32_t id, const Flow& flow) = 0;
  virtual void handle(std::uint32_t host, std::uint32_t packet_id) = 0;
  virtual void handle_timeout(std::uint32_t host) = 0;
  // More of its ports are free, or may carry data again.
  virtual void handle_free_port(std::uint32_t host) = 0;
  // False: that is nothing to this host.
  virtual bool set_port(std::uint32_t host, std::uint32_t plane, bool is_up) = 0;
  // When handle_timeout wants to be called.
  virtual Time deadline(std::uint32_t host) = 0;

  // Asks for the memory of a host that has an engine: first its row, then the engine that it points to, then what that
  // will work on. `arriving` is the packet that it will get; without one it will send.
  bool have_engines() const { return have_engines_; }
  virtual void fetch_row(std::uint32_t) const {}
  virtual void fetch_engine(std::uint32_t, const SimPacket*) const {}
  virtual void fetch_work(std::uint32_t, const SimPacket*) const {}

  const Counters& counters() const { return counters_; }
  // What arrived where and when, as a number: a sum, so that only what and when counts, not who was looked at first.
  std::uint64_t trace_hash() const { return hash_; }

 protected:
  Hosts(const ShardContext& place, bool have_engines)
      : place_(place), all_ports_((1u << place.config.fabric.planes) - 1), have_engines_(have_engines) {}

  Time now() const { return place_.clock.now(); }
  std::uint32_t free_ports(std::uint32_t host) const { return all_ports_ & ~place_.nics[host].busy_ports; }

  void count_arrival(std::uint32_t host, std::uint32_t psn) {
    ++counters_.arrived;
    std::uint64_t state = static_cast<std::uint64_t>(now().ps) * 0x9FB21C651E98DF25u ^
                          (static_cast<std::uint64_t>(host) << 32 | psn);
    hash_ += splitmix64(state);
  }

  ShardContext place_;
  Counters counters_;

 private:
  std::uint32_t all_ports_;
  bool have_engines_;
  std::uint64_t hash_ = 0;
};

}  // namespace softmrc::sim
