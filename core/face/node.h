// A device made of settings, and queue pairs on it as C faces want them: several, each in a lane, between two nodes that
// tell each other in an offer what the other has to know.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "face/bursts.h"
#include "face/bytes.h"
#include "face/planes.h"
#include "face/sealing.h"
#include "face/settings.h"
#include "udp/device.h"

namespace softmrc::face {

// One end of a queue pair of this node.
struct End {
  std::uint32_t lane = 0;
  std::uint32_t qpn = 0;
  std::uint32_t first_psn = 0;
  proto::Domain domain = 0;     // of memory, which the peer may write to
  std::uint64_t port_key = 0;   // what the peer's words about its ports must carry
  std::uint32_t peer = ~0u;     // once it is connected
  Share share;                  // of keys, where packets are sealed
};

// The other end, as its node tells of it.
struct FarEnd {
  std::uint32_t qpn = 0;
  std::uint32_t first_psn = 0;
  std::uint64_t port_key = 0;
  seal::Secret share{};         // where packets are sealed
  std::vector<udp::PeerPlane> planes;
};

struct Offer {
  std::uint32_t mtu = 0;
  bool icrc = true;
  bool is_sealed = false;
  seal::Cipher cipher{};        // which it is faster with, where packets are sealed
  std::uint32_t max_wimm = 0;
  std::uint32_t mpr = 0;
  std::vector<FarEnd> ends;
  Bytes more;                   // the face's own
};

constexpr std::size_t most_ends = 64;

Bytes encode(const Offer& offer);
// Throws Refusal where it makes no sense.
Offer decode_offer(std::span<const std::uint8_t> bytes);

// Numbers of the system's randomness.
std::uint64_t random_bits();

// Throws Refusal where no node can be made of them.
void check(const Settings& settings, const std::vector<LocalPlane>& planes);

class Node {
 public:
  // `kind` of face. Throws Refusal or udp::DeviceFailure.
  // `bursts`, if there are any, outlive it.
  Node(const std::string& kind, const Settings& settings, std::vector<LocalPlane> planes, std::uint32_t lanes, const Bursts* bursts = nullptr);
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  udp::Device& device() { return *device_; }
  const std::vector<LocalPlane>& planes() const { return planes_; }
  std::uint32_t mtu() const { return mtu_; }
  bool is_sealed() const { return is_sealed_; }
  std::uint32_t cq() const { return cq_; }
  bool stays_here() const;
  // Where its control socket is, or why there is none.
  const std::string& control() const { return control_; }

  // A queue pair in RESET, whose peer may write to the memory of this domain.
  End open(std::uint32_t lane, proto::Domain domain);
  Offer offer(std::span<const End> ends, Bytes more);
  // Refuses an offer that does not fit this node.
  void check(const Offer& offer);
  // To RTS, with so many receives posted: both may write from here on. Throws Refusal.
  void connect(End& end, const Offer& theirs, std::size_t number, std::uint32_t receives);
  void close(End& end);

  // Memory that peers may write to; the key that they need.
  std::uint32_t offer_memory(void* data, std::size_t size, proto::Domain domain);

  // In a forked child. Nothing else may be called after it.
  void abandon();

 private:
  struct Profiles {
    bool is_made = false;
    std::uint32_t evs = 0;
    std::uint32_t control = 0;
  };

  udp::DevicePlan plan(const Settings& settings, std::uint32_t lanes) const;
  std::vector<udp::PeerPlane> reached_at(std::uint32_t lane);
  const Profiles& profiles_of(std::uint32_t lane);
  proto::EvProfile ev_profile() const;
  void init(const End& end, const std::vector<udp::PeerPlane>& peer);
  void open_control(const std::string& kind, bool is_wanted, const Bursts* bursts);

  std::vector<LocalPlane> planes_;
  DeviceSettings settings_;
  std::shared_ptr<const FabricHost> fabric_;
  std::shared_ptr<const Denylist> denylist_;
  std::string secret_;
  bool is_sealed_;
  std::uint32_t mtu_;
  std::unique_ptr<udp::Device> device_;
  std::string control_;
  std::uint32_t cq_ = 0;
  std::mutex mutex_;              // for what follows
  std::vector<Profiles> profiles_;
};

}  // namespace softmrc::face
