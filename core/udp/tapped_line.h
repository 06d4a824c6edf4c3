// A line whose packets are recorded as they pass.
#pragma once

#include <memory>
#include <vector>

#include "udp/capture.h"
#include "udp/line.h"

namespace softmrc::udp {

class Plane;

class TappedLine final : public Line {
 public:
  explicit TappedLine(Plane& plane) : plane_(plane) {}
  void wrap(Line& inner) { inner_ = &inner; }
  void set(std::shared_ptr<Capture> capture) { capture_ = std::move(capture); }
  bool is_on() const { return capture_ != nullptr; }

  void send(Time now, std::uint32_t socket, std::span<const Train> trains) override;
  void send_held(Time now) override { inner_->send_held(now); }
  Time deadline() const override { return inner_->deadline(); }
  std::span<const Incoming> receive(Receiver& receiver) override;
  bool next_error(std::uint32_t socket, SendError& out) override { return inner_->next_error(socket, out); }

 private:
  const Plane& plane_;           // whose addresses the records bear
  Line* inner_ = nullptr;
  std::shared_ptr<Capture> capture_;
  std::vector<iovec> pieces_;
};

}  // namespace softmrc::udp
