// Carries out the plans of all ranks of a collective in memory: no engine, no socket, no clock. Ranks begin, messages
// and slices arrive in an order that a seed draws; slices land in pieces, in any order, before they are announced in
// order. Reads cases from stdin and writes results to stdout, as test_plans.py packs them.
//
// Besides the results it reports what must never happen: an end that never comes, memory that changes while it is being
// sent, an input that is written to, a transfer that the other side does not expect.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/prng.h"
#include "collectives/plan.h"

using namespace softmrc;
using namespace softmrc::collectives;

namespace {

using Memory = std::unique_ptr<std::uint8_t[]>;

template <typename T>
bool read(T& value) {
  return std::fread(&value, sizeof value, 1, stdin) == 1;
}
template <typename T>
void write(const T& value) {
  std::fwrite(&value, sizeof value, 1, stdout);
}

struct Case {
  std::uint32_t kind, dtype, op, ranks;
  std::int32_t root, forced;
  std::uint32_t is_in_place, unit;
  std::uint64_t seed;
  double factor;
};

struct Message {
  bool is_grant = false;
  std::uint32_t step = 0;
  std::uint64_t bytes = 0;
  std::vector<std::uint8_t> payload;
  std::uint32_t depth = 0;
};

struct Slice {
  std::uint32_t index = 0;  // of the transfer
  std::uint64_t at = 0;
  const std::uint8_t* from = nullptr;
  std::vector<std::uint8_t> seen;  // when it was posted
  bool has_landed = false;
  std::uint32_t depth = 0;
};

struct Way {
  std::deque<Message> messages;
  std::deque<Slice> slices;
};

struct Rank {
  CollectiveCall call;
  std::vector<Memory> memory;
  std::vector<std::vector<std::uint8_t>> given;  // the inputs, to see that they stay
  std::unique_ptr<Operation> op;
  bool has_begun = false;
  bool has_finished = false;
  std::set<std::uint32_t> granted;
  std::vector<std::uint32_t> early;   // peers whose messages wait for it
  std::vector<std::uint32_t> depths;  // by inbound transfer: how many followed one another until it came
  std::uint64_t bytes = 0, transfers = 0;
  std::set<std::uint32_t> peers;
};

enum class What { begin, message, land, announce };
struct Event {
  What what;
  std::uint32_t from = 0, to = 0;
};

class Run {
 public:
  Run(const Case& given, std::vector<Rank> ranks) : case_(given), prng_(given.seed, "order"), ranks_(std::move(ranks)) {
    for (std::uint32_t r = 0; r < case_.ranks; ++r) events_.push_back({What::begin, r, r});
  }

  void go() {
    while (!events_.empty() && problem.empty()) {
      std::swap(events_[prng_.bits() % events_.size()], events_.back());
      const Event event = events_.back();
      events_.pop_back();
      Rank& rank = ranks_[event.to];
      switch (event.what) {
        case What::begin: begin(event.to); break;
        case What::message:
          if (rank.has_begun) deliver(event.from, event.to);
          else rank.early.push_back(event.from);
          break;
        case What::land: land_any(way(event.from, event.to), event); break;
        case What::announce: announce(event.from, event.to); break;
      }
    }
    for (std::uint32_t r = 0; r < case_.ranks && problem.empty(); ++r) {
      Rank& rank = ranks_[r];
      if (!rank.has_finished) fail("rank " + std::to_string(r) + " never ends");
      for (const Outbound& out : rank.op->outs)
        if (out.is_eager ? !out.posted : out.posted < out.slices.count)
          fail("rank " + std::to_string(r) + " never sends something");
      if (case_.is_in_place) continue;
      for (std::size_t i = 0; i < rank.given.size(); ++i)
        if (!std::equal(rank.given[i].begin(), rank.given[i].end(), rank.call.inputs[i].data))
          fail("an input was written to");
    }
  }

  std::string problem;
  std::uint32_t deepest = 0;
  std::uint64_t max_early = 0;  // messages of one rank for another that has not begun
  std::vector<Rank>& ranks() { return ranks_; }

 private:
  void fail(const std::string& why) {
    if (problem.empty()) problem = why;
  }
  Way& way(std::uint32_t from, std::uint32_t to) { return ways_[static_cast<std::uint64_t>(from) << 32 | to]; }

