// One collective on one rank, as data: what comes in from which peer and where it lands, what goes out to which peer
// and what it must wait for. plan.h makes these, stripes.h may cut them, channels carry them out; none knows the
// others' part.
//
// A transfer waits in one of two ways. It may pass another one on, slice by slice as they arrive. Or it may be a
// *step*: then it waits until so many of the inbound transfers have been *taken*, which happens in the order of the
// plan. Taking one is where it is merged with what is here, so a merge finds complete what the plan has put before it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/time.h"
#include "collectives/message.h"
#include "collectives/reduce.h"
#include "proto/memory.h"

namespace softmrc::collectives {

// Bulk data travels in slices: a slice that has arrived can be sent on while the next one is still coming, and while it
// is still in a cache.
constexpr std::uint64_t smallest_slice = 128 * 1024;
constexpr std::uint64_t largest_slice = 512 * 1024;
constexpr std::uint64_t slices_wanted = 8;
// How much of its own data a rank sends before anything has come in: enough to fill the path, little enough that
// merged data follows soon.
constexpr std::uint64_t head_start = 2 * 1024 * 1024;

// Collectives of one rank that are under way at a time; the others wait.
constexpr std::size_t max_started = 16;

// How all ranks cut. `unit` is what fills whole packets, and a multiple of every element's size.
constexpr std::uint64_t slice_for(std::uint64_t bytes, std::uint64_t unit) {
  const std::uint64_t even = bytes / slices_wanted;
  const std::uint64_t wanted = even < smallest_slice ? smallest_slice : even > largest_slice ? largest_slice : even;
  return wanted < unit ? unit : wanted / unit * unit;
}

// A transfer, in slices. One of no bytes has a slice, too, which is a write of nothing: a rank that expects nothing
// from a peer must still wait for it, or it could run ahead of the peer without limit.
struct Slices {
  std::uint64_t size = 0;
  std::uint32_t count = 0;

  Slices() = default;
  Slices(std::uint64_t bytes, std::uint64_t unit)
      : size(slice_for(bytes, unit)), count(bytes ? static_cast<std::uint32_t>((bytes + size - 1) / size) : 1) {}
};

// Where the i-th of so many parts of a buffer begins: as even as cuts at the ends of cache lines are.
constexpr std::uint64_t begin_of_part(std::uint64_t bytes, std::uint64_t i, std::uint64_t parts) {
  constexpr std::uint64_t line = 64;
  return std::min((bytes + line - 1) / line * i / parts * line, bytes);
}

// Of which larger part a transfer is a piece, where those that wait for each other are not all of one length.
struct Site {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;   // of the part
  std::uint32_t blocks = 0;  // that it is made of; 0: the transfer is on its own
};

// What becomes of an inbound transfer when its turn comes: `left` op `right`, one of them what has come in.
struct Merge {
  std::uint8_t* to = nullptr;  // null: nothing is to be done
  const std::uint8_t* left = nullptr;
  const std::uint8_t* right = nullptr;
  const Reduction* reduction = nullptr;
};

struct Inbound final : proto::Placer {
  std::uint32_t peer = 0;
  std::uint32_t index = 0;  // among those of its kind (in messages, or granted) from this peer
  bool is_eager = false;    // in a message; else by WRITE into a region
  std::uint8_t* to = nullptr;
  const std::uint8_t* local = nullptr;   // what it is reduced with
  const Reduction* reduction = nullptr;  // while it lands
  Merge merge;                           // or later
  Stream stream = nullptr;               // how to copy it, where not plainly
  std::uint64_t bytes = 0;
  std::uint64_t total = 0;  // of all stripes of it together
  Site site;
  Slices slices;
  std::uint32_t arrived = 0;  // slices
  std::uint32_t merged = 0;   // slices
  std::uint32_t rkey = 0;
  bool has_ended = false;
  std::vector<std::uint32_t> feeds;  // outbound transfers that wait for this one

  void place(std::uint64_t offset, const std::uint8_t* source, std::uint32_t size) override {
    if (reduction) reduction->run(to + offset, source, local + offset, size);
    else stream(to + offset, source, size);
  }
  bool needs_placing() const { return reduction || stream; }

