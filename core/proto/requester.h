// The sending half of a queue pair: cuts messages into packets, chooses a path for each at the moment it is sent,
// retransmits what is lost and completes operations in order. It never calls the responder half.
#pragma once

#include <array>
#include <cstdint>

#include "base/prefetch.h"
#include "base/window_bitmap.h"
#include "proto/completion.h"
#include "proto/config.h"
#include "proto/context.h"
#include "proto/ev_prober.h"
#include "proto/ev_set.h"
#include "proto/loss.h"
#include "proto/probe_timeout.h"
#include "proto/rtt.h"
#include "proto/send_queue.h"
#include "proto/sent_ring.h"
#include "proto/slow_ports.h"
#include "proto/transmit.h"
#include "proto/windows.h"

namespace softmrc::proto {

enum class PostStatus : std::uint8_t { ok, wrong_state, queue_full };

class Requester {
 public:
  Requester(QpContext& context, const EndpointConfig& config, const EvProfile& ev_profile, const CcProfile& cc_profile,
            CompletionQueue& completions)
      : context_(context),
        config_(config),
        ev_profile_(ev_profile),
        cc_profile_(cc_profile),
        completions_(completions) {}
  ~Requester() {
    if (has_work()) --context_.endpoint->senders;
  }
  Requester(const Requester&) = delete;
  Requester& operator=(const Requester&) = delete;

  void start(const RtsAttributes& attributes);
  // By the size of packets, before any was sent.
  void start_windows();

  PostStatus post(Time now, const WorkRequest& request);

  enum class Poll : std::uint8_t { sent, idle, no_port };
  // Fills `out` with the next packet if the gates allow one on `free_ports`.
  Poll poll(Time now, std::uint32_t free_ports, Transmit& out);

  // A SACK, NACK or transport ACK arrived. `fatal` in the result means that the queue pair must go to error.
  CompletionStatus on_sack(Time now, const wire::Sack& sack);
  CompletionStatus on_nack(Time now, const wire::Nack& nack);
  CompletionStatus on_ack(Time now, const wire::Aeth& aeth, Psn cack);

  void on_stall(Time now) { loss_.on_stall(now); }
  // The verdicts that waited for the end of a batch.
  void end_batch(Time now);

  CompletionStatus on_timer(Time now);
  Time deadline(Time now) const;

  // The EVs that need a probe: the endpoint sends it and reports the answer.
  std::optional<std::uint16_t> next_probe(Time now, std::uint32_t ports);
  bool is_probe_due(Time now) const { return ev_prober_.deadline() <= now; }
  // An answer to a probe of `entropy`, which may have been replaced since.
  void on_probe_answer(Time now, std::uint16_t ev, std::uint32_t entropy, Duration took);
  // Nothing that was sent has been answered for a while.
  bool is_probing() const { return pto_.is_probing(); }

  // Ports that may carry data.
  void set_live_ports(Time now, std::uint32_t mask);
  std::uint32_t live_ports() const { return live_ports_; }
  void deny_ev(Time now, std::uint16_t ev);
  void allow_ev(Time now, std::uint16_t ev);
  void replace_ev(Time now, std::uint16_t ev, const EvPath& path);
  std::uint32_t next_ev_number() { return evs_.next_number(); }

  // Completes everything that is left: the first with `status`, the others flushed.
  void fail(CompletionStatus status);

  // See Endpoint::prefetch_state.
  void prefetch_state() const {
    if (!evs_.is_built()) return;
    prefetch(&sent_[next_psn_]);
    prefetch(&sent_[sent_.first()]);
    messages_.prefetch_state();
    evs_.prefetch_state();
  }

  const EvSet& evs() const { return evs_; }
  // The EV that carried this PSN last, while its record is kept.
  std::optional<std::uint16_t> ev_of(Psn psn) const {
    if (!evs_.is_built() || !is_outstanding(psn)) return std::nullopt;
    return sent_[psn].ev;
  }
  void build_evs();
  Prng ev_stream() const { return Prng(config_.seed, "ev", context_.qpn); }
  const Rtt& rtt() const { return rtt_; }
  std::uint32_t spray_quantum() const { return ev_profile_.spray_quantum; }
  std::uint64_t window() const { return windows_.window(context_.endpoint->senders); }
  // Of each port, or nothing where one is for all.
  std::vector<std::uint64_t> port_windows() const { return windows_.of_ports(context_.endpoint->senders); }
  std::uint64_t bytes_in_flight() const { return windows_.in_flight(); }
  std::uint32_t packets_in_flight() const { return sent_.in_flight(); }
  std::uint32_t messages() const { return static_cast<std::uint32_t>(messages_.size()); }
  Psn next_psn() const { return next_psn_; }
  bool has_work() const { return !messages_.empty(); }
  bool uses(const CompletionQueue& cq) const { return &completions_ == &cq; }
  // Whether some message not yet completed takes its bytes from here.
  bool reads_from(const std::uint8_t* begin, const std::uint8_t* end) const { return messages_.reads_from(begin, end); }

