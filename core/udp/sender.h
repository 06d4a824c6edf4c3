// From Transmits to GSO batches. A batch is gathered first and then sent socket by socket, so that packets which share
// a path leave as one GSO batch (UDP GSO) even where the spraying alternates paths with every packet. Order on a path
// is kept.
//
//   a GSO batch:  header | payload | pad ICRC header | payload | pad ICRC     payloads are the user's own memory
//   encrypted:    header payload tag header payload tag                   all of it copied, encrypted, into ours
#pragma once

#include <memory>
#include <vector>

#include "proto/transmit.h"
#include "udp/gso.h"
#include "udp/peer_book.h"
#include "udp/plane.h"
#include "udp/protector_table.h"
#include "wire/frame.h"

namespace softmrc::udp {

struct SenderConfig {
  bool icrc = true;
  bool gso = true;
  wire::DscpMap dscp;
  bool ecn = true;
};

class Sender {
 public:
  static constexpr std::uint32_t batch_packets = 256;

  Sender(const SenderConfig& plan, std::vector<Plane>& planes, const PeerBook& peers, ProtectorTable& seals);

  // Where the engine writes the next packet; `take` then accepts it.
  proto::Transmit& slot() { return packets_[count_].transmit; }
  void take();
  bool is_full() const { return count_ == batch_packets; }
  bool empty() const { return count_ == 0; }
  void flush(Time now);

 private:
  static constexpr std::uint32_t none = ~0u;
  static constexpr std::size_t max_gathered_bytes = 4 * max_gso_bytes;  // before they are handed to the kernel

  struct Pending {
    proto::Transmit transmit;
    std::uint32_t next = none;
  };
  // The packets of one socket in this batch, in order.
  struct SocketQueue {
    std::uint32_t first = none;
    std::uint32_t last = none;
    std::uint8_t plane = 0;
    std::uint8_t socket = 0;
  };

  std::uint8_t tos_of(proto::TrafficClass traffic_class) const;
  // Returns the packet's size.
  std::uint32_t append(const SocketQueue& queue, const proto::Transmit& transmit, Time now);
  bool joins_last(const Plane& plane, const proto::Transmit& transmit, const PeerPlane& peer, std::uint32_t size,
                  std::uint8_t tos) const;
  GsoBatch& start_batch(const proto::Transmit& transmit, const PeerPlane& peer, std::uint32_t size, std::uint8_t tos);
  void send_queue(SocketQueue& queue, Time now);
  void make_room_for_payloads();

  SenderConfig plan_;
  std::vector<Plane>& planes_;
  const PeerBook& peers_;
  ProtectorTable& protectors_;

  std::unique_ptr<Pending[]> packets_;
  std::uint32_t count_ = 0;
  std::vector<SocketQueue> queues_;
  std::vector<std::uint32_t> first_queue_;  // of each plane
  std::vector<std::uint32_t> active_;

  // The GSO batches being built for one socket.
  std::vector<GsoBatch> batches_;
  const wire::EvBytes* last_wide_ = nullptr;  // the SRv6 path of the last one, or none
  std::vector<iovec> pieces_;
  std::vector<std::uint8_t> scratch_;
  std::size_t scratch_used_ = 0;
  std::vector<Destination> along_;  // where batches go that take an SRv6 path
};

}  // namespace softmrc::udp
