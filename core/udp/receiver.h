// From the kernel to datagrams: takes many messages at once, splits the GSO batches that the kernel coalesced (UDP
// GRO), and says of each packet who sent it and how the network treated it. The packet's bytes stay where the kernel
// put them until the engine copies them to their final place.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <memory>
#include <vector>

#include "udp/socket.h"
#include "udp/stats.h"

namespace softmrc::udp {

// One message of the kernel: a GSO batch of packets of `segment` bytes, the last one perhaps shorter.
struct GroBatch {
  const sockaddr_storage* from = nullptr;
  wire::MutableBytes bytes;  // in this receiver's memory, where packets may be opened
  std::uint32_t segment = 0;
  std::uint8_t tos = 0;

  std::size_t packets() const { return (bytes.size() + segment - 1) / segment; }
};

class Receiver {
 public:
  Receiver();

  // Takes what waits, up to a batch, counts it, and leaves out what cannot be packets. The messages stay valid until
  // the next call.
  const std::vector<GroBatch>& receive(const Socket& socket, PlaneStats& stats);
  // The last call left more behind, in all likelihood.
  bool may_have_more() const { return may_have_more_; }

 private:
  // A batch stays well below the size of a second-level cache, or the copy to its final place would read main memory.
  static constexpr std::size_t max_bytes = 192 * 1024;
  static constexpr std::uint32_t max_messages = 64;
  static constexpr std::uint32_t few_messages = 2;
  static constexpr std::size_t message_bytes = 65'536;

  struct Free {
    void operator()(std::uint8_t* p) const;
  };

  std::unique_ptr<std::uint8_t, Free> memory_;
  std::vector<mmsghdr> headers_;
  std::vector<iovec> pieces_;
  std::vector<sockaddr_storage> names_;
  std::vector<std::uint8_t> controls_;
  std::vector<GroBatch> incoming_;
  std::uint32_t batch_ = few_messages;
  bool may_have_more_ = false;
};

}  // namespace softmrc::udp