 private:
  using Message = SendQueue::Message;

  // A path on which a packet is missing that a switch may have trimmed: the NACK that would report it has until `due`.
  struct TrimWait {
    Time sent_at{};
    Time due{};
    Psn psn;
    std::uint16_t ev = no_ev;
  };

  // sending
  bool window_allows() const;
  // Ports with room in their window and a path; all of them where none has a path, since then that is what is wrong.
  std::uint32_t open_ports() const {
    const std::uint32_t open = windows_.open_ports(context_.endpoint->senders), usable = evs_.usable_ports();
    return usable && !(open & usable) ? 0 : open;
  }
  // Without that of ports by which nothing can be sent now.
  std::uint64_t usable_window() const {
    const std::uint32_t usable = evs_.usable_ports();
    return windows_.window(context_.endpoint->senders, usable ? usable : ~0u);
  }
  void widen_window(Psn edge) {
    if (edge - window_edge_ > 0) window_edge_ = edge;
  }
  bool is_last_for_now() const;
  bool wants_sack(std::uint32_t bytes);
  std::uint32_t quantum_on(std::uint8_t port) const;
  std::uint32_t roomy_ports() const;
  std::uint8_t port_of(const SentRecord& record) const { return evs_[record.ev].port; }
  void make_room(std::uint32_t span);
  std::uint16_t choose_ev(Time now, std::uint32_t free_ports, std::uint16_t avoid);
  std::uint16_t draw_ev(Time now, std::uint32_t free_ports, std::uint16_t avoid);
  std::uint16_t choose_to_ask(Time now, std::uint32_t free_ports, std::uint16_t avoid);
  std::optional<Poll> poll_urgent(Time now, std::uint32_t free_ports, Transmit& out);
  Poll send_new(Time now, std::uint32_t free_ports, Transmit& out);
  Poll resend(Time now, Psn psn, std::uint16_t ev, Transmit& out);
  Poll send_solicitation(Time now, std::uint32_t free_ports, Transmit& out);
  Poll send_reliability_probe(Time now, std::uint32_t free_ports, Transmit& out);
  void fill(Time now, const Message& message, Psn psn, std::uint16_t ev, bool is_again, Transmit& out);
  void address(std::uint16_t ev, TrafficClass traffic_class, Transmit& out);
  void record_sent(Time now, Psn psn, std::uint16_t ev, const Transmit& out);

  // acknowledgements
  bool acknowledge_through(Time now, Psn cack);
  void acknowledge_bits(Time now, Psn base, std::uint64_t bits);
  // What comes sooner than any round trip can be answers a transmission before the last.
  bool is_too_soon(Time now, const SentRecord& record) const {
    return rtt_.has_sample() && now - record.sent_at < rtt_.fastest() * 7 / 8;
  }
  void on_packet_acked(Time now, Psn psn);
  AckedCopy acked_copy(const SentRecord& record, const wire::Sack& sack) const;
  void resolve_copies(Psn psn, const wire::Sack& sack);
  void undo_loss(Time now, Psn psn, SentRecord& record);
  void attribute_first_copy(Psn psn, const wire::Sack& sack);
  void suspect_older_on_ev(std::uint16_t ev, Psn acked);
  std::optional<Duration> sample_rtt(Time now, Psn psn, const wire::Sack& sack);
  void apply_mark(Psn psn, const wire::Sack& sack);
  std::uint64_t advance_clock(const wire::CcState& cc, bool& is_newest);
  void refuse_acknowledgement(Time now, Psn cack);
  bool is_credible(const wire::Aeth& aeth, Psn cack) const;
  void report_trim(Time now, std::uint16_t ev, Time sent_at, wire::NackReason reason, std::uint64_t bytes);
  bool resolves_trim_wait(Time now, const wire::Nack& nack);
  void on_late_trim(Time now, SentRecord& r, bool is_of_last, wire::NackReason reason);

