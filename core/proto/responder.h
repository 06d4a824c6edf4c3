// The receiving half of a queue pair: the window rules, placement in any order, release in order, immediates.
//
//   PSN against the window [e, e + MPR)     what happens
//   older than e                            transport ACK and SACK again
//   inside, seen before                     SACK
//   inside, new                             place, remember, SACK when it is time
//   beyond                                  drop, NACK out-of-window
//
// Packets are placed in any order; whether they make whole messages, numbered as they should be, is judged when their
// turn comes.
#pragma once

#include <cstdint>

#include "base/window_bitmap.h"
#include "proto/ack_generator.h"
#include "proto/completion.h"
#include "proto/config.h"
#include "proto/context.h"
#include "proto/memory.h"
#include "proto/time_wait.h"

namespace softmrc::proto {

class Responder {
 public:
  Responder(QpContext& context, const EndpointConfig& config, const Memory& memory, CompletionQueue& completions)
      : context_(context),
        config_(config),
        memory_(memory),
        completions_(completions),
        acks_(config.sack_threshold_bytes, config.sack_gap) {}

  void start(const RtrAttributes& attributes);

  // As many as their 16-bit numbers tell apart.
  static constexpr std::size_t max_receives = 1 << 16;
  void post_receive(std::uint64_t wr_id) { receives_.push(wr_id); }
  void post_receives(std::uint64_t wr_id, std::uint32_t count) { receives_.push(count, wr_id); }
  std::size_t receives_posted() const { return receives_.size(); }
  bool uses(const CompletionQueue& cq) const { return &completions_ == &cq; }

  // Anything but success means that the queue pair must go to error; the refusal for the peer is already queued.
  [[nodiscard]] CompletionStatus on_write(Time now, const wire::Bth& bth, const wire::Write& write,
                                          const Arrival& arrival);
  void on_trimmed(Time now, const wire::Bth& bth, const wire::Write& write, const Arrival& arrival);
  void on_probe(const wire::Probe& probe, const Arrival& arrival);
  // A packet for a queue pair that is in error: tell the peer, so that it need not wait for its timer.
  void refuse_in_error(const wire::Bth& bth, const Arrival& arrival);

  // See Endpoint::prefetch_state.
  void prefetch_state() const {
    received_.prefetch_state(expected_.value);
    unreported_.prefetch_state(expected_.value >> 6);
  }

  // When a reply becomes due by time alone.
  Time deadline() const { return acks_.deadline(); }
  void on_timer(Time now) { acks_.on_timer(now); }

  bool has_reply() const { return !acks_.empty(); }
  std::uint8_t reply_trigger_port() const { return acks_.next_port(); }
  // Fills in the next reply and names the port that its trigger came from.
  std::uint8_t take_reply(Time now, Transmit& out);

  // The window that SACKs offer from now on. What has been offered before stays good.
  void set_window(std::uint32_t mpr_units) {
    promised_ = edge();
    mpr_ = mpr_units;
  }
  void set_penalty(std::uint8_t penalty);
  void fail();

  TimeWaitState time_wait_state() const {
    return {context_.qpn,
            context_.dest_qpn,
            context_.peer,
            expected_ - 1,
            static_cast<std::uint16_t>(released_messages_ - 1),
            has_released_,
            ~0u,
            {},
            {}};
  }

  Psn expected() const { return expected_; }
  std::uint32_t out_of_order() const { return out_of_order_; }

 private:
  struct Immediate {
    std::uint32_t value = 0;
    std::uint32_t length = 0;
    Psn psn;
    std::uint16_t msn = 0;
    bool present = false;
  };
  // What a packet's headers say of its message.
  struct Part {
    std::uint16_t msn = 0;
    std::uint16_t rqmsn = 0;
    std::uint32_t packets : 29 = 0;  // in the whole message, by its length
    std::uint32_t is_first : 1 = 0;
    std::uint32_t is_last : 1 = 0;
    std::uint32_t has_imm : 1 = 0;
  };
  static_assert(sizeof(Part) == 8);

  CompletionStatus accept(Time now, const wire::Bth& bth, const wire::Write& write, const Trigger& trigger);
  CompletionStatus refuse(Time now, const Trigger& trigger, wire::Syndrome syndrome);
  bool is_well_formed(const wire::Bth& bth, const wire::Write& write) const;
  // The first PSN that is not accepted.
  Psn edge() const {
    const Psn now = expected_ + mpr_ * mpr_unit;
    return promised_ - now > 0 ? promised_ : now;
  }
  Part part_of(const wire::Bth& bth, const wire::Write& write) const;
  bool is_next(const Part& part) const;
  CompletionStatus release(Time now, const Trigger& trigger, Part part);
  bool complete_immediate(Psn psn);
  void fill_sack(Time now, const Reply& reply, Transmit& out);
  void fill_bitmap(const Reply& reply, wire::Sack& sack);
  Psn choose_base(const Reply& reply);
  bool has_news() const;

  QpContext& context_;
  const EndpointConfig& config_;
  const Memory& memory_;
  CompletionQueue& completions_;

  std::uint32_t mpr_ = 8;  // window, in units of 128 PSNs
  Psn promised_;           // the edge of a larger one that was offered before
  std::uint32_t max_wimm_ = 128;
  Psn expected_;                    // the oldest PSN not yet received
  Psn highest_;                     // the newest PSN received
  std::uint32_t out_of_order_ = 0;  // received beyond expected_
  WindowBitmap received_;
  SerialRing<Part> parts_;        // of what came out of order
  Part message_;                  // the first packet of the message that is being released
  std::uint32_t position_ = 0;    // and how many of its packets have been
  WindowBitmap unreported_;       // blocks of 64 PSNs in which something arrived since they were last reported
  std::uint32_t next_block_ = 0;  // where the search for one goes on, so that every block gets its turn
  std::uint64_t received_bytes_ = 0;
  std::uint16_t released_messages_ = 0;
  bool has_released_ = false;

  SerialRing<Immediate> immediates_;
  std::uint16_t next_rqmsn_ = 0;
  Ring<std::uint64_t> receives_;

  AckGenerator acks_;
  std::uint8_t penalty_ = 0;
  std::uint8_t restores_left_ = 0;  // SACKs that still carry restore_cwnd, in case one is lost
  bool is_first_packet_ = true;
};

}  // namespace softmrc::proto
