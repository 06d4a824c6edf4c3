// The rival: RoCEv2 Reliable Connection as it is deployed. A queue pair takes one path, keeps strict order (go-back-N)
// and paces itself by DCQCN; a pair of hosts may spread a message over several queue pairs. Lossless operation, where
// wanted, is the network's part (PFC).
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "base/time.h"
#include "sim/baselines/round_robin.h"

namespace softmrc::sim {

struct RoceConfig {
  std::uint32_t qps_per_pair = 1;
  bool dcqcn = true;
  bool pfc = true;
  std::uint32_t pfc_xoff_bytes = 0;  // per incoming link; 0: half the queue
  std::uint32_t pfc_xon_bytes = 0;   // 0: three quarters of xoff
  std::uint32_t ack_every_packets = 8;
  Duration retransmit_timeout = microseconds(500);
  std::uint32_t max_retries = 7;  // then the connection breaks
  Duration cnp_interval = microseconds(50);
  Duration alpha_interval = microseconds(55);
  Duration increase_interval = microseconds(55);
  std::uint64_t increase_bytes = 10'000'000;
  double gain = 1.0 / 256;
  double additive_share = 0.005;  // of the line rate, per additive step
  double hyper_share = 0.05;
  double min_rate_share = 0.001;
  std::uint64_t line_rate_bps = 0;  // of one port
};

struct RocePacket {
  enum class Kind : std::uint8_t { data, ack, nak, cnp };
  Kind kind = Kind::data;
  std::uint32_t qp = 0;   // same number on both ends
  std::uint32_t psn = 0;  // data: its own; ack: the next expected; nak: the one missing
  std::uint32_t flow = 0;
  std::uint32_t offset = 0;
  std::uint32_t bytes = 0;
  bool is_last = false;  // of its part of a flow: asks for an acknowledgement
};

struct RoceSend {
  RocePacket packet;
  std::uint32_t destination = 0;
  std::uint32_t entropy = 0;  // fixed per queue pair: it is what ECMP hashes
  std::uint8_t port = 0;
};

// What a host reports to its driver.
struct RoceObserver {
  virtual ~RoceObserver() = default;
  virtual void on_roce_placed(const RocePacket& packet, std::uint8_t port) = 0;
  virtual void on_roce_acknowledged(std::uint32_t flow, std::uint32_t bytes) = 0;
  virtual void on_roce_broken(std::uint32_t qp) = 0;
};

class RoceHost {
 public:
  RoceHost(const RoceConfig& config, std::uint32_t mtu, RoceObserver& observer)
      : config_(config), mtu_(mtu), observer_(observer) {}

  // A sending queue pair to `destination`; numbers are unique in the network.
  void open(std::uint32_t qp, std::uint32_t destination, std::uint32_t entropy, std::uint8_t port);
  // The answering side, whose acknowledgements take the same path back.
  void accept(std::uint32_t qp, std::uint32_t source, std::uint32_t entropy, std::uint8_t port);

  // Part of a flow: `bytes` from `offset`, over one queue pair.
  void post(Time now, std::uint32_t qp, std::uint32_t flow, std::uint32_t offset, std::uint32_t bytes);
  void handle(Time now, const RocePacket& packet, bool congestion);
  // Replies may leave on `free_ports`, data only on `data_ports`: those that PFC does not pause.
  bool poll(Time now, std::uint32_t free_ports, std::uint32_t data_ports, RoceSend& out);
  void handle_timeout(Time now);
  // The next moment that needs handle_timeout or poll. What may leave already waits for a port, not for the clock.
  Time deadline(Time now);

  std::uint64_t retransmitted() const { return retransmitted_; }

 private:
  struct Segment {
    std::uint32_t flow = 0;
    std::uint32_t offset = 0;
    std::uint32_t bytes = 0;
    std::uint32_t first_psn = 0;
  };
  struct RoceSender {
    std::uint32_t qp = 0, destination = 0, entropy = 0;
    std::uint8_t port = 0;
    bool is_broken = false;
    std::deque<Segment> segments;  // front: the oldest not fully acknowledged
    std::uint32_t next_psn = 0;    // to send
    std::uint32_t end_psn = 0;     // one past the last posted
    std::uint32_t acked_psn = 0;   // everything before is confirmed
    std::uint32_t highest_sent = 0;
    std::uint32_t retries = 0;
    Time send_at{};  // pacing
    Time progress_at{};
    // DCQCN
    double rate_bps = 0, target_bps = 0, alpha = 1;
    std::uint32_t timer_stages = 0, byte_stages = 0;
    std::uint64_t bytes_since = 0;
    Time alpha_at = Time::never();  // when alpha next decays; worked off when it is needed
    Time increase_at = Time::never();
  };
  struct RoceReceiver {
    std::uint32_t qp = 0, source = 0, entropy = 0;
    std::uint8_t port = 0;
    std::uint32_t expected = 0;
    std::uint32_t unacknowledged = 0;
    bool gap_reported = false;
    bool ack_due = false;
    bool nak_due = false;
    bool cnp_due = false;
    Time cnp_at = Time::long_ago();
  };

  std::uint32_t packets_of(std::uint32_t bytes) const { return (bytes + mtu_ - 1) / mtu_; }
  void on_data(Time now, RoceReceiver& r, const RocePacket& packet, bool congestion);
  void on_acknowledged(Time now, RoceSender& s, std::uint32_t psn);
  void on_cnp(Time now, RoceSender& s);
  void raise_rate(RoceSender& s, std::uint32_t stages);
  bool poll_reply(std::uint32_t free_ports, RoceSend& out);
  void send_next(Time now, RoceSender& s, RoceSend& out);
  void retry(Time now, RoceSender& s);
  void reschedule(RoceSender& s);
  void wake_paced(Time now);

  RoceConfig config_;
  std::uint32_t mtu_;
  RoceObserver& observer_;
  std::vector<RoceSender> senders_;
  std::vector<RoceReceiver> receivers_;
  std::unordered_map<std::uint32_t, std::uint32_t> sender_of_;
  std::unordered_map<std::uint32_t, std::uint32_t> receiver_of_;
  std::deque<std::uint32_t> replies_;  // receivers that owe something
  RoundRobin ready_;                   // senders that may send as soon as their port is free
  TimerTree paced_;                    // senders that have something to send, later
  TimerTree timers_;                   // a sender's next retransmission timeout or increase
  std::uint64_t retransmitted_ = 0;
};

}  // namespace softmrc::sim
