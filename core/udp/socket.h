// One UDP socket of a plane, set up the way the driver needs it: bound to an address and an interface, with big
// buffers, the kernel's segmentation (GSO) and coalescing (GRO) where they exist, and ECN and DSCP seen on the way in.
// Decides options; what is sent and received through it is the sender's and the receiver's.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <utility>

#include "wire/route.h"

namespace softmrc::udp {

// An address as the kernel wants it.
struct Destination {
  sockaddr_storage storage{};
  socklen_t size = 0;
};
Destination destination_of(const wire::Address& address, std::uint16_t port, std::uint32_t scope_id);
void source_of(const sockaddr_storage& from, wire::Address& address, std::uint16_t& port);
std::string text_of(const wire::Address& address);

struct SocketConfig {
  wire::Address address;
  std::uint32_t scope_id = 0;  // of a link-local IPv6 address
  std::uint16_t port = 0;      // 0: any
  std::string interface;       // empty: wherever the routes lead
  bool receives = true;        // false: everything that arrives is dropped by the kernel
  bool is_any_local = false;   // the address may belong to a routed prefix rather than to an interface
  std::uint32_t buffer_bytes = 8 << 20;
  std::uint32_t send_buffer_bytes = 0;  // 0: an eighth of buffer_bytes
  std::uint8_t tos = 0;                 // of packets that do not say otherwise
};

// What became of a packet that was sent earlier, as the network or the kernel reported it.
struct SendError {
  sockaddr_storage to{};
  bool is_port_unreachable = false;  // ICMP port unreachable: the host is there, without a listener
};

class Socket {
 public:
  Socket() = default;
  explicit Socket(const SocketConfig& plan);
  ~Socket();
  Socket(Socket&& other) noexcept { swap(other); }
  Socket& operator=(Socket&& other) noexcept {
    swap(other);
    return *this;
  }

  int fd() const { return fd_; }
  std::uint16_t port() const { return port_; }
  std::uint8_t tos() const { return tos_; }
  std::uint32_t receive_buffer_bytes() const { return receive_buffer_bytes_; }
  std::uint32_t send_buffer_bytes() const { return send_buffer_bytes_; }
  bool has_gro() const { return has_gro_; }
  // To the one that has this name now. False, with errno, where that is refused. Throws DeviceError where the system is
  // short of something.
  bool bind_interface(const std::string& name, bool v4) const;
  // The next such report. False when there is none left.
  bool next_error(SendError& out) const;
  // Bytes that were sent and have not left the machine, as the kernel accounts for them.
  std::uint32_t queued_bytes() const;

 private:
  void swap(Socket& other) {
    std::swap(fd_, other.fd_);
    std::swap(port_, other.port_);
    std::swap(tos_, other.tos_);
    std::swap(receive_buffer_bytes_, other.receive_buffer_bytes_);
    std::swap(send_buffer_bytes_, other.send_buffer_bytes_);
    std::swap(has_gro_, other.has_gro_);
  }
  void bind_to(const SocketConfig& plan);
  void set_buffers(const SocketConfig& plan);
  void set_options(const SocketConfig& plan);

  int fd_ = -1;
  std::uint16_t port_ = 0;
  std::uint8_t tos_ = 0;
  std::uint32_t receive_buffer_bytes_ = 0;
  std::uint32_t send_buffer_bytes_ = 0;
  bool has_gro_ = false;
};

}  // namespace softmrc::udp
