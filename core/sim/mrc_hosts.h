// Hosts that run the production endpoint, and the collectives on it, and nothing else: driven at once, as a NIC does
// it, or by a process. Packets travel as structs; the engine does not know the difference, which a test of Pair proves.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_set>
#include <vector>

#include "collectives/group.h"
#include "proto/endpoint.h"
#include "sim/hosts.h"
#include "sim/process.h"
#include "sim/sim_driver.h"

namespace softmrc::sim {

class MrcHosts;

// All of them, and who talks to whom.
class MrcHostFactory final : public HostFactory {
 public:
  explicit MrcHostFactory(const NetworkConfig& config) : config_(config), hosts_(config.fabric.hosts) {}
  ~MrcHostFactory() override;

  void add_group(const std::vector<std::uint32_t>& hosts) override;
  std::int32_t add_collective(const Collective& collective) override;
  Carried carried(std::uint32_t qpn) const override { return connections_[qpn - first_qpn].carried; }
  std::unique_ptr<Hosts> make_shard(const ShardContext& place) override;
  std::uint64_t begin(const std::vector<Flow>& flows) override;
  std::array<std::uint64_t, 4> ev_census() const override;
  proto::QpStats total_stats() const override;

 private:
  friend class MrcHosts;
  struct Driven;
  static constexpr std::uint32_t first_qpn = 16;

  struct RemotePeer {
    std::uint32_t host = 0;
    std::uint32_t our_id_there = 0;
  };
  // A rank's call that is under way, and the memory for it where there is some.
  struct Call {
    std::uint32_t flow = 0;
    std::uint32_t collective = 0;
    std::uint32_t rank = 0;
    std::shared_ptr<collectives::Work> work;
    std::vector<std::uint32_t> in, out;
  };
  struct Host {
    Host();
    Host(Host&&) noexcept;
    ~Host();

    std::unique_ptr<proto::Endpoint> endpoint;
    std::unique_ptr<SimDriver> driver;  // where ranks live here
    std::vector<Call> calls;
    std::unique_ptr<Driven> driven;  // where a process does it
    std::vector<RemotePeer> peers;
    const proto::QueuePair* last_sender = nullptr;  // likely to send next, too: its memory is fetched ahead
  };
  // One queue pair, or as many as are configured, per ordered pair of hosts that talk; flows between them are its
  // messages. Each end has its queue pair from the first flow on that it learns of.
  struct Connection {
    std::uint32_t source = 0;
    std::uint32_t destination = 0;
    std::uint32_t id_at_source = 0;  // of the peer
    std::uint32_t id_at_destination = 0;
    const proto::QueuePair* sender = nullptr;
    const proto::QueuePair* receiver = nullptr;
    Carried carried = Carried::flow;
  };
  // Ranks, by the shipped collectives. Those that speak with each other are connected before anything moves.
  struct Rank {
    std::uint32_t host = 0;
    std::uint32_t cq = 0;
    std::vector<proto::Domain> domains;
    std::unique_ptr<collectives::Group> part;
    std::unordered_set<std::uint32_t> peers;
  };
  struct Group {
    std::vector<Rank> ranks;
    bool is_dry_run = false;

    collectives::RankInfo place(std::uint32_t rank, std::uint32_t unit) const {
      collectives::RankInfo place{rank, static_cast<std::uint32_t>(ranks.size()), unit};
      place.is_dry_run = is_dry_run;
      return place;
    }
  };

  MrcHosts& at(std::uint32_t host) { return *shards_[partition_->of_host(host)]; }
  void plan_connections(const std::vector<Flow>& flows);
  void count_peers(const std::vector<Flow>& flows);
  Psn first_psn(std::uint32_t qpn) const;
  proto::InitAttributes hints_for(std::uint32_t source, std::uint32_t destination) const;
  // mrc_ranks.cpp: collectives.
  collectives::CollectiveCall asked(const Collective& what, std::uint8_t* in, std::uint8_t* out) const;
  std::uint64_t meet(const Flow& flow);
  void introduce(Group& group, std::uint32_t a, std::uint32_t b);

