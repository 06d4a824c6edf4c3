// A plane as one device sees it: a local address, the interface behind it, and a small pool of sockets. All but the
// first only send; their source ports are what an ECMP network hashes, so a socket is a path.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "udp/capture_tap.h"
#include "udp/fault_injector.h"
#include "udp/packet_io.h"
#include "udp/socket.h"
#include "udp/stats.h"

namespace softmrc::udp {

struct PlaneConfig {
  wire::Address address;
  std::uint32_t scope_id = 0;
  std::uint16_t port = 0;
  std::string interface;  // bind to it; empty: follow the routes
  std::string link;       // the interface that has the address, whose state is watched; may be empty
  std::uint32_t sockets = 1;
  bool is_any_local = false;
  std::uint32_t buffer_bytes = 8 << 20;
  std::uint32_t send_buffer_bytes = 0;
};

// Plain, it calls the kernel and counts. What finds no room stays here as bytes, since the user's memory may be gone
// when room comes.
class Plane final : public PacketIo {
 public:
  Plane() { rebuild_chain(); }
  Plane(const Plane&) = delete;
  Plane& operator=(const Plane&) = delete;

  PlaneConfig plan;
  std::uint32_t number = 0;
  std::vector<Socket> sockets;
  std::uint32_t link_index = 0;   // whose state is watched
  std::uint32_t bound_index = 0;  // which the sockets are bound to
  int blocked_socket = -1;        // the one without room; the plane takes nothing until it has some
  int watched_socket = -1;        // the one whose room the driver waits for
  bool is_blocked() const { return blocked_socket >= 0; }
  bool has_room() const { return !is_blocked() && backlog_.empty(); }
  // Whether GSO batches are given to the kernel whole. Not for a while after it refused one, and then they are tried
  // again: what it refused may be a route that was gone for a moment, and not what the interface can do.
  bool has_gso = true;
  PlaneStats stats;

  // The interface that its packets take, or that has its address. Empty: none is configured.
  const std::string& link() const { return plan.interface.empty() ? plan.link : plan.interface; }
  // The interface was created again under the same name: another index, to which the sockets have yet to be bound.
  // False where the system refuses that, as it does without CAP_NET_RAW: such sockets reach no peer. Nothing where the
  // system is too short of something to say: ask again.
  std::optional<bool> rebind_interface();
  // The socket that carries this EV: the one whose source port it names, or any fixed one.
  std::uint32_t socket_of(std::uint32_t entropy) const {
    const auto port = static_cast<std::uint16_t>(entropy);
    for (std::uint32_t i = 0; i < sockets.size(); ++i)
      if (sockets[i].port() == port) return i;
    return entropy % static_cast<std::uint32_t>(sockets.size());
  }

  // What the driver uses: this plane, tapped if there is a capture, and outside of that with faults, if there are any.
  PacketIo& io() { return *io_; }
  // What faults that end have held back is sent.
  void set_faults(Time now, const Faults& faults);
  void set_capture(std::shared_ptr<Capture> capture);
  void set_up_faults(std::uint64_t seed, const wire::DscpMap& dscp) { fault_injector_.set_up(seed, number, dscp); }
  const FaultStats& fault_stats() const { return fault_injector_.stats(); }

  void send(Time now, std::uint32_t socket, std::span<const GsoBatch> batches) override;
  void send_delayed(Time now) override;
  Time deadline() const override { return Time::never(); }
  std::span<const GroBatch> receive(Receiver& receiver) override { return receiver.receive(sockets[0], stats); }
  bool next_error(std::uint32_t socket, SendError& out) override { return sockets[socket].next_error(out); }

 private:
  // How many of them are settled: sent, or refused. The rest needs room, or has to go packet by packet.
  std::size_t send_batches(Time now, std::uint32_t socket, std::span<const GsoBatch> batches);
  std::size_t send_batches_some(Time now, std::uint32_t socket, std::span<const GsoBatch> batches);
  void pause_gso(Time now);
  void try_gso(Time now);
  void rebuild_chain();

  std::deque<OwnedGsoBatch> backlog_;
  Time tries_gso_at_ = Time::never();
  Duration gso_pause_{};  // the last one; none since a batch was taken
  bool has_faults_ = false;
  FaultInjector fault_injector_;
  CaptureTap capture_tap_{*this};
  PacketIo* io_;
};

}  // namespace softmrc::udp
