// A host of a fabric, from the file that Python's `softmrc.fabric` reads: its planes, how a device there is set, and
// the SRv6 paths to other hosts. It is as much of it as a sender needs; what else the file has is for others.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "host/settings.h"
#include "wire/route.h"

namespace softmrc::host {

class FabricHost {
 public:
  // `name` is the file's, for what is said of it. Throws HostError.
  FabricHost(std::string_view text, const std::string& name, const std::string& host);

  // The interfaces of its planes, by the names that the linux target gives them.
  std::vector<std::string> planes() const;
  // Where TCP reaches it.
  wire::Ipv6 host_address() const;
  // The default settings of a device on this host.
  DeviceSettings settings() const;
  // A carrier for each path to the host that has this address in a plane. It leaves the checksum as it is. Throws
  // HostError.
  std::vector<wire::Ipv6> paths(std::uint32_t plane, const wire::Address& address) const;

  std::uint32_t plane_count() const { return planes_; }
  // Which host has this address in a plane. Throws HostError where it is none other.
  std::uint32_t host_at(std::uint32_t plane, const wire::Address& address) const;
  std::uint32_t path_count(std::uint32_t to) const;
  // The directed links of a path, as `p0.leaf0>spine1`.
  std::vector<std::string> links(std::uint32_t plane, std::uint32_t to, std::uint32_t path) const;
  // The same name as people may write it: the plane may stand before both ends, or be left out. Throws HostError where
  // there is no such link.
  std::string link(const std::string& written) const;

 private:
  enum class Tier : std::uint8_t { host, leaf, t1, t2 };
  struct SwitchId {
    Tier tier{};
    std::uint32_t number = 0;
  };
  std::string word(Tier tier) const;
  std::string link_name(std::uint32_t plane, const SwitchId& from, const SwitchId& to) const;
  bool are_joined(const SwitchId& lower, const SwitchId& upper) const;
  std::uint32_t leaves() const { return hosts_ / hosts_per_leaf_; }
  std::uint32_t leaf_of(std::uint32_t host) const { return host / hosts_per_leaf_; }
  std::uint32_t pod_of(std::uint32_t leaf) const { return pods_ ? leaf / (leaves() / pods_) : 0; }
  wire::Ipv6 carrier(std::uint32_t plane, std::vector<std::uint32_t> usids) const;
  wire::Ipv6 nic_address(std::uint32_t host, std::uint32_t plane) const;
  std::vector<std::uint32_t> tail(std::uint32_t host) const;
  // The switches of a path that its carrier names, as uSIDs.
  std::vector<std::uint32_t> named(std::uint32_t to, std::uint32_t path) const;

  std::string name_;
  std::uint32_t planes_ = 1;
  std::uint32_t hosts_ = 16;
  std::uint32_t hosts_per_leaf_ = 4;
  std::uint32_t spines_ = 4;
  std::uint32_t pods_ = 0;
  std::uint32_t cores_per_spine_ = 0;
  std::uint64_t host_link_bps_ = 100'000'000'000;
  std::uint32_t block_ = 0xFCBBBB00;
  std::uint32_t inner_ = 0xFD4D5243;
  bool trims_ = false;
  std::uint32_t host_ = 0;
};

}  // namespace softmrc::host
