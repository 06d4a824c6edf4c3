// What the driver sees of a plane: GSO batches leave by it, and messages come in. The plane itself (plane.h) is the
// plain one, on its sockets. Others wrap one and do something to what passes: faults (fault_injector.h), captures
// (capture_tap.h). They are put on and taken off, so that code that moves packets need not check for them.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <span>
#include <vector>

#include "base/time.h"
#include "udp/receiver.h"
#include "udp/socket.h"
#include "wire/route.h"

namespace softmrc::udp {

// One message for the kernel: packets of `segment` bytes, the last one perhaps shorter, side by side in pieces of
// memory.
struct GsoBatch {
  const Destination* to = nullptr;
  const wire::Address* address = nullptr;  // the peer's, which `to` is not where it is an SRv6 path
  iovec* pieces = nullptr;
  std::uint32_t piece_count = 0;
  std::uint32_t segment = 0;
  std::uint32_t bytes = 0;
  std::uint32_t packets = 0;
  std::uint8_t tos = 0;

  // The packets that these bytes of it are. `into` has their pieces.
  GsoBatch part(std::uint32_t begin, std::uint32_t end, std::vector<iovec>& into) const;
  // Calls back with each of its packets.
  template <typename F>
  void for_each_packet(std::vector<iovec>& pieces_of_one, F f) const {
    for (std::uint32_t at = 0; at < bytes; at += segment) f(part(at, std::min(at + segment, bytes), pieces_of_one));
  }
};

// A GSO batch's bytes, for when the memory that it was in may be gone.
struct OwnedGsoBatch {
  OwnedGsoBatch(std::uint32_t socket, const GsoBatch& batch);
  // Valid while this one stays where it is.
  GsoBatch batch();

  std::uint32_t socket;
  std::uint32_t segment;
  std::uint8_t tos;
  Destination to;
  wire::Address address;
  std::vector<std::uint8_t> bytes;

 private:
  iovec piece_{};
};

class PacketIo {
 public:
  virtual ~PacketIo() = default;

  // Takes all of them, whether there is room or not; what they point to is the caller's again.
  virtual void send(Time now, std::uint32_t socket, std::span<const GsoBatch> batches) = 0;
  // Goes on with what it has taken, as far as it is time for that and there is room.
  virtual void send_delayed(Time now) = 0;
  // When it will be time.
  virtual Time deadline() const = 0;
  // What waits, up to a batch. Valid until the receiver is used again.
  virtual std::span<const GroBatch> receive(Receiver& receiver) = 0;
  // The next report on packets that were sent by this socket. False when there is none left.
  virtual bool next_error(std::uint32_t socket, SendError& out) = 0;
};

}  // namespace softmrc::udp
