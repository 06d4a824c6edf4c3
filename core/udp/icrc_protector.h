// The ICRC, which ends packets that nothing else closes; or four zero bytes in its place, which are ignored.
#pragma once

#include <array>
#include <cstddef>

#include "udp/packet_protector.h"

namespace softmrc::udp {

class IcrcProtector final : public PacketProtector {
 public:
  std::uint32_t overhead() const override;
  bool seal(Time now, OutgoingPacket& packet) override;
  void begin(const Origin& origin) override;
  proto::Integrity open(Time now, wire::MutableBytes& packet, std::uint32_t& qpn) override;
  void on_peers_removed() override { seeds_.fill({}); }

 private:
  std::uint32_t seed_of(const OutgoingPacket& packet, std::size_t size);

  // The checksum of everything in front of BTH, which all packets of one flow and size share.
  struct Seed {
    const PeerPlane* peer = nullptr;
    std::uint16_t source_port = 0;
    std::size_t size = 0;
    std::uint32_t state = 0;
  };
  std::array<Seed, 64> seeds_{};
  Origin origin_;
  std::size_t opened_size_ = 0;  // of the last packet, of which `opened_seed_` is
  std::uint32_t opened_seed_ = 0;
};

class NullProtector final : public PacketProtector {
 public:
  std::uint32_t overhead() const override;
  bool seal(Time now, OutgoingPacket& packet) override;
  void begin(const Origin& origin) override { is_trimmed_ = origin.is_trimmed; }
  proto::Integrity open(Time now, wire::MutableBytes& packet, std::uint32_t& qpn) override;
  void on_peers_removed() override {}

 private:
  bool is_trimmed_ = false;
};

}  // namespace softmrc::udp
