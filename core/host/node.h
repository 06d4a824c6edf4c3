// A device made of settings, and queue pairs on it for users in C++ (NCCL's plugin): several, each in a lane, between
// two nodes that exchange offers.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "host/connect_qp.h"
#include "host/device_plan.h"
#include "host/planes.h"
#include "host/sealing.h"

namespace softmrc::host {

// Throws HostError where no node can be made of them.
void check(const HostSettings& settings, const std::vector<LocalPlane>& planes);

class Node {
 public:
  // Throws HostError or udp::DeviceError.
  Node(const HostSettings& settings, std::vector<LocalPlane> planes, std::uint32_t lanes);
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  udp::Device& device() { return *device_; }
  const std::vector<LocalPlane>& planes() const { return planes_; }
  std::uint32_t mtu() const { return mtu_; }
  bool is_sealed() const { return is_sealed_; }
  std::uint32_t cq() const { return cq_; }
  bool is_loopback_only() const;
  const DeviceSettings& settings() const { return settings_; }

  // A queue pair in RESET, whose peer may write to the memory of this domain.
  LocalQp open(std::uint32_t lane, proto::Domain domain);
  Offer offer(std::span<const LocalQp> ends, Bytes more);
  // Refuses an offer that does not fit this node.
  void check(const Offer& offer);
  // To RTS, with so many receives posted: both may write from here on. Of `root` come the keys, where packets are
  // encrypted. Throws HostError.
  void connect(LocalQp& end, const Offer& theirs, std::size_t number, std::uint32_t receives,
               const std::optional<crypto::Secret>& root, bool is_connector);
  void close(LocalQp& end);

  // Memory that peers may write to; the key that they need.
  std::uint32_t register_memory(void* data, std::size_t size, proto::Domain domain);

  // In a forked child. Nothing else may be called after it.
  void close_after_fork();

 private:
  struct LaneProfiles {
    bool is_made = false;
    std::uint32_t evs = 0;
    std::uint32_t control = 0;
  };

  std::vector<udp::PeerPlane> reachable_at(std::uint32_t lane);
  const LaneProfiles& profiles_of(std::uint32_t lane);
  proto::EvProfile ev_profile() const;
  void init(const LocalQp& end, const std::vector<udp::PeerPlane>& peer);

  std::vector<LocalPlane> planes_;
  DeviceSettings settings_;
  std::shared_ptr<const FabricHost> fabric_;
  std::shared_ptr<const Denylist> denylist_;
  bool is_sealed_;
  std::uint32_t mtu_;
  std::unique_ptr<udp::Device> device_;
  std::uint32_t cq_ = 0;
  std::mutex mutex_;  // for what follows
  std::vector<LaneProfiles> profiles_;
};

}  // namespace softmrc::host
