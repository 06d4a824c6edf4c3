// A line whose packets are recorded as they pass.
#pragma once

#include <memory>
#include <vector>

#include "udp/capture.h"
#include "udp/packet_io.h"

namespace softmrc::udp {

class Plane;

class CaptureTap final : public PacketIo {
 public:
  explicit CaptureTap(Plane& plane) : plane_(plane) {}
  void wrap(PacketIo& inner) { inner_ = &inner; }
  void set(std::shared_ptr<Capture> capture) { capture_ = std::move(capture); }
  bool is_on() const { return capture_ != nullptr; }

  void send(Time now, std::uint32_t socket, std::span<const GsoBatch> batches) override;
  void send_delayed(Time now) override { inner_->send_delayed(now); }
  Time deadline() const override { return inner_->deadline(); }
  std::span<const GroBatch> receive(Receiver& receiver) override;
  bool next_error(std::uint32_t socket, SendError& out) override { return inner_->next_error(socket, out); }

 private:
  const Plane& plane_;  // whose addresses the records bear
  PacketIo* inner_ = nullptr;
  std::shared_ptr<Capture> capture_;
  std::vector<iovec> pieces_;
};

}  // namespace softmrc::udp
