// What a face cannot do with what it was given, by the caller, by the environment or by a peer: in words, for people.
#pragma once

#include <stdexcept>
#include <string>

#include "proto/settings.h"

namespace softmrc::face {

struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The other side is gone, and said nothing.
struct HungUp : Refusal {
  using Refusal::Refusal;
};

// "1 plane", "2 planes".
inline std::string counted(std::size_t count, const std::string& thing) { return std::to_string(count) + " " + thing + (count == 1 ? "" : "s"); }

inline std::string in_words(const proto::Problem& problem) {
  return problem.field + " is " + problem.value + "; allowed: " + problem.allowed;
}
inline void raise_if(const proto::Verdict& verdict) {
  if (verdict) throw Refusal(in_words(*verdict));
}

}  // namespace softmrc::face
