#include "collectives/cost.h"

#include <algorithm>
#include <bit>

#include "collectives/immediate.h"
#include "collectives/operation.h"

namespace softmrc::collectives {
namespace {

// One call under one set of constants, in picoseconds: whole numbers, so that what is equally good stays so at any
// size.
class Model {
 public:
  Model(const CollectiveSize& load, const Costs& costs)
      : load_(load), c_(costs), n_(load.ranks), others_(load.ranks - 1) {}

  std::uint64_t direct() const {
    const bool is_granted = load_.largest > eager_limit;
    switch (load_.kind) {
      case Kind::gather:
      case Kind::scatter:
      case Kind::all_to_all: return 0;  // there is no other
      case Kind::barrier: return few(fan(0));
      case Kind::all_reduce:
        return is_granted ? impossible_ps : few(fan(others_ * load_.bytes) + pass(n_ * load_.bytes));
      case Kind::reduce_scatter: return is_granted ? impossible_ps : few(fan(share()) + pass(load_.bytes));
      case Kind::all_gather: return few(fan(share()) + (is_granted ? others_ * message() : 0));
      case Kind::broadcast: return few(trip() + fan(others_ * load_.bytes));
      case Kind::reduce: return few(trip() + fan(others_ * load_.bytes) + pass(n_ * load_.bytes));
    }
    return impossible_ps;
  }

  std::uint64_t gathered() const {
    return rounds() * trip() + wire(others_ * load_.bytes) + pass(n_ * load_.bytes) + grant(n_ / 2 * load_.bytes);
  }

  std::uint64_t doubling() const {
    const std::uint64_t steps = std::bit_width(n_) - 1 + (std::has_single_bit(n_) ? 0 : 2);
    return steps * (trip() + wire(load_.bytes) + pass(load_.bytes)) + pass(load_.bytes) + grant(load_.bytes);
  }

  std::uint64_t in_rounds() const {
    const std::uint64_t once = rounds() * trip() + wire(share());
    switch (load_.kind) {
      case Kind::barrier: return once;
      case Kind::all_gather: return once + (load_.largest > eager_limit ? trip() : pass(2 * load_.bytes));
      case Kind::reduce_scatter: return once + pass(2 * load_.bytes) + grant(load_.bytes / 2);
      default: return 2 * once + pass(load_.bytes) + grant(load_.bytes / 2);
    }
  }

  std::uint64_t ring() const {
    if (2 * others_ > max_transfers) return impossible_ps;
    const std::uint64_t once = trip() + others_ * trip() + wire(share());
    if (load_.kind == Kind::reduce_scatter) return once;
    const std::uint64_t gather = others_ <= max_peers(n_) ? fan(0) + others_ * message()
                                                          : rounds() * (trip() + message());
    return once + gather + wire(share());
  }

  // Rows round rings, and back; a column has what one of its row owns, and is granted with the rest.
  std::uint64_t grid(std::uint32_t columns) const {
    const std::uint64_t steps = columns - 1, owned = load_.bytes / columns, rows = n_ / columns;
    if (2 * steps > max_transfers) return impossible_ps;
    const std::uint64_t down = std::bit_width(rows - 1) * trip() + wire(owned - owned / rows);
    return trip() + 2 * (steps * trip() + wire(load_.bytes - owned)) + 2 * down + pass(owned);
  }
  std::uint32_t columns() const {
    std::uint32_t best = 1;
    // A row is of whole machines: else what their ranks could add up among themselves goes by the network.
    const auto consider = [&](std::uint32_t columns) {
      if (columns % load_.side_by_side != 0) return;
      if (best == 1 || grid(columns) < grid(best)) best = columns;
    };
    for (std::uint32_t few = 2; few * few <= n_; ++few)
      if (n_ % few == 0) consider(few), consider(n_ / few);
    return best;
  }