  void begin(std::uint32_t r) {
    Rank& rank = ranks_[r];
    rank.has_begun = true;
    rank.op = plan(rank.call, {r, case_.ranks, case_.unit, {}, forced()});
    rank.depths.resize(rank.op->ins.size());
    std::map<std::uint32_t, std::uint64_t> grants;
    for (Inbound& in : rank.op->ins) {
      rank.peers.insert(in.peer);
      if (in.is_eager) continue;
      grants[in.peer] += in.bytes;
    }
    for (const auto& [peer, bytes] : grants) send_message(r, peer, {true, 0, bytes, {}, 0});
    for (Copy& copy : rank.op->copies)
      while (copy.done < copy.bytes) copy.run(4096);
    rank.op->copies.clear();
    for (std::uint32_t i = 0; i < rank.op->outs.size(); ++i) {
      const Outbound& out = rank.op->outs[i];
      rank.peers.insert(out.peer);
      rank.bytes += out.bytes;
      ++rank.transfers;
      post(r, i);
    }
    for (const std::uint32_t peer : rank.early) events_.push_back({What::message, peer, r});
    rank.early.clear();
    advance(r);
  }

  std::optional<Algorithm> forced() const {
    if (case_.forced < 0) return {};
    return static_cast<Algorithm>(case_.forced);
  }

  void send_message(std::uint32_t from, std::uint32_t to, Message message) {
    Way& w = way(from, to);
    w.messages.push_back(std::move(message));
    if (!ranks_[to].has_begun) max_early = std::max<std::uint64_t>(max_early, w.messages.size());
    events_.push_back({What::message, from, to});
  }

  void post(std::uint32_t r, std::uint32_t index) {
    Rank& rank = ranks_[r];
    Outbound& out = rank.op->outs[index];
    std::uint32_t depth = 1;
    if (out.after >= 0) depth += rank.depths[static_cast<std::size_t>(out.after)];
    if (out.step > 0) depth += *std::max_element(rank.depths.begin(), rank.depths.begin() + out.step);
    if (out.is_eager) {
      if (out.posted || !rank.op->ready(out)) return;
      out.posted = 1;
      return send_message(r, out.peer, {false, out.index, out.bytes, {out.from, out.from + out.bytes}, depth});
    }
    if (!rank.granted.contains(out.peer)) return;
    for (; out.posted < rank.op->ready(out); ++out.posted) {
      const std::uint64_t at = out.posted * out.slices.size;
      const std::uint8_t* from = out.from + at;
      way(r, out.peer)
          .slices.push_back(
              {out.index, at, from, {from, from + std::min(out.slices.size, out.bytes - at)}, false, depth});
      events_.push_back({What::land, r, out.peer});
      events_.push_back({What::announce, r, out.peer});
    }
  }

  void advance(std::uint32_t r) {
    Rank& rank = ranks_[r];
    while (const Inbound* in = rank.op->take())
      for (const std::uint32_t out : in->feeds) post(r, out);
    if (rank.op->taken < rank.op->ins.size() || rank.has_finished) return;
    rank.has_finished = true;
    if (rank.op->finish) rank.op->finish();
  }

  Inbound* find(std::uint32_t from, std::uint32_t to, bool is_eager, std::uint32_t index) {
    for (Inbound& in : ranks_[to].op->ins)
      if (in.peer == from && in.is_eager == is_eager && in.index == index && !in.has_ended) return &in;
    fail("rank " + std::to_string(to) + " does not expect a transfer from rank " + std::to_string(from));
    return nullptr;
  }
  void came(std::uint32_t to, const Inbound& in, std::uint32_t depth) {
    deepest = std::max(deepest, depth);
    for (std::size_t i = 0; i < ranks_[to].op->ins.size(); ++i)
      if (&ranks_[to].op->ins[i] == &in) ranks_[to].depths[i] = std::max(ranks_[to].depths[i], depth);
  }

  void deliver(std::uint32_t from, std::uint32_t to) {
    Rank& rank = ranks_[to];
    const Message message = std::move(way(from, to).messages.front());
    way(from, to).messages.pop_front();
    if (message.is_grant) {
      std::uint64_t mine = 0;
      for (const Outbound& out : rank.op->outs) mine += out.peer == from && !out.is_eager ? out.bytes : 0;
      if (mine != message.bytes) return fail("a grant of another size");
      rank.granted.insert(from);
      for (std::uint32_t i = 0; i < rank.op->outs.size(); ++i)
        if (rank.op->outs[i].peer == from) post(to, i);
      return;
    }
    Inbound* in = find(from, to, true, message.step);
    if (!in) return;
    if (in->bytes != message.bytes) return fail("a message of another size");
    if (message.bytes) std::memcpy(in->to, message.payload.data(), message.bytes);
    in->arrived = in->slices.count;
    in->has_ended = true;
    came(to, *in, message.depth);
    advance(to);
  }

  void land_any(Way& w, const Event& event) {
    std::vector<Slice*> left;
    for (Slice& slice : w.slices)
      if (!slice.has_landed) left.push_back(&slice);
    if (!left.empty()) land(*left[prng_.bits() % left.size()], event.from, event.to);
  }

