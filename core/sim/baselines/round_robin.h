// Who of many is next, without asking them all: by turns among those that may, and by the clock among those that wait.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "base/time.h"

namespace softmrc::sim {

// The members of a set in turn: each search starts behind the one found last.
class RoundRobin {
 public:
  void set(std::uint32_t i, bool is_ready) {
    if (i / 64 >= words_.size()) words_.resize(i / 64 + 1);
    const std::uint64_t bit = 1ull << i % 64;
    words_[i / 64] = is_ready ? words_[i / 64] | bit : words_[i / 64] & ~bit;
  }

  // The next member that `accepts` takes; it has had its turn then.
  template <class Accepts>
  bool take(Accepts&& accepts, std::uint32_t& found) {
    return take_between(turn_, size(), accepts, found) || take_between(0, turn_, accepts, found);
  }

 private:
  std::uint32_t size() const { return static_cast<std::uint32_t>(64 * words_.size()); }

  template <class Accepts>
  bool take_between(std::uint32_t first, std::uint32_t end, Accepts& accepts, std::uint32_t& found) {
    for (std::uint32_t at = first; at < end; at = (at / 64 + 1) * 64) {
      std::uint64_t word = words_[at / 64] & ~0ull << at % 64;
      for (; word; word &= word - 1) {
        const std::uint32_t i = at / 64 * 64 + static_cast<std::uint32_t>(std::countr_zero(word));
        if (i >= end) return false;
        if (!accepts(i)) continue;
        turn_ = i + 1;
        found = i;
        return true;
      }
    }
    return false;
  }

  std::vector<std::uint64_t> words_;
  std::uint32_t turn_ = 0;
};

// One alarm a member; the earliest is known at once. A tree of minima: node 1 is the root, leaves are the second half.
class TimerTree {
 public:
  void set(std::uint32_t i, Time at) {
    while (i >= leaves()) grow();
    std::uint32_t node = leaves() + i;
    tree_[node] = at;
    while (node /= 2) {
      const Time least = std::min(tree_[2 * node], tree_[2 * node + 1]);
      if (tree_[node] == least) return;
      tree_[node] = least;
    }
  }

  Time earliest() const { return tree_[1]; }

  std::uint32_t whose_is_earliest() const {
    std::uint32_t node = 1;
    while (node < leaves()) node = tree_[2 * node] == tree_[node] ? 2 * node : 2 * node + 1;
    return node - leaves();
  }

 private:
  std::uint32_t leaves() const { return static_cast<std::uint32_t>(tree_.size() / 2); }

  void grow() {
    std::vector<Time> tree(2 * tree_.size(), Time::never());
    std::copy(tree_.begin() + leaves(), tree_.end(), tree.begin() + 2 * leaves());
    tree_.swap(tree);
    for (std::uint32_t node = leaves() - 1; node; --node) tree_[node] = std::min(tree_[2 * node], tree_[2 * node + 1]);
  }

  std::vector<Time> tree_ = std::vector<Time>(2, Time::never());
};

}  // namespace softmrc::sim
