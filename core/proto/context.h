// What the parts of an endpoint share, and what the two halves of a queue pair do.
#pragma once

#include "proto/config.h"
#include "proto/event_log.h"
#include "proto/transmit.h"

namespace softmrc::proto {

struct EndpointContext {
  explicit EndpointContext(const EndpointConfig& configuration)
      : config(configuration), event_log(configuration.max_events) {}

  // Counts a packet that is refused, and records why.
  void refuse(Time now, RefusedPacket why, std::uint64_t& counter, const wire::Bth* bth, const Arrival& arrival) {
    ++counter;
    Event e;
    e.at_ps = now.ps;
    e.type = EventType::packet_refused;
    e.code = static_cast<std::uint32_t>(why);
    e.ev = arrival.entropy;
    e.port = arrival.port;
    if (bth) {
      e.qpn = bth->dqp;
      e.psn = bth->psn;
    }
    event_log.record(e);
  }

  EndpointConfig config;
  EventLog event_log;
  // Packets that waited together are being handed in one by one. Verdicts that compare paths wait for the last of them:
  // what lies in the same batch unread is no evidence of loss.
  bool in_batch = false;
  // Queue pairs with messages that are not yet confirmed: they share what may be in flight.
  std::uint32_t senders = 0;
};

// How many packets a message makes. One without bytes is a packet, too.
constexpr std::uint32_t packets_of(std::uint32_t length, std::uint32_t mtu) {
  return length ? (length - 1) / mtu + 1 : 1;
}

// What both halves of a queue pair know about it.
struct QpContext {
  std::uint32_t qpn = 0;
  std::uint32_t dest_qpn = 0;
  std::uint32_t peer = no_peer;  // until RTR names one
  std::uint32_t mtu = 0;
  bool dynamic_mpr = false;  // SACKs carry the window
  EndpointContext* endpoint = nullptr;
  std::uint64_t domain = 0;   // of memory, which the peer may write to
  std::uint32_t sharers = 1;  // queue pairs that the first window is meant for, by the hints
  QpStats stats;

  EventLog& event_log() const { return endpoint->event_log; }
  Event event(EventType type, Time now) const {
    Event e;
    e.at_ps = now.ps;
    e.qpn = qpn;
    e.type = type;
    return e;
  }
  void refused(Time now, RefusedPacket why, std::uint32_t psn, std::uint32_t entropy = 0, std::uint8_t port = 0) const {
    Event e = event(EventType::packet_refused, now);
    e.code = static_cast<std::uint32_t>(why);
    e.psn = psn;
    e.ev = entropy;
    e.port = port;
    event_log().record(e);
  }
};

}  // namespace softmrc::proto
