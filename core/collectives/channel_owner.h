// What the parts of a channel share with the group that owns the channel: its place in the group, the work that the
// group queues for it, and the calls by which it reports back. The group decides when an operation may start and which
// of several failures counts; how a stripe is carried out is the channel's business.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/operation.h"
#include "proto/driver.h"
#include "proto/qp_factory.h"

namespace softmrc::collectives {

#define SOFTMRC_CHANNEL_COUNTERS(X) \
  X(sends)                          \
  X(receives)                       \
  X(messages)                       \
  X(slices)                         \
  X(slices_shared)                  \
  X(bytes_granted)                  \
  X(inquiries)                      \
  X(peers_met)

struct ChannelStats {
#define X(name) std::uint64_t name = 0;
  SOFTMRC_CHANNEL_COUNTERS(X)
#undef X

  ChannelStats& operator+=(const ChannelStats& other) {
#define X(name) name += other.name;
    SOFTMRC_CHANNEL_COUNTERS(X)
#undef X
    return *this;
  }
};

// Where a channel lives: a driver, and what is its own of an endpoint there.
struct ChannelResources {
  proto::Driver* driver = nullptr;
  proto::QpFactory* qp_factory = nullptr;
  std::uint32_t cq = 0;
  std::uint32_t ev_profile = 0;
  std::uint32_t cc_profile = 0;
  std::uint32_t lane = 0;  // numbers of queue pairs there are this, and every so many from it on
  std::uint32_t lanes = 1;
};

// Which channel of which rank.
struct ChannelIdentity {
  std::uint32_t number = 0;
  std::uint32_t rank = 0;
  std::uint32_t size = 1;

  // It sends errors for all channels, carries small data and point-to-point messages, and watches what has not started.
  bool is_first() const { return number == 0; }
};

// Why everything ends.
struct GroupFailure {
  std::string why;
  bool is_ours = true;  // else another rank reported it, and reports it to the peers that it is connected with
};

// What a channel is given to do.
struct QueuedWork {
  std::vector<std::unique_ptr<Operation>> operations;  // to begin, in the order of their numbers
  std::optional<GroupFailure> ending;                  // from now on
};

// The group, as its channels know it. They call with their engine to themselves; nothing is waited for.
class ChannelOwner {
 public:
  virtual ~ChannelOwner() = default;
  virtual bool has_work(std::uint32_t channel) const = 0;
  virtual QueuedWork pop_all(std::uint32_t channel) = 0;
  // A stripe has ended, well or not.
  virtual void on_ended(std::uint32_t channel, Operation& stripe, bool is_well) = 0;
  // Something ended it all, here or on another channel before: what counts.
  virtual GroupFailure on_failure(std::uint32_t channel, const std::string& why, bool is_ours) = 0;
  // The first deadline of what was issued and may not start yet, and the error if it has passed.
  virtual Time waits_until() const = 0;
  virtual std::string overdue(Time now) = 0;
};

}  // namespace softmrc::collectives