  const NetworkConfig& config_;
  const Partition* partition_ = nullptr;
  std::vector<MrcHosts*> shards_;
  std::vector<Host> hosts_;
  std::vector<Connection> connections_;                    // by queue pair number, which both ends of a flow share
  std::vector<std::uint32_t> connection_of_;               // by flow
  std::vector<std::uint16_t> send_peers_, receive_peers_;  // by host, where there are hints
  std::vector<Group> groups_;
  std::vector<Collective> collectives_;
};

// Those of one shard.
class MrcHosts final : public Hosts, private proto::TraceSink {
 public:
  MrcHosts(const ShardContext& place, MrcHostFactory& all)
      : Hosts(place, true),
        all_(all),
        hosts_(all.hosts_),
        connections_(all.connections_),
        connection_of_(all.connection_of_),
        groups_(all.groups_) {}

  std::vector<CollectiveError> errors() const override { return errors_; }
  proto::Endpoint& endpoint_of(std::uint32_t host);
  void make_queue_pair(std::uint32_t host, std::uint32_t qpn, std::uint32_t dest_qpn, std::uint32_t peer, Psn first_psn,
                       const proto::InitAttributes& init);
  SimDriver::Context& clock() { return clock_; }

  void start(std::uint32_t id, const Flow& flow) override;
  void expect(std::uint32_t id, const Flow& flow) override;
  void handle(std::uint32_t host, std::uint32_t packet_id) override;
  void handle_timeout(std::uint32_t host) override;
  void handle_free_port(std::uint32_t host) override { drain(host); }
  bool set_port(std::uint32_t host, std::uint32_t plane, bool is_up) override;
  Time deadline(std::uint32_t host) override;

  void fetch_row(std::uint32_t host) const override;
  void fetch_engine(std::uint32_t host, const SimPacket* arriving) const override;
  void fetch_work(std::uint32_t host, const SimPacket* arriving) const override;

 private:
  friend struct MrcHostFactory::Driven;
  static constexpr std::uint32_t first_qpn = MrcHostFactory::first_qpn;
  using Host = MrcHostFactory::Host;
  using Connection = MrcHostFactory::Connection;
  using Carried = HostFactory::Carried;

  // The time of the network, for who lives on its hosts.
  struct HostClock final : SimDriver::Context {
    explicit HostClock(MrcHosts& all) : hosts(all) {}
    Time now() const override { return hosts.now(); }
    void on_posted(std::uint32_t host) override { hosts.drain(host); }
    MrcHosts& hosts;
  };

  void on(const proto::Event& event) override;
  const proto::QueuePair* open(std::uint32_t connection, std::uint32_t host, std::uint32_t peer);
  void hand_in(std::uint32_t host, std::uint32_t packet_id);
  void leave(std::uint32_t host, const proto::Transmit& transmit);
  void drain(std::uint32_t host);
  void collect_completions(std::uint32_t host);
  const proto::QueuePair* pair_of(const Host& host, const SimPacket* arriving) const;

  // mrc_ranks.cpp: collectives.
  void call(std::uint32_t id, const Flow& flow);
  bool progress(std::uint32_t host);
  void end_calls(std::uint32_t host);

  MrcHostFactory& all_;
  std::vector<Host>& hosts_;
  std::vector<Connection>& connections_;
  const std::vector<std::uint32_t>& connection_of_;
  std::vector<MrcHostFactory::Group>& groups_;
  proto::Transmit scratch_;
  HostClock clock_{*this};
  std::vector<CollectiveError> errors_;
};

// A host whose endpoint is driven by a process, and what that process sees.
struct MrcHostFactory::Driven : Process::Surroundings {
  Driven(MrcHosts& all, const NetworkConfig& config, std::uint32_t which);
  void hand_in(std::uint32_t packet_id) override { hosts.hand_in(host, packet_id); }
  void leave(const proto::Transmit& transmit) override { hosts.leave(host, transmit); }
  std::uint32_t free_ports() override { return hosts.free_ports(host); }
  Time next_free_port() const override { return Time::never(); }  // a port that has room again kicks it
  bool progress() override { return hosts.progress(host); }
  Time progress_handlers_at() const override {
    return hosts.hosts_[host].driver ? hosts.hosts_[host].driver->deadline() : Time::never();
  }

  MrcHosts& hosts;
  std::uint32_t host;
  Process process;
};

}  // namespace softmrc::sim
