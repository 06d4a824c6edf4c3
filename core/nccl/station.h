// A node, a porter in each of its lanes, and how NCCL hears of what goes wrong there.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "face/fabric.h"
#include "face/node.h"
#include "nccl/porter.h"
#include "nccl/words.h"

namespace softmrc::nccl {

constexpr Duration longest_stay = seconds(4);

class Station {
 public:
  Station(const face::Settings& settings, std::vector<face::LocalPlane> planes, std::uint32_t lanes, const Words& words)
      : node_("nccl", settings, std::move(planes), lanes, &bursts_), secret_(settings.secret), fabric_(settings.fabric), words_(words) {
    try {
      for (std::uint32_t lane = 0; lane < lanes; ++lane) porters_.push_back(std::make_unique<Porter>(node_, lane));
    } catch (...) {  // one lane could not be opened, and those before it run
      close();
      throw;
    }
  }
  // Lanes know porters until they are closed.
  ~Station() { close(); }

  face::Node& node() { return node_; }
  Porter& porter(std::uint32_t lane) { return *porters_[lane]; }
  std::uint32_t lanes() const { return static_cast<std::uint32_t>(porters_.size()); }
  const Words& words() const { return words_; }
  face::Bursts& bursts() { return bursts_; }
  const std::string& secret() const { return secret_; }
  // In a fabric, where addresses of planes are for paths; else those are for TCP as well.
  std::optional<wire::Ipv6> tcp_address() const { return fabric_ ? std::optional(fabric_->host_address()) : std::nullopt; }
  // Where the next comm of a direction has its home. NCCL makes those of its channels in their order, so that a channel sends
  // and receives by one lane, and every channel by another.
  std::uint32_t next_home(bool is_sender) { return homes_[is_sender]++ % lanes(); }
  // Lets everybody go; peers are still answered for a little while.
  void close() { node_.device().close(); }
  void wait_until_over() { node_.device().wait_until_over(longest_stay); }

 private:
  face::Bursts bursts_;
  face::Node node_;
  const std::string secret_;
  const std::shared_ptr<const face::FabricHost> fabric_;
  const Words& words_;
  std::vector<std::unique_ptr<Porter>> porters_;
  std::array<std::atomic<std::uint32_t>, 2> homes_{};
};

}  // namespace softmrc::nccl
