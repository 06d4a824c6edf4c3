// The one list of everything worth telling. Notable events wait in the endpoint's queue for poll_event; the others are
// per-packet facts that exist only while a TraceSink listens. Tests, the command line and reports all read this list.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace softmrc::proto {

// name, notable, what `code` and `value` hold
#define SOFTMRC_EVENTS(X)                                                                                            \
  X(qp_state, true, "code: new QpState; value: CompletionStatus that led to it")                                     \
  X(ev_state, true, "ev, port; code: new EvState; value: packets lost on this EV so far")                            \
  X(port_state, true, "port; code: 1 up, 0 down")                                                                    \
  X(peer_ports, true, "value: mask of the ports that the peer can use; code: peer")                                  \
  X(probe_answer, true,                                                                                              \
    "port: arrival; ev; value: round trip in ps; psn: the caller's token; took: the peer's part of it in ns, if it " \
    "tells")                                                                                                         \
  X(packet_refused, true, "code: RefusedPacket; psn, ev as far as known")                                            \
  X(packet_sent, false, "psn, ev, port; code: tx count; value: bytes")                                               \
  X(packet_acked, false, "psn, ev, port; value: age in ps")                                                          \
  X(packet_lost, false, "psn, ev, port; code: LossCause; value: age in ps")                                          \
  X(packet_spurious, false, "psn, ev, port: a loss verdict that a late acknowledgement undid")                       \
  X(packet_placed, false, "psn, port; code: rkey; value: address; ev: payload bytes")                                \
  X(sack_sent, false, "psn: cack; ev; value: bitmap")                                                                \
  X(nack_sent, false, "psn; ev; code: NackReason")                                                                   \
  X(window, false, "value: congestion window in bytes; psn: bytes in flight")

enum class EventType : std::uint8_t {
#define X(name, notable, meaning) name,
  SOFTMRC_EVENTS(X)
#undef X
};

struct Event {
  std::int64_t at_ps = 0;
  std::uint64_t value = 0;
  std::uint32_t qpn = 0;
  std::uint32_t psn = 0;
  std::uint32_t ev = 0;  // the EV's value
  std::uint32_t code = 0;
  EventType type{};
  std::uint8_t port = 0;
  std::uint16_t reserved = 0;
  std::uint32_t took = 0;
};
static_assert(sizeof(Event) == 40);

// Why a packet from the network was not taken.
enum class RefusedPacket : std::uint8_t {
  malformed,
  bad_icrc,
  unknown_qp,
  wrong_peer,
  wrong_state,
  unknown_peer,
  out_of_window,
  remote_access,
  invalid_request,
  bad_acknowledgement,
  unknown_answer,
  wrong_pair,   // not between the queue pair that it is for and that one's peer
  unproven,     // about ports, without the key that the peer was given
  last_port,    // an update that would leave no port
  wrong_proof,  // an answer that may be a guess at another plane's probe
  unsealed,     // where packets are encrypted, one that is not
  forged,       // encrypted under another key, or changed since
  replayed,     // encrypted, and received before
};

constexpr std::uint32_t all_events = ~0u;
constexpr std::uint32_t wants(EventType type) { return 1u << static_cast<unsigned>(type); }

struct TraceSink {
  virtual ~TraceSink() = default;
  virtual void on(const Event& event) = 0;
};

}  // namespace softmrc::proto