  // loss
  bool is_overtaken(const SentRecord& record) const;
  bool is_late(const SentRecord& record) const;
  void detect_losses(const wire::Sack& sack);
  void record_holes(Psn base, std::uint64_t bitmap);
  void detect_holes();
  void detect_left_out(Psn base, std::uint64_t left_out, bool suspects_too);
  void commit_losses(Time now);
  void declare_detected(Time now, LossCause cause);
  void declare_lost(Time now, Psn psn, LossCause cause);
  void clear_loss_marks(Psn psn);
  void charge_path(Time now, Psn psn, SentRecord& record, LossCause cause);
  void expire_trim_waits(Time now);
  std::optional<TrimWait> cancel_trim_wait(Psn psn, std::uint16_t ev, std::optional<std::uint16_t> ticks);
  Duration reorder_window() const {
    return loss_.reorder_window(rtt_.base(), rtt_.smoothed(), windows_.target(rtt_.base()),
                                cc_profile_.min_reorder_window);
  }
  Duration pto_interval() const { return pto_.span(rtt_.silence()); }
  Time conclusive_from() const;
  // When the copy was sent that was given up; of one that has been retransmitted since, the latest that it can have
  // been.
  Time given_up_sent_at(const SentRecord& r) const {
    return r.state == SentState::lost ? r.sent_at : r.sent_at - reorder_window();
  }
  void measure(Duration round_trip, bool is_certain) {
    rtt_.on_sample(round_trip, is_certain);
    pto_.on_measured();
  }
  // How long a path stays suspended the first time.
  Duration suspend_span() const { return rtt_.base() * 5; }
  CompletionStatus on_timeout(Time now);
  void drain_ev_changes(Time now);
  void send_checks(Time now);
  void retire(std::uint16_t ev);
  void note_round_trip(Time now, std::uint16_t ev, Duration took, bool is_exact);
  void on_path_works(std::uint16_t ev);
  void complete(const Message& message, CompletionStatus status);

  bool is_outstanding(Psn psn) const { return psn - sent_.first() >= 0 && psn - next_psn_ < 0; }
  // Its operation has not been confirmed, though the packet may have been.
  bool is_unconfirmed(Psn psn) const {
    return messages_.has_begun() && psn - messages_.front().first_psn >= 0 && psn - next_psn_ < 0;
  }
  // Something is under way, or cannot be because no port is left: the timer runs.
  bool waits() const {
    return sent_.in_flight() || lost_count_ || messages_.has_sent_operation() || (live_ports_ == 0 && has_work());
  }

  QpContext& context_;
  const EndpointConfig& config_;
  const EvProfile& ev_profile_;
  const CcProfile& cc_profile_;
  CompletionQueue& completions_;

  RtsAttributes attributes_;
  std::uint32_t nominal_mtu_ = 0;
  SendQueue messages_;

  Psn next_psn_;
  Psn window_edge_;  // the first PSN that may not be sent yet
  SentRing sent_;
  std::uint32_t room_ = 0;  // PSNs that this and the bitmaps can hold
  WindowBitmap acked_;
  WindowBitmap lost_;
  WindowBitmap suspects_;
  WindowBitmap holes_;  // left out by a SACK that reports a later one
  std::uint32_t lost_count_ = 0;
  std::uint32_t suspect_count_ = 0;
  WindowBitmap detected_;  // lost, unless the rest of the batch says otherwise
  std::uint32_t detected_count_ = 0;
  Ring<TrimWait> trim_waits_;
  std::uint64_t suspect_clock_ = 0;
  std::uint64_t unsolicited_bytes_ = 0;  // sent since a SACK was requested
  std::uint64_t clock_ = 0;              // the receiver's rcvd_bytes, widened: the order in which SACKs were written

  EvSet evs_;
  EvProber ev_prober_;
  SlowPorts slow_ports_;
  std::array<Time, max_ports> answered_at_{};  // when each last acknowledged something
  std::uint16_t quantum_ev_ = no_ev;
  std::uint32_t quantum_left_ = 0;
  std::uint32_t live_ports_ = ~0u;

  Loss loss_;
  Rtt rtt_;
  Windows windows_;
  ProbeTimeout pto_;
};

}  // namespace softmrc::proto
