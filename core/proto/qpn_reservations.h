// Numbers that are kept for an owner that makes queue pairs and regions when they are first needed: its peers know them
// before there is anything behind them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/time.h"

namespace softmrc::proto {

class Endpoint;

class LazyAccept {
 public:
  virtual ~LazyAccept() = default;
  // This peer speaks to a queue pair whose number is kept, and which there is not yet; or, before it has any, to the
  // node itself (queue pair 2). Who knows better makes none.
  virtual void on_first_packet(Endpoint& engine, Time now, std::uint32_t peer, std::uint32_t qpn) = 0;
};

struct QpnReservation {
  std::uint32_t first_qpn = 0;
  std::uint32_t stride = 1;  // from one number to the next
  std::uint32_t qpns = 0;
  std::uint32_t first_rkey = 0;
  std::uint32_t rkeys = 0;

  std::uint64_t last_qpn() const { return first_qpn + std::uint64_t{stride} * (qpns - 1); }
  bool has_qpn(std::uint32_t qpn) const {
    return qpn >= first_qpn && qpn <= last_qpn() && (qpn - first_qpn) % stride == 0;
  }
  bool has_rkey(std::uint32_t rkey) const { return rkey - first_rkey < rkeys; }
  bool overlaps(const QpnReservation& other) const {
    return (first_qpn <= other.last_qpn() && other.first_qpn <= last_qpn()) || has_rkey(other.first_rkey) ||
           other.has_rkey(first_rkey);
  }
};

class QpnReservations {
 public:
  bool empty() const { return kept_.empty(); }
  std::size_t size() const { return kept_.size(); }
  bool overlap(const QpnReservation& reserve) const {
    return std::any_of(kept_.begin(), kept_.end(), [&](const Kept& kept) { return kept.numbers.overlaps(reserve); });
  }
  void add(const QpnReservation& reserve, LazyAccept& owner) { kept_.push_back({reserve, &owner}); }
  void remove(const LazyAccept& owner) {
    std::erase_if(kept_, [&](const Kept& kept) { return kept.owner == &owner; });
  }
  // Null: not reserved.
  LazyAccept* owner_of_qpn(std::uint32_t qpn) const {
    return owner_if([qpn](const QpnReservation& numbers) { return numbers.has_qpn(qpn); });
  }
  template <typename F>
  void for_each_owner(F f) const {
    for (const Kept& kept : kept_) f(*kept.owner);
  }
  LazyAccept* owner_of_rkey(std::uint32_t rkey) const {
    return owner_if([rkey](const QpnReservation& numbers) { return numbers.has_rkey(rkey); });
  }

 private:
  struct Kept {
    QpnReservation numbers;
    LazyAccept* owner = nullptr;
  };

  template <typename F>
  LazyAccept* owner_if(F is_in) const {
    const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) { return is_in(kept.numbers); });
    return found == kept_.end() ? nullptr : found->owner;
  }

  std::vector<Kept> kept_;
};

}  // namespace softmrc::proto