  // In pieces, as packets come.
  void land(Slice& slice, std::uint32_t from, std::uint32_t to) {
    Inbound* in = find(from, to, false, slice.index);
    if (!in) return;
    slice.has_landed = true;
    const std::uint64_t bytes = slice.seen.size();
    if (slice.at + bytes > in->bytes) return fail("a slice beyond its transfer");
    if (bytes && std::memcmp(slice.from, slice.seen.data(), bytes) != 0)
      return fail("memory changed while it was sent");
    std::vector<std::uint64_t> starts;
    for (std::uint64_t at = 0; at < bytes; at += 4096) starts.push_back(at);
    for (std::size_t i = starts.size(); i > 0; --i) {
      std::swap(starts[prng_.bits() % i], starts[i - 1]);
      const std::uint64_t at = starts[i - 1];
      const std::uint32_t size = static_cast<std::uint32_t>(std::min<std::uint64_t>(4096, bytes - at));
      if (in->needs_placing()) in->place(slice.at + at, slice.from + at, size);
      else std::memcpy(in->to + slice.at + at, slice.from + at, size);
    }
  }

  void announce(std::uint32_t from, std::uint32_t to) {
    Way& w = way(from, to);
    if (!w.slices.front().has_landed) land(w.slices.front(), from, to);
    const Slice slice = std::move(w.slices.front());
    w.slices.pop_front();
    Inbound* in = problem.empty() ? find(from, to, false, slice.index) : nullptr;
    if (!in) return;
    came(to, *in, slice.depth);
    ++in->arrived;
    for (const std::uint32_t out : in->feeds) post(to, out);
    in->has_ended = in->arrived == in->slices.count;
    advance(to);
  }

  const Case case_;
  Prng prng_;
  std::vector<Rank> ranks_;
  std::map<std::uint64_t, Way> ways_;
  std::vector<Event> events_;
};

Part new_part(Rank& rank, std::uint64_t bytes) {
  rank.memory.emplace_back(new std::uint8_t[bytes]);  // exactly as large as it must be, so that a byte too many is seen
  if (bytes && std::fread(rank.memory.back().get(), bytes, 1, stdin) != 1) std::exit(2);
  return {rank.memory.back().get(), bytes};
}

std::vector<Rank> read_ranks(const Case& given) {
  std::vector<Rank> ranks(given.ranks);
  for (Rank& rank : ranks) {
    rank.call = {static_cast<Kind>(given.kind),
                 static_cast<DType>(given.dtype),
                 static_cast<ReduceOp>(given.op),
                 given.factor,
                 given.root,
                 {},
                 {}};
    std::uint32_t ins = 0, outs = 0;
    if (!read(ins) || !read(outs)) std::exit(2);
    std::vector<std::uint64_t> sizes(ins + outs);
    for (std::uint64_t& size : sizes)
      if (!read(size)) std::exit(2);
    for (std::uint32_t i = 0; i < ins; ++i) {
      rank.call.inputs.push_back(new_part(rank, sizes[i]));
      rank.given.emplace_back(rank.call.inputs[i].data, rank.call.inputs[i].data + sizes[i]);
    }
    for (std::uint32_t i = 0; i < outs; ++i) {
      const Part own = new_part(rank, sizes[ins + i]);
      rank.call.outputs.push_back(given.is_in_place && ins ? rank.call.inputs[i] : own);
    }
  }
  return ranks;
}

void answer(Run& run) {
  write(static_cast<std::uint32_t>(run.problem.size()));
  std::fwrite(run.problem.data(), 1, run.problem.size(), stdout);
  const Rank& first = run.ranks()[0];
  write(static_cast<std::uint32_t>(first.op ? static_cast<std::uint32_t>(first.op->descriptor.algorithm) : 0));
  write(run.deepest);
  write(static_cast<std::uint32_t>(run.max_early));
  for (const Rank& rank : run.ranks()) {
    write(rank.bytes);
    write(rank.transfers);
    write(static_cast<std::uint64_t>(rank.peers.size()));
    for (const Part& part : rank.call.outputs) std::fwrite(part.data, 1, part.bytes, stdout);
  }
  std::fflush(stdout);
}

}  // namespace

int main() {
  Case given;
  while (read(given)) {
    std::vector<Rank> ranks = read_ranks(given);
    Run run(given, std::move(ranks));
    for (std::uint32_t r = 0; r < given.ranks; ++r)
      if (const std::string why = check(run.ranks()[r].call, {r, given.ranks}); !why.empty()) run.problem = why;
    run.go();
    answer(run);
  }
  return 0;
}