  void merge_arrived() {
    for (; merged < arrived; ++merged) {
      const std::uint64_t at = merged * slices.size;
      if (merge.to)
        merge.reduction->run(merge.to + at, merge.left + at, merge.right + at, std::min(slices.size, bytes - at));
    }
  }
};

struct Outbound {
  std::uint32_t peer = 0;
  std::uint32_t index = 0;  // among those of its kind (in messages, or granted) to this peer
  bool is_eager = false;
  const std::uint8_t* from = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t total = 0;  // of all stripes of it together
  Site site;
  std::int32_t after = -1;   // the inbound transfer it passes on
  std::int32_t beside = -1;  // the inbound transfer that it must not leave behind by more than the head start
  std::int32_t step = -1;    // so many inbound transfers must have been taken, and all copies made; -1: no step
  Slices slices;
  std::uint32_t posted = 0;  // slices; a message counts as one
  bool has_ended = false;    // acknowledged
};

// Within this rank's memory.
struct Copy {
  std::uint8_t* to = nullptr;
  const std::uint8_t* from = nullptr;
  std::uint64_t bytes = 0;
  const Reduction* scaling = nullptr;  // by its factor, on the way
  std::uint64_t done = 0;

  void run(std::uint64_t most) {
    const std::uint64_t count = std::min(most, bytes - done);
    if (scaling) scaling->scale(to + done, from + done, count / scaling->element, scaling->factor);
    else if (count) std::memcpy(to + done, from + done, count);
    done += count;
  }
};

// Memory of the caller's that is read or written.
struct Range {
  const std::uint8_t* begin = nullptr;
  const std::uint8_t* end = nullptr;
  bool is_written = false;

  bool conflicts(const Range& other) const {
    return (is_written || other.is_written) && begin < other.end && other.begin < end;
  }
};

// As a caller says how long it may take.
constexpr Time deadline_of(Time now, double timeout_s) {
  return now + Duration{timeout_s > 1e6 ? seconds(1'000'000).ps : static_cast<std::int64_t>(timeout_s * 1e12)};
}

struct InflightOp;

struct Operation {
  std::uint32_t number = 0;
  CollectiveFingerprint descriptor;
  std::deque<Inbound> ins;  // addresses stay: regions point at them
  std::vector<Outbound> outs;
  std::vector<Copy> copies;
  std::vector<Range> ranges;
  std::deque<Reduction> reductions;
  std::unique_ptr<std::uint8_t[]> temporary;
  std::function<void()> finish;  // when everything has arrived
  bool is_striped = true;        // may be cut into stripes; the same on all ranks

  // How far it is.
  bool has_ended = false;
  bool has_finished = false;
  std::uint32_t taken = 0;  // inbound transfers
  std::uint32_t open_outs = 0;
  std::vector<std::uint32_t> granted;  // by peer: the first key, 0 while there is none
  std::vector<bool> has_message;       // by peer
  Time issued_at{};
  Time deadline = Time::never();
  std::uint32_t extensions = 0;  // of the deadline
  double timeout_s = 0;
  std::shared_ptr<InflightOp> whole;  // what it is a stripe of

  // Everything still travels, but nothing is read, written or reduced.
  void drop_memory() {
    for (Inbound& in : ins) in.to = nullptr, in.reduction = nullptr, in.stream = nullptr, in.merge.to = nullptr;
    for (Outbound& out : outs) out.from = nullptr;
    copies.clear();
    ranges.clear();
    temporary.reset();
    finish = nullptr;
  }

  // How many slices of it may go; a message is one.
  std::uint32_t ready(const Outbound& out) const {
    if (out.step >= 0 && blocks(out)) return 0;
    if (out.is_eager) return 1;
    if (out.after >= 0) return ins[static_cast<std::size_t>(out.after)].arrived;
    if (out.beside < 0 || ins[static_cast<std::size_t>(out.beside)].has_ended) return out.slices.count;
    const std::uint64_t ahead = ins[static_cast<std::size_t>(out.beside)].arrived + head_start / out.slices.size;
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(ahead, out.slices.count));
  }

  // Whether it waits for something that has not come in yet.
  bool blocks(const Outbound& out) const {
    if (out.after >= 0) return !ins[static_cast<std::size_t>(out.after)].has_ended;
    return out.step >= 0 && (!copies.empty() || taken < static_cast<std::uint32_t>(out.step));
  }

  // Merges what has come of the transfer whose turn it is. The one that was taken with it, if there is nothing to wait
  // for.
  Inbound* take() {
    if (!copies.empty() || taken == ins.size()) return nullptr;
    Inbound& in = ins[taken];
    in.merge_arrived();
    if (!in.has_ended) return nullptr;
    ++taken;
    return &in;
  }
};

}  // namespace softmrc::collectives