  std::uint64_t binomial() const {
    const std::uint64_t merge = load_.kind == Kind::reduce ? pass(load_.bytes) : 0;
    return trip() + rounds() * (trip() + wire(load_.bytes) + merge);
  }
  std::uint64_t binary() const {
    const std::uint64_t depth = std::bit_width(n_) - 1;
    return trip() + depth * (trip() + message() + 2 * wire(slice())) + 2 * wire(load_.bytes - slice());
  }
  std::uint64_t chain() const { return trip() + others_ * (trip() + wire(slice())) + wire(load_.bytes - slice()); }

 private:
  std::uint64_t latency() const { return c_.latency_ns * 1000; }
  std::uint64_t message() const { return c_.message_ns * 1000; }
  std::uint64_t trip() const { return latency() + message(); }
  std::uint64_t wire(std::uint64_t bytes) const { return bytes * c_.byte_ps; }
  std::uint64_t pass(std::uint64_t bytes) const { return bytes * c_.pass_ps; }
  std::uint64_t fan(std::uint64_t bytes) const { return latency() + others_ * message() + wire(bytes); }
  std::uint64_t grant(std::uint64_t largest) const { return largest > eager_limit ? trip() : 0; }
  std::uint64_t few(std::uint64_t time) const { return others_ <= max_peers(n_) ? time : impossible_ps; }
  std::uint64_t share() const { return load_.bytes - load_.bytes / n_; }  // all parts but a rank's own
  std::uint64_t rounds() const { return std::bit_width(n_ - 1); }
  std::uint64_t slice() const { return std::min(load_.bytes, slice_for(load_.bytes, 1)); }

  const CollectiveSize& load_;
  const Costs& c_;
  const std::uint32_t n_;
  const std::uint64_t others_;
};

bool suits(Algorithm algorithm, Kind kind) {
  using enum Algorithm;
  switch (kind) {
    case Kind::all_reduce:
      return algorithm == direct || algorithm == gathered || algorithm == doubling || algorithm == rounds ||
             algorithm == ring || algorithm == grid;
    case Kind::reduce_scatter: return algorithm == direct || algorithm == rounds || algorithm == ring;
    case Kind::all_gather:
    case Kind::barrier: return algorithm == direct || algorithm == rounds;
    case Kind::broadcast:
      return algorithm == direct || algorithm == binomial || algorithm == binary || algorithm == chain;
    case Kind::reduce: return algorithm == direct || algorithm == binomial || algorithm == rounds || algorithm == chain;
    case Kind::gather:
    case Kind::scatter:
    case Kind::all_to_all: return algorithm == direct;
  }
  return false;
}

}  // namespace

std::uint32_t max_peers(std::uint32_t ranks) { return 2 * static_cast<std::uint32_t>(std::bit_width(ranks)); }

std::uint64_t time_of(Algorithm algorithm, const CollectiveSize& load, const Costs& costs) {
  if (!suits(algorithm, load.kind)) return impossible_ps;
  if (load.ranks == 1) return 0;
  const Model model(load, costs);
  switch (algorithm) {
    case Algorithm::direct: return model.direct();
    case Algorithm::gathered: return model.gathered();
    case Algorithm::doubling: return model.doubling();
    case Algorithm::rounds: return model.in_rounds();
    case Algorithm::ring: return model.ring();
    case Algorithm::grid: return model.columns() > 1 ? model.grid(model.columns()) : impossible_ps;
    case Algorithm::binomial: return model.binomial();
    case Algorithm::binary: return model.binary();
    case Algorithm::chain: return model.chain();
  }
  return impossible_ps;
}

std::uint32_t columns_of(const CollectiveSize& load, const Costs& costs) { return Model(load, costs).columns(); }

Algorithm cheapest(const CollectiveSize& load, const Costs& costs, std::optional<Algorithm> forced) {
  if (forced && time_of(*forced, load, costs) != impossible_ps) return *forced;
  Algorithm best = Algorithm::direct;
  for (std::size_t i = 1; i < algorithm_names.size(); ++i) {
    const Algorithm other = static_cast<Algorithm>(i);
    if (time_of(other, load, costs) < time_of(best, load, costs)) best = other;
  }
  return best;
}

}  // namespace softmrc::collectives
