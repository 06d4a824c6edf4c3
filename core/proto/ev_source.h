// Where the EVs of a queue pair come from: drawn at random, dealt from the controller's list, or generated within the
// bounds of the profile's fields; and what they expand to.
#pragma once

#include <map>
#include <vector>

#include "base/prng.h"
#include "proto/config.h"

namespace softmrc::proto {

// spec: ev-modes
class EvSource {
 public:
  EvSource(const EvProfile& profile, Prng& prng);

  // Ports are served one after the other.
  EvPath next(std::uint32_t port);

 private:
  EvPath listed(std::uint32_t port);
  EvPath generated();
  std::uint32_t choose(std::size_t field, bool evenly);

  const EvProfile& profile_;
  Prng& prng_;
  std::uint32_t port_ = 0;

  std::vector<std::uint32_t> deck_;  // indices of the controller's entries, shuffled
  std::size_t next_in_deck_ = 0;

  std::uint32_t dealt_ = 0;  // of the generated
  std::uint64_t space_ = 0;  // how many different ones there are, as far as it matters
  std::map<wire::EvBytes, std::uint32_t> uses_;
  std::vector<std::vector<std::uint32_t>>
      field_uses_;  // on this port, by value; empty for fields with too many to count
  std::vector<std::uint32_t> chosen_;
};

}  // namespace softmrc::proto
