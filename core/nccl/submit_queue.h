// Carries what NCCL's threads post into a lane, and what happens there back to whom it belongs. A thread of NCCL only
// links an order to a list and, if the lane sleeps, wakes it; everything else happens in the lane's own thread.
#pragma once

#include <atomic>
#include <unordered_map>

#include "host/node.h"
#include "udp/device.h"

namespace softmrc::nccl {

class Comm;

// Something to be written by one end of a comm, or that end's end. It belongs to the comm, which does not ask for it
// again before it has been carried out.
struct SendOrder {
  SendOrder* next = nullptr;
  Comm* comm = nullptr;
  std::uint32_t end = 0;
  bool is_error = false;
  proto::WorkRequest request;
};

class SubmitQueue final : public proto::ProgressHandler {
 public:
  SubmitQueue(host::Node& node, std::uint32_t lane);

  // From any thread.
  void submit(SendOrder& order) {
    order.next = orders_.load(std::memory_order_relaxed);
    while (!orders_.compare_exchange_weak(order.next, &order, std::memory_order_release, std::memory_order_relaxed)) {}
    lane_.request_progress();
  }

  udp::Lane& lane() { return lane_; }
  // With the engine to oneself. A comm's completions are its own from here on, until it is removed. An end that fails
  // gives orders to all others: only when a comm is removed from all its lanes, and what they have is carried out, is
  // none of its own left.
  void add(std::uint32_t qpn, Comm& comm, std::uint32_t end) { owners_[qpn] = {&comm, end}; }
  void remove(std::uint32_t qpn) { owners_.erase(qpn); }
  bool drain(proto::Endpoint& engine, Time now);

  bool progress(proto::Endpoint& engine, Time now) override;
  Time deadline() const override { return Time::never(); }

 private:
  struct QpOwner {
    Comm* comm = nullptr;
    std::uint32_t end = 0;
  };

  udp::Lane& lane_;
  const std::uint32_t cq_;
  std::atomic<SendOrder*> orders_{nullptr};  // the newest first
  std::unordered_map<std::uint32_t, QpOwner> owners_;
  Time next_check_at_{};  // when comms that wait are looked at next
};

}  // namespace softmrc::nccl
