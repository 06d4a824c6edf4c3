// Hosts that run the RoCE baseline.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sim/baselines/roce.h"
#include "sim/hosts.h"

namespace softmrc::sim {

class RoceHostFactory final : public HostFactory {
 public:
  explicit RoceHostFactory(const NetworkConfig& config) : hosts_(config.fabric.hosts) {}

  std::unique_ptr<Hosts> make_shard(const ShardContext& place) override;
  std::uint64_t begin(const std::vector<Flow>& flows) override;

 private:
  friend class RoceHosts;

  struct Connection {
    std::uint32_t source = 0;
    std::uint32_t destination = 0;
    bool has_sender = false;  // it has its queue pairs, from the first flow on
    bool has_receiver = false;
  };
  // Of a flow, whose parts go by several queue pairs.
  struct Left {
    std::uint32_t to_place = 0;
    std::uint32_t to_acknowledge = 0;
  };

  std::vector<std::unique_ptr<RoceHost>> hosts_;
  std::vector<Connection> connections_;       // queue pairs are numbered by them
  std::vector<std::uint32_t> connection_of_;  // by flow
  std::vector<Left> left_;                    // by flow
};

class RoceHosts final : public Hosts, private RoceObserver {
 public:
  RoceHosts(const ShardContext& place, RoceHostFactory& all)
      : Hosts(place, false),
        hosts_(all.hosts_),
        connections_(all.connections_),
        connection_of_(all.connection_of_),
        left_(all.left_) {}

  void start(std::uint32_t id, const Flow& flow) override;
  void expect(std::uint32_t id, const Flow& flow) override;
  void handle(std::uint32_t host, std::uint32_t packet_id) override;
  void handle_timeout(std::uint32_t host) override;
  void handle_free_port(std::uint32_t host) override { drain(host); }
  bool set_port(std::uint32_t, std::uint32_t, bool) override { return false; }  // a queue pair keeps its only path
  Time deadline(std::uint32_t host) override { return hosts_[host] ? hosts_[host]->deadline(now()) : Time::never(); }

 private:
  static constexpr std::uint32_t max_qps = 16;  // per pair of hosts

  using Connection = RoceHostFactory::Connection;

  void on_roce_placed(const RocePacket& packet, std::uint8_t port) override;
  void on_roce_acknowledged(std::uint32_t flow, std::uint32_t bytes) override;
  void on_roce_broken(std::uint32_t qp) override;
  RoceHost& host_of(std::uint32_t host);
  std::uint32_t entropy_of(std::uint32_t qp) const {
    return static_cast<std::uint32_t>(Prng(place_.config.seed, "roce", qp).bits() >> 32);
  }
  template <typename Make>
  void each_qp(std::uint32_t connection, Make make) const;
  void drain(std::uint32_t host);
  void leave(std::uint32_t host, const RoceSend& send);

  std::vector<std::unique_ptr<RoceHost>>& hosts_;
  std::vector<Connection>& connections_;
  const std::vector<std::uint32_t>& connection_of_;
  std::vector<RoceHostFactory::Left>& left_;
};

}  // namespace softmrc::sim
