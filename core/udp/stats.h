// What the driver counts, each counter declared once; the engine's own are in proto/stats.h.
#pragma once

#include <cstdint>

namespace softmrc::udp {

#define SOFTMRC_PLANE_COUNTERS(X)                                                              \
  X(packets_sent)                                                                              \
  X(bytes_sent) /* of UDP payload */                                                           \
  X(sends)      /* messages handed to the kernel; one may be a batch */                        \
  X(packets_received)                                                                          \
  X(bytes_received)                                                                            \
  X(receives)  /* messages taken from the kernel */                                            \
  X(strangers) /* packets from an address that is no peer's, dropped */                        \
  X(bad_icrc)                                                                                  \
  X(bad_seal)        /* packets of an encrypted peer that were forged, or not new */           \
  X(keyless)         /* packets to an encrypted peer without keys for them: not sent */        \
  X(truncated)       /* longer than any packet can be, dropped */                              \
  X(send_blocked)    /* times the socket had no room */                                        \
  X(send_refused)    /* messages that the kernel would not send: counted as lost */            \
  X(gso_refused)     /* times it would not cut a batch: packets went one by one for a while */ \
  X(errors_reported) /* by the network, of packets sent earlier */

struct PlaneStats {
#define X(name) std::uint64_t name = 0;
  SOFTMRC_PLANE_COUNTERS(X)
#undef X
};

#define SOFTMRC_LANE_COUNTERS(X)                                           \
  X(turns) /* times round the driver's loop */                             \
  X(sleeps)                                                                \
  X(spins)     /* looks at idle sockets before going to sleep */           \
  X(rests)     /* times it let a flood gather, to refuse many at a time */ \
  X(hold_ups)  /* times other work had the processor during sending */     \
  X(handovers) /* times a waiting thread took the driver's work over */

struct LaneStats {
#define X(name) std::uint64_t name = 0;
  SOFTMRC_LANE_COUNTERS(X)
#undef X
};

}  // namespace softmrc::udp
