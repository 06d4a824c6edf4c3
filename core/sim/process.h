// The process that drives an endpoint, as the socket driver's thread does it (udp/lane_drive.cpp): packets wait in one
// queue per plane until it gets round to them; what it takes from them together is one batch; what it polls leaves
// together, later. Every step takes time, and now and then another process has the processor.
//
//   a turn   look at the planes, unless some had more than was taken
//            of each in turn: take what waits, up to a bound, and hand it in
//            end the batch, unless a plane had more; then look again, and it stays open through what follows
//            timers, and the progress handlers
//            some times at most: poll until nothing comes or the hand is full; let it leave; say if that took long
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/prng.h"
#include "base/time.h"
#include "proto/endpoint.h"

namespace softmrc::sim {

struct ProcessConfig {
  std::uint32_t max_received = 0;  // packets taken from a plane at a time; 0: no process, all happens at once
  std::uint32_t max_waiting = 0;   // packets that a plane's queue holds, more are lost; 0: any number
  std::uint32_t max_sent = 256;    // packets polled before they leave
  std::uint32_t port_burst = 0;    // packets for one plane before it is checked for room again; 0: any number
  Duration pace{0};                // every step takes up to this long
  double hold_up = 0;              // share of steps in which the process loses its core ...
  Duration hold_up_time{0};        // ... for up to this long
};

class Process {
 public:
  // What lies around it: a packet by its number, and the network.
  struct Surroundings {
    virtual ~Surroundings() = default;
    virtual void hand_in(std::uint32_t packet) = 0;
    virtual void leave(const proto::Transmit& transmit) = 0;
    virtual std::uint32_t free_ports() = 0;
    // When another port than these has room, as of the last question.
    virtual Time next_free_port() const = 0;
    // The progress handlers look at what came in; true when that is not all they have to do. And when they want to be
    // called even if nothing comes.
    virtual bool progress() { return false; }
    virtual Time progress_handlers_at() const { return Time::never(); }
  };

  Process() = default;
  Process(const ProcessConfig& config, std::uint32_t planes, Prng prng)
      : config_(config), waiting_(planes), prng_(prng) {}

  bool exists() const { return config_.max_received != 0; }

  // A packet reached this plane's queue. False: there was no room.
  [[nodiscard]] bool arrive(Time now, std::uint32_t plane, std::uint32_t packet);
  // The endpoint was given something from outside.
  void kick(Time now);
  // When `step` wants to be called.
  Time next_at(proto::Endpoint& endpoint, const Surroundings& around) const;
  void step(Time now, proto::Endpoint& endpoint, Surroundings& around);

  // When what leaves now was polled.
  Time polled_at() const { return polled_at_; }

  // It died: what it held is gone. Calls `drop` with each packet that waited.
  template <typename Drop>
  void die(Drop drop) {
    for (auto& queue : waiting_)
      for (std::uint32_t packet : queue) drop(packet);
    *this = Process(config_, static_cast<std::uint32_t>(waiting_.size()), prng_);
  }

 private:
  enum class Doing : std::uint8_t { sleeping, receiving, polling, sending };

  Duration lapse();
  std::uint32_t planes_with_packets() const;
  void look(proto::Endpoint& endpoint);
  void receive(Time now, proto::Endpoint& endpoint, Surroundings& around);
  void poll(Time now, proto::Endpoint& endpoint, Surroundings& around);
  void send(Time now, proto::Endpoint& endpoint, Surroundings& around);

  ProcessConfig config_;
  std::vector<std::deque<std::uint32_t>> waiting_;  // by plane
  Prng prng_;
  Doing doing_ = Doing::sleeping;
  Time resumes_at_{};              // while it does something
  Time woken_at_ = Time::never();  // while it sleeps: when the first reason to wake showed
  Duration waking_{0};             // how long that takes
  std::uint32_t ready_ = 0;        // planes still to be received from
  std::uint32_t more_ = 0;         // planes that had more
  std::uint32_t turns_in_batch_ = 0;
  std::vector<proto::Transmit> hand_;  // polled, not yet left
  Time polled_at_{};
  std::uint32_t rounds_ = 0;  // of polling, this turn
};

}  // namespace softmrc::sim
