// Counters, each declared once. A queue pair has its own; the endpoint has those that belong to no queue pair.
#pragma once

#include <cstdint>

namespace softmrc::proto {

#define SOFTMRC_QP_COUNTERS(X)                                                      \
  X(packets_sent) /* data packets, retransmissions included */                      \
  X(packets_retransmitted)                                                          \
  X(packets_received) /* data packets that reached the window rules */              \
  X(packets_placed)                                                                 \
  X(packets_duplicate) /* seen before, or older than the window */                  \
  X(packets_out_of_window)                                                          \
  X(packets_trimmed) /* arrived as a bare header */                                 \
  X(bytes_sent)      /* payload, first transmissions only */                        \
  X(bytes_placed)                                                                   \
  X(sacks_sent)                                                                     \
  X(sacks_received)                                                                 \
  X(nacks_sent)                                                                     \
  X(nacks_received)                                                                 \
  X(acks_sent)                                                                      \
  X(acks_received)                                                                  \
  X(acks_refused)    /* acknowledgements of what was never sent */                  \
  X(lost_same_ev)    /* by evidence (a): overtaken on its own path */               \
  X(lost_across_evs) /* by evidence (b): one sent much later was acknowledged */    \
  X(lost_with_path)  /* in flight on a path when it was withdrawn */                \
  X(lost_timeout)    /* by the timer */                                             \
  X(lost_nacked)                                                                    \
  X(trims_reported) /* trims that NACKs told of, in time or late, each once */      \
  X(loss_spurious)  /* verdicts that a late acknowledgement undid */                \
  X(tail_probes)                                                                    \
  X(timeouts)                                                                       \
  X(marks_received) /* SACKs that reported congestion on an EV */                   \
  X(evs_demoted)                                                                    \
  X(evs_revived)                                                                    \
  X(evs_restored)    /* demotions undone because the verdict was spurious */        \
  X(ports_left_slow) /* times that a port was left because it held up the others */ \
  X(ev_probes_sent)                                                                 \
  X(ev_probes_answered)                                                             \
  X(messages_posted)                                                                \
  X(messages_completed)                                                             \
  X(immediates_received)

struct QpStats {
#define X(name) std::uint64_t name = 0;
  SOFTMRC_QP_COUNTERS(X)
#undef X
};

#define SOFTMRC_ENDPOINT_COUNTERS(X)                                                         \
  X(datagrams_received)                                                                      \
  X(refused_malformed)                                                                       \
  X(refused_bad_icrc)                                                                        \
  X(refused_unknown_qp)                                                                      \
  X(refused_wrong_peer)                                                                      \
  X(refused_wrong_state)                                                                     \
  X(refused_unknown_peer)                                                                    \
  X(refused_remote_access)                                                                   \
  X(refused_invalid_request)                                                                 \
  X(refused_unknown_answer)                                                                  \
  X(refused_wrong_pair)  /* whose pdcids name another connection */                          \
  X(refused_unproven)    /* port status updates without the key for them */                  \
  X(refused_last_port)   /* updates that would have left no port */                          \
  X(refused_wrong_proof) /* answers that may be guesses at another plane's probe */          \
  X(refused_unsealed)    /* where packets are encrypted */                                   \
  X(refused_forged)      /* encrypted under another key, or changed since */                 \
  X(refused_replayed)    /* encrypted, and received before or too old to know */             \
  X(requests_unanswered) /* of nodes, beyond what is answered in a second */                 \
  X(endpoint_requests)                                                                       \
  X(endpoint_responses)                                                                      \
  X(port_updates_sent)                                                                       \
  X(port_updates_received)                                                                   \
  X(departed_answers)    /* packets for queue pairs that were destroyed, answered */         \
  X(late_answers)        /* acknowledgements for queue pairs that were destroyed, dropped */ \
  X(unreachable_reports) /* of the network, about a peer; see unreachable_probes.h */        \
  X(peers_forgotten)     /* that had no holder left */                                       \
  X(probes_unsent)       /* of callers, for a port that is down or full */                   \
  X(events_dropped)

struct EndpointStats {
#define X(name) std::uint64_t name = 0;
  SOFTMRC_ENDPOINT_COUNTERS(X)
#undef X

  // Packets that came to nothing.
  std::uint64_t refused() const {
    return refused_malformed + refused_bad_icrc + refused_unknown_qp + refused_wrong_peer + refused_wrong_state +
           refused_unknown_peer + refused_unknown_answer + refused_wrong_pair + refused_unproven + refused_last_port +
           refused_wrong_proof + refused_unsealed + refused_forged + refused_replayed + requests_unanswered;
  }
};

}  // namespace softmrc::proto
