// Queue pairs that were destroyed, and what they still answer: what they took has arrived, and they take no more.
// A peer whose last acknowledgement was lost asks again, perhaps after the queue pair is gone. Without an answer it
// would wait until its retries end, and then report as failed what has arrived.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/id_table.h"
#include "base/ring.h"
#include "base/serial.h"
#include "base/time.h"
#include "proto/transmit.h"

namespace softmrc::proto {

// All that is left of a queue pair.
struct TimeWaitState {
  std::uint32_t qpn = 0;
  std::uint32_t dest_qpn = 0;
  std::uint32_t peer = no_peer;
  Psn cack;                     // everything up to here has arrived
  std::uint16_t confirmed = 0;  // the newest message that has
  bool has_confirmed = false;
  // The reverse paths that it had: ports that may be used, and what to use there.
  std::uint32_t open_ports = ~0u;
  std::vector<std::uint32_t> entropies;  // by port
  std::vector<wire::EvBytes> wide;       // by port, where paths are SRv6's
  Time until{};                          // when no request is expected any more
};

// spec: departed
class TimeWait {
 public:
  enum class Handled : std::uint8_t { not_ours, wrong_peer, late_answer, answered, refused };

  void add(TimeWaitState state, Time now);
  // The number is used again.
  void forget(std::uint32_t qpn);
  bool empty() const { return order_.empty(); }
  // Those that were not requested until their time was over are dropped.
  void handle_timeout(Time now);
  Time deadline() const { return order_.empty() ? Time::never() : states_[order_.front()].until; }
  // The peer of one that was dropped; each counts once. Ask until there is none.
  std::optional<std::uint32_t> poll_expired();

  // A packet for a queue pair that does not exist. An acknowledgement is no question: a peer that closes
  // repeats its last one unasked. It gets no answer and is no fault.
  Handled handle(const wire::Packet& packet, const Arrival& arrival);
  // An acknowledgement that the queue pair still owed.
  void owe_ack(std::uint32_t qpn, std::uint8_t port);
  // Says once more, unasked, what each queue pair took; by another port for each `turn`, since one may be dead.
  void repeat(std::uint32_t turn);
  bool has_answer() const { return !answers_.empty(); }
  // `live_ports` says of a peer on which ports it can receive.
  template <typename LivePorts>
  bool poll(std::uint32_t free_ports, const LivePorts& live_ports, Transmit& out) {
    for (std::size_t turns = answers_.size(); turns; --turns) {
      const Answer answer = answers_.front();
      answers_.pop();
      const TimeWaitState& state = states_[answer.place];
      if (state.qpn != answer.qpn || state.open_ports == 0) continue;  // overwritten since, or may send nothing
      const std::uint32_t live = state.open_ports & live_ports(state.peer);
      const std::uint32_t ports = free_ports & (live ? live : state.open_ports);
      if (ports) {
        fill(answer, ports, out);
        return true;
      }
      answers_.push(answer);  // its ports are busy: others go first
    }
    return false;
  }

 private:
  // The newest are kept, and each for as long as a device that closes would stay to answer: who has not asked by then,
  // or after so many others, is not going to.
  static constexpr std::size_t max_kept = 4096;
  static constexpr Duration lasts = seconds(3);
  // A peer that floods us with questions must not make us hoard; it will ask again.
  static constexpr std::size_t max_answers = 1024;

  struct Answer {
    std::uint32_t place = 0;
    std::uint32_t qpn = 0;
    Psn refused;  // the packet that is not taken
    std::uint32_t entropy = 0;
    std::uint16_t ticks = 0;
    std::uint8_t port = 0;
    bool is_refusal = false;
  };

  void drop_oldest();
  void answer(const Answer& answer);
  void fill(const Answer& answer, std::uint32_t free_ports, Transmit& out) const;

  IdTable places_;  // of queue pairs, in states_
  std::vector<TimeWaitState> states_;
  std::vector<std::uint32_t> free_places_;
  Ring<std::uint32_t> order_;    // places, oldest first
  Ring<std::uint32_t> dropped_;  // their peers
  Ring<Answer> answers_;
};

}  // namespace softmrc::proto
