#include "proto/ev_source.h"

#include <algorithm>

namespace softmrc::proto {
namespace {

// Of a field with more values than a queue pair has EVs, no value comes twice by any chance worth counting.
std::uint64_t choices(const wire::EvField& f) { return std::uint64_t{f.max} - f.min + 1; }
bool is_counted(const wire::EvField& f) { return choices(f) <= max_evs; }

// So often the fields are drawn evenly in the hope of an EV that is not in use; then any will do.
constexpr int even_tries = 64;

}  // namespace

// Entries are dealt at random, so that senders do not all prefer the head of the controller's list.
EvSource::EvSource(const EvProfile& profile, Prng& prng) : profile_(profile), prng_(prng) {
  deck_.resize(profile.entries.size());
  for (std::uint32_t i = 0; i < deck_.size(); ++i) deck_[i] = i;
  for (std::size_t i = deck_.size(); i > 1; --i)
    std::swap(deck_[i - 1], deck_[prng_.below(static_cast<std::uint32_t>(i))]);
  if (profile.mode != EvMode::generated) return;
  space_ = 1;
  for (const wire::EvField& f : profile.layout.fields) {
    space_ = std::min<std::uint64_t>(space_ * choices(f), 1ull << 32);
    field_uses_.emplace_back(is_counted(f) ? choices(f) : 0, 0);
  }
  chosen_.resize(profile.layout.fields.size());
}

EvPath EvSource::next(std::uint32_t port) {
  if (port != port_) {
    port_ = port;
    next_in_deck_ = 0;
    for (auto& uses : field_uses_) std::fill(uses.begin(), uses.end(), 0);
  }
  switch (profile_.mode) {
    case EvMode::automatic: return {profile_.drawn(static_cast<std::uint32_t>(prng_.bits() >> 32))};
    case EvMode::explicit_: return listed(port);
    case EvMode::generated: return generated();
  }
  return {};
}

EvPath EvSource::listed(std::uint32_t port) {
  while (profile_.entries[deck_[next_in_deck_]].port != port) ++next_in_deck_;
  const std::uint32_t index = deck_[next_in_deck_++];
  if (profile_.evs.empty()) return {profile_.entries[index].value};
  return profile_.path_of(profile_.evs[index], index);
}

// Each field's values come equally often on a port, as far as that leaves EVs different: what a field names, a spine of
// a tier, should not get twice another's share. Only when every EV there is has been used are they repeated.
EvPath EvSource::generated() {
  const std::uint32_t level = static_cast<std::uint32_t>(dealt_ / space_);
  for (int tries = 0;; ++tries) {
    for (std::size_t i = 0; i < chosen_.size(); ++i) chosen_[i] = choose(i, tries < even_tries);
    const wire::EvBytes ev = wire::spell(profile_.layout.fields, chosen_);
    std::uint32_t& uses = uses_[ev];
    if (uses > level) continue;
    ++uses;
    for (std::size_t i = 0; i < chosen_.size(); ++i)
      if (!field_uses_[i].empty()) ++field_uses_[i][chosen_[i] - profile_.layout.fields[i].min];
    return profile_.path_of(ev, dealt_++);
  }
}

std::uint32_t EvSource::choose(std::size_t field, bool evenly) {
  const wire::EvField& f = profile_.layout.fields[field];
  const auto& uses = field_uses_[field];
  if (!evenly || uses.empty()) {
    const std::uint64_t among = choices(f);
    return f.min + (among > ~0u ? static_cast<std::uint32_t>(prng_.bits() >> 32)
                                : prng_.below(static_cast<std::uint32_t>(among)));
  }
  const std::uint32_t fewest = *std::min_element(uses.begin(), uses.end());
  auto nth = prng_.below(static_cast<std::uint32_t>(std::count(uses.begin(), uses.end(), fewest)));
  for (std::uint32_t i = 0;; ++i)
    if (uses[i] == fewest && nth-- == 0) return f.min + i;
}

}  // namespace softmrc::proto
