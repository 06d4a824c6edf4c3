// Is the cable in? Listens to the kernel's messages about links and addresses, so that a port that goes down is left
// at once rather than after packets were lost on it, and one whose interface was created again is found again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "wire/route.h"

namespace softmrc::udp {

// What a message said: of a link its name and state, or that a link has got an address.
struct LinkState {
  std::uint32_t index = 0;
  bool is_up = false;
  std::string name;
  std::optional<wire::Address> address;
};

class LinkWatch {
 public:
  // Throws DeviceError where the system is short of something.
  LinkWatch();
  ~LinkWatch();
  LinkWatch(const LinkWatch&) = delete;
  LinkWatch& operator=(const LinkWatch&) = delete;

  // Negative where the system has no such messages for us; ports then stay up until set otherwise.
  int fd() const { return fd_; }
  // What has changed since last asked. False when some of the kernel's messages were lost: ask for every link's state.
  bool read(std::vector<LinkState>& out);

 private:
  int fd_ = -1;
};

// Every address of this machine (or namespace), with the interface that has it. Throws DeviceError where the system is
// short of something.
struct LocalAddress {
  std::string interface;
  wire::Address address;
  std::uint32_t mtu = 0;
};
std::vector<LocalAddress> local_addresses();

// What the system says of interfaces at this moment; nothing where it is too short of something to say.
// One that is gone is down; one of which it never says anything is up.
std::optional<bool> is_link_up(std::uint32_t index);
std::optional<bool> is_link(std::uint32_t index);
std::optional<bool> has_address(std::uint32_t index, const wire::Address& address);
// Zero: there is none of this name.
std::optional<std::uint32_t> link_of_name(const std::string& name);
std::uint32_t link_mtu(std::uint32_t index);

}  // namespace softmrc::udp
