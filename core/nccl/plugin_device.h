// A node, a submit_queue in each of its lanes, and the logger through which NCCL gets errors.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "control/control_server.h"
#include "host/fabric_host.h"
#include "host/node.h"
#include "nccl/logger.h"
#include "nccl/submit_queue.h"

namespace softmrc::nccl {

constexpr Duration max_linger = seconds(4);

class PluginDevice {
 public:
  PluginDevice(const host::HostSettings& settings, std::vector<host::LocalPlane> planes, std::uint32_t lanes,
               const Logger& logger)
      : node_(settings, std::move(planes), lanes),
        secret_(settings.secret),
        fabric_(settings.fabric),
        logger_(logger),
        control_(control::open_control(node_, "nccl", settings.control, &bursts_)) {
    try {
      for (std::uint32_t lane = 0; lane < lanes; ++lane)
        submit_queues_.push_back(std::make_unique<SubmitQueue>(node_, lane));
    } catch (...) {  // one lane could not be opened, and those before it run
      close();
      throw;
    }
  }
  // Lanes refer to the submit queues until they are closed.
  ~PluginDevice() { close(); }

  host::Node& node() { return node_; }
  SubmitQueue& submit_queue(std::uint32_t lane) { return *submit_queues_[lane]; }
  std::uint32_t lanes() const { return static_cast<std::uint32_t>(submit_queues_.size()); }
  const Logger& logger() const { return logger_; }
  // Where its control socket is, or why there is none.
  const std::string& control() const { return control_; }
  control::BurstLog& bursts() { return bursts_; }
  const std::string& secret() const { return secret_; }
  // In a fabric, where addresses of planes are for paths; else those are for TCP as well.
  std::optional<wire::Ipv6> tcp_address() const {
    return fabric_ ? std::optional(fabric_->host_address()) : std::nullopt;
  }
  // Where the next comm of a direction has its home. NCCL makes those of its channels in their order, so that a channel
  // sends and receives by one lane, and every channel by another.
  std::uint32_t next_primary_lane(bool is_sender) { return primary_lanes_[is_sender]++ % lanes(); }
  // Lets everybody go; peers are still answered for a little while.
  void close() { node_.device().close(); }
  void wait_until_over() { node_.device().wait_until_over(max_linger); }

 private:
  control::BurstLog bursts_;
  host::Node node_;
  const std::string secret_;
  const std::shared_ptr<const host::FabricHost> fabric_;
  const Logger& logger_;
  const std::string control_;
  std::vector<std::unique_ptr<SubmitQueue>> submit_queues_;
  std::array<std::atomic<std::uint32_t>, 2> primary_lanes_{};
};

}  // namespace softmrc::nccl
