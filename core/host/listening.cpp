#include "host/listening.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "host/host_error.h"
#include "udp/device_error.h"
#include "udp/socket.h"

namespace softmrc::host {
namespace {

constexpr int backlog = 1024;  // clients that the kernel holds until they are accepted

UniqueFd listening_socket(const wire::Address& address, std::uint32_t scope_id, std::uint16_t port) {
  UniqueFd made(socket(address.is_v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const udp::Destination to = udp::destination_of(address, port, scope_id);
  const int on = 1;
  if (made.get() < 0 || setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      bind(made.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.size) != 0 ||
      listen(made.get(), backlog) != 0) {
    const int error = errno;
    throw udp::DeviceError(error, "cannot listen on " + udp::text_of(address) + " port " + std::to_string(port) + ": " +
                                      std::strerror(error));
  }
  return made;
}

std::uint16_t port_of(const UniqueFd& listening) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  wire::Address ignored;
  std::uint16_t port = 0;
  if (getsockname(listening.get(), reinterpret_cast<sockaddr*>(&storage), &size) != 0)
    udp::fail_with_errno("cannot see which port a listener has");
  udp::source_of(storage, ignored, port);
  return port;
}

}  // namespace

std::vector<UniqueFd> listen_at(const std::vector<wire::Address>& addresses, std::uint32_t scope_id,
                                std::uint16_t& port) {
  constexpr int most_tries = 16;
  for (int tries = port ? most_tries : 1;; ++tries) {
    std::vector<UniqueFd> made;
    made.push_back(listening_socket(addresses.at(0), scope_id, port));
    const std::uint16_t found = port_of(made[0]);
    bool is_taken = false;
    for (auto at = addresses.begin() + 1; at != addresses.end(); ++at) {
      if (std::find(addresses.begin(), at, *at) != at) continue;
      try {
        made.push_back(listening_socket(*at, scope_id, found));
      } catch (const udp::DeviceError& why) {
        // Where the port is taken, or the address is not there, connectors come by another. A shortage would pass, and
        // leave a listener with fewer addresses for good.
        if (udp::is_transient(why)) throw;
        is_taken = is_taken || why.code == EADDRINUSE;
      }
    }
    if (is_taken && tries < most_tries) continue;  // one that the system chose is free at the first address only
    port = found;
    return made;
  }
}

}  // namespace softmrc::host
