#include "proto/ev_set.h"

#include <algorithm>
#include <bit>

#include "proto/ev_source.h"

namespace softmrc::proto {

namespace {
// So many losses in a row on one port, and nothing acknowledged there since, mean that the port is silent. Where all
// were on one path it may be that alone; the others are then back as soon as their probes are answered, which costs
// less than to lose a burst on each of them in turn.
constexpr std::uint16_t silent_port_strikes = 3;
// An EV that carried fewer packets than this between two losses is ill rather than unlucky.
constexpr std::uint8_t healthy_carry = 32;
constexpr std::uint8_t max_damping = 10;
// How often a port that has lost EVs is passed over before it goes ahead of the whole ones.
constexpr std::uint8_t max_waits = 32;
// A bar is doubled so many times at most.
constexpr std::uint8_t max_relapses = 4;
}  // namespace

// spec: ev-equal-planes
void EvSet::build(const EvProfile& profile, std::uint32_t ports, Prng prng) {
  prng_ = prng;
  floor_ = profile.floor();
  skips_congested_ = profile.skips_congested;
  ports_.assign(ports, PortState{});
  const std::uint32_t total = profile.count + profile.spares;
  active_per_port_ = profile.count / ports;
  per_port_ = total / ports;
  evs_.reserve(total + ports);
  order_.assign(total, no_ev);
  EvSource source(profile, prng_);
  next_number_ = static_cast<std::uint32_t>(std::max<std::size_t>(total, profile.entries.size()));
  for (std::uint32_t port = 0; port < ports; ++port) {
    for (std::uint32_t i = 0; i < per_port_; ++i) {
      const EvPath path = source.next(port);
      Ev ev;
      ev.value = path.value;
      ev.port = static_cast<std::uint8_t>(port);
      ev.is_spare = i >= active_per_port_;
      evs_.push_back(ev);
      if (profile.is_wide()) wide_.push_back(path.wide);
      if (!ev.is_spare) append(static_cast<std::uint16_t>(evs_.size() - 1));
    }
  }
  count_usable();
  for (std::uint32_t port = 0; port < ports; ++port) {
    Ev retired;
    retired.port = static_cast<std::uint8_t>(port);
    retired.state = EvState::denied;
    evs_.push_back(retired);
  }
}

// A port that was out of use for a while rejoins the others' count.
void EvSet::begin_lap(PortState& port) {
  port.turned = 0;
  port.waited = 0;
  port.is_congested = false;
  ++port.laps;
  for (const PortState& other : ports_)
    if (static_cast<std::int32_t>(other.laps - port.laps) > 1) port.laps = other.laps - 1;
}

// The next turn of the round among these ports, which must have one.
// spec: ev-rotation
std::uint16_t EvSet::draw(std::uint32_t ports) {
  std::uint32_t left = 0;
  for (std::uint32_t set = ports; set; set &= set - 1) {
    const PortState& port = ports_[static_cast<std::size_t>(std::countr_zero(set))];
    left += port.in_rotation - port.turned;
  }
  if (left == 0) {
    for (std::uint32_t set = ports; set; set &= set - 1) {
      PortState& port = ports_[static_cast<std::size_t>(std::countr_zero(set))];
      begin_lap(port);
      left += port.in_rotation;
    }
  }
  std::uint32_t drawn = prng_.below(left);
  auto at = static_cast<std::uint32_t>(std::countr_zero(ports));
  for (; drawn >= static_cast<std::uint32_t>(ports_[at].in_rotation - ports_[at].turned);
       at = static_cast<std::uint32_t>(std::countr_zero(ports))) {
    drawn -= ports_[at].in_rotation - ports_[at].turned;
    ports &= ports - 1;
    if (ports == 0) break;
  }
  const std::uint32_t next = at * per_port_ + ports_[at].turned++;
  const std::uint16_t chosen = order_[next + drawn];
  put(next + drawn, order_[next]);
  put(next, chosen);
  return chosen;
}

// A port that has lost some of its EVs, and whose others are congested, carries as much less: its round is shorter, and
// it does not begin the next one before a whole port has. Without this the paths that are left would queue until the
// congestion window of all planes shrinks.
// spec: ev-shares
bool EvSet::must_wait(std::uint32_t at) {
  PortState& port = ports_[at];
  if (!port.is_congested || port.in_rotation >= active_per_port_ || port.turned < port.in_rotation) return false;
  bool has_model = false;
  for (std::uint32_t other = 0; other < ports_.size(); ++other) {
    if (!(live_ports_ >> other & 1) || ports_[other].in_rotation < active_per_port_) continue;
    if (static_cast<std::int32_t>(ports_[other].laps - port.laps) > 0) return false;
    has_model = true;
  }
  // A whole port that stays busy for long must not stop the others for good.
  if (!has_model || ++port.waited > max_waits) {
    port.waited = 0;
    return false;
  }
  return true;
}

// Of these ports, none of which is whole, those that may take the next turn.
std::uint32_t EvSet::without_waiting(std::uint32_t ports) {
  std::uint32_t left = 0;
  for (std::uint32_t set = ports; set; set &= set - 1) {
    const auto at = static_cast<std::uint32_t>(std::countr_zero(set));
    if (ports_[at].in_rotation && !must_wait(at)) left |= 1u << at;
  }
  return left;
}

// spec: ev-skip
std::uint16_t EvSet::pick(EvSearch& search, std::uint32_t ports) {
  ports &= usable_ports_;
  if (!(ports & whole_ports_)) [[unlikely]] {
    ports = without_waiting(ports);
    if (ports == 0) return no_ev;
  }
  const std::uint16_t drawn = draw(ports);
  const bool is_free = evs_[drawn].state == EvState::good && drawn != search.avoid && drawn != search.restored;
  return is_free ? drawn : pick_again(search, ports, drawn);
}

// `drawn` was not free: it is dealt with, and others are drawn.
std::uint16_t EvSet::pick_again(EvSearch& search, std::uint32_t ports, std::uint16_t drawn) {
  std::uint32_t count = 0;
  for (std::uint32_t set = ports; set; set &= set - 1)
    count += ports_[static_cast<std::size_t>(std::countr_zero(set))].in_rotation;
  std::uint16_t suspended = no_ev;
  bool may_repeat = false;
  for (std::uint32_t step = 1;; ++step) {
    Ev& ev = evs_[drawn];
    if (ev.is_suspended && ev.suspended_until > search.now) [[unlikely]] {
      if (drawn == search.avoid) may_repeat = true;
      else suspended = drawn;
    } else if (ev.state == EvState::skip) {
      if (search.restored == no_ev) {
        end_skip(ev);
        search.restored = drawn;
      }
    } else if (drawn == search.avoid) {
      may_repeat = true;
    } else if (drawn != search.restored) {
      return drawn;
    }
    if (step >= 2 * count) break;
    if (!(ports & whole_ports_)) [[unlikely]] {
      ports = without_waiting(ports);
      if (ports == 0) return no_ev;
    }
    drawn = draw(ports);
  }
  // Nothing else is left: the one just restored, sooner than a suspended one, sooner than the one to avoid.
  if (search.restored != no_ev && ports >> evs_[search.restored].port & 1) return search.restored;
  return suspended == no_ev && may_repeat ? search.avoid : suspended;
}

std::uint16_t EvSet::pick_instead(const EvSearch& search, std::uint16_t ev) {
  const std::uint32_t port = evs_[ev].port;
  const std::uint16_t other = order_[port * per_port_ + prng_.below(ports_[port].in_rotation)];
  const bool is_free = evs_[other].state == EvState::good && other != search.avoid && other != search.restored;
  return is_free ? other : no_ev;
}

void EvSet::end_skip(Ev& ev) {
  ev.state = EvState::good;
  if (!ev.is_suspended) return;
  ev.is_suspended = false;
  --ports_[ev.port].suspended;
}

// Where more than half of a port's paths would be suspended, it is not this path that is worse than the others.
// spec: ev-barred
void EvSet::suspend(std::uint16_t ev, Time now, Duration span) {
  on_congestion(ev);
  Ev& e = evs_[ev];
  if (e.state != EvState::skip) return;
  if (!e.is_suspended) {
    PortState& port = ports_[e.port];
    if (2 * (port.suspended + 1) > port.in_rotation) return;
    ++port.suspended;
    e.is_suspended = true;
    const bool is_relapse = now - e.suspended_until <= span * (1 << e.relapses);
    e.relapses = is_relapse ? std::min<std::uint8_t>(e.relapses + 1, max_relapses) : 0;
  }
  e.suspended_until = std::max(e.suspended_until, now + span * (1 << e.relapses));
}

std::uint16_t EvSet::pick_any(std::uint32_t ports) {
  ports &= live_ports_;
  std::uint16_t chosen = no_ev;
  std::uint32_t seen = 0;
  for (std::uint16_t i = 0; i < size(); ++i)
    if (evs_[i].state != EvState::denied && ports >> evs_[i].port & 1 && prng_.below(++seen) == 0) chosen = i;
  return chosen;
}

void EvSet::append(std::uint16_t ev) {
  PortState& port = ports_[evs_[ev].port];
  put(evs_[ev].port * per_port_ + port.in_rotation++, ev);
}

void EvSet::enter_rotation(std::uint16_t ev) {
  append(ev);
  count_usable();
}

// Those that have had their turn this round stand before those that have not; removing keeps it so.
void EvSet::leave_rotation(std::uint16_t ev) {
  std::uint32_t place = evs_[ev].place;
  if (place == no_ev) return;
  end_skip(evs_[ev]);
  PortState& port = ports_[evs_[ev].port];
  const std::uint32_t first = evs_[ev].port * per_port_;
  const std::uint32_t last = first + --port.in_rotation;
  if (place < first + port.turned) {
    const std::uint32_t newest = first + --port.turned;
    put(place, order_[newest]);
    place = newest;
  }
  if (place != last) put(place, order_[last]);
  evs_[ev].place = no_ev;
  count_usable();
}

void EvSet::count_usable() {
  usable_ = usable_ports_ = whole_ports_ = 0;
  for (std::uint32_t port = 0; port < ports_.size(); ++port) {
    const std::uint32_t count = ports_[port].in_rotation;
    if (!(live_ports_ >> port & 1) || count == 0) continue;
    usable_ += count;
    usable_ports_ |= 1u << port;
    if (count >= active_per_port_) whole_ports_ |= 1u << port;
  }
}

// Withdraws a path: it is ASSUMED_BAD until probes on it are answered.
// spec: ev-flap-damping
void EvSet::demote(std::uint16_t ev) {
  Ev& e = evs_[ev];
  if (e.state == EvState::assumed_bad || e.state == EvState::denied) return;
  if (e.carried < healthy_carry) e.damping = std::min<std::uint8_t>(e.damping + 1, max_damping);
  else if (e.damping) --e.damping;
  leave_rotation(ev);
  e.state = EvState::assumed_bad;
  e.withdrawn_with_port = false;
  changes_.push(ev);
}

// At the floor it is stepped over once: a path that has just delivered is no worse than none.
// spec: ev-floor
void EvSet::on_always_skip(std::uint16_t ev) {
  if (evs_[ev].place == no_ev) return;
  if (usable() <= floor_) return on_congestion(ev);
  demote(ev);
  activate_spare(evs_[ev].port);
}

bool EvSet::activate_spare(std::uint8_t port) {
  for (std::uint16_t i = 0; i < size(); ++i) {
    Ev& spare = evs_[i];
    if (!spare.is_spare || spare.port != port || spare.state != EvState::good) continue;
    spare.is_spare = false;
    enter_rotation(i);
    return true;
  }
  return false;
}

// The port lives after all. What it lost while that was uncertain is made up for now, so that it carries its share.
void EvSet::clear_strikes(std::uint8_t port) {
  ports_[port].strikes = 0;
  while (ports_[port].in_rotation < active_per_port_ && activate_spare(port)) {}
}

bool EvSet::port_fell_silent(std::uint16_t ev, Time sent_at) {
  PortState& port = ports_[evs_[ev].port];
  // Lost before the port last answered: no news about the port, either way.
  if (sent_at <= port.acked_sent_at) return false;
  if (port.strikes == 0) port.several_evs_struck = false;
  else if (port.last_struck != ev) port.several_evs_struck = true;
  port.last_struck = ev;
  port.struck_sent_at = port.strikes ? std::max(port.struck_sent_at, sent_at) : sent_at;
  ++port.strikes;
  return port.strikes >= silent_port_strikes;
}

void EvSet::silence_port(std::uint8_t port) {
  for (std::uint16_t i = 0; i < size(); ++i) {
    Ev& ev = evs_[i];
    if (ev.port != port || ev.place == no_ev) continue;
    const std::uint8_t damping = ev.damping;
    demote(i);
    ev.damping = damping;  // a healthy EV is not to blame for its port
    ev.withdrawn_with_port = true;
  }
}

// spec: slow-port
void EvSet::leave_port(std::uint8_t port, std::uint8_t wait) {
  ports_[port].slow_wait = wait;
  silence_port(port);
}

// spec: ev-loss ev-floor
void EvSet::on_loss(std::uint16_t ev, Time sent_at, Time latest_acked_sent, Duration three_rtt) {
  if (is_retired(ev)) return;
  Ev& e = evs_[ev];
  ++e.drops;
  const bool another_port_lives = usable() > (live_ports_ >> e.port & 1 ? ports_[e.port].in_rotation : 0u);
  if (port_fell_silent(ev, sent_at) && another_port_lives) {
    silence_port(e.port);
    return;
  }
  if (e.state == EvState::assumed_bad || e.state == EvState::denied) return;
  const bool silent = e.unacked_since != Time::never() && latest_acked_sent - e.unacked_since > three_rtt;
  if (usable() <= floor_ && !silent) return;
  const bool was_active = e.place != no_ev;
  demote(ev);
  // A port that just lost a packet and acknowledged nothing since would only lose the spare's packets too.
  if (was_active && ports_[e.port].strikes <= 1) activate_spare(e.port);
}

bool EvSet::on_spurious(std::uint16_t ev, Time sent_at) {
  const std::uint8_t port = evs_[ev].port;
  if (ports_[port].slow_wait) return false;  // that it arrives, and late, was known
  const bool whole_port = evs_[ev].withdrawn_with_port;
  if (whole_port && ports_[port].strikes && sent_at < ports_[port].struck_sent_at) return false;
  for (std::uint16_t i = 0; i < size(); ++i) {
    Ev& e = evs_[i];
    if (e.state != EvState::assumed_bad || e.port != port) continue;
    if (i != ev && !(whole_port && e.withdrawn_with_port)) continue;
    return_to_service(i);
    e.carried = 255;
  }
  clear_strikes(port);
  return true;
}

void EvSet::revive(std::uint16_t ev) {
  return_to_service(ev);
  evs_[ev].carried = 0;
  clear_strikes(evs_[ev].port);
}

void EvSet::return_to_service(std::uint16_t ev) {
  Ev& e = evs_[ev];
  ports_[e.port].slow_wait = 0;  // a port in use is measured, whatever brought it back, and can be left again
  e.state = EvState::good;
  e.withdrawn_with_port = false;
  e.unacked_since = Time::never();
  // Its place may have been taken by a spare since; then it is the spare now, and the port keeps its share.
  e.is_spare = ports_[e.port].in_rotation >= active_per_port_;
  if (!e.is_spare) enter_rotation(ev);
  changes_.push(ev);
}

// spec: ev-denied
void EvSet::deny(std::uint16_t ev) {
  Ev& e = evs_[ev];
  if (e.state == EvState::denied) return;
  const bool was_active = e.place != no_ev;
  leave_rotation(ev);
  e.state = EvState::denied;
  e.is_spare = false;
  if (was_active) activate_spare(e.port);
}

void EvSet::allow(std::uint16_t ev) {
  Ev& e = evs_[ev];
  if (e.state != EvState::denied) return;
  return_to_service(ev);
  e.carried = 255;
}

// Nothing that the old path did counts for the new one, nor does a word against it on behalf of the port.
// spec: ev-replace
void EvSet::replace(std::uint16_t ev, const EvPath& path) {
  Ev& e = evs_[ev];
  PortState& port = ports_[e.port];
  if (port.last_struck == ev && !port.several_evs_struck) port.strikes = 0;
  evs_[retired_on(e.port)].value = e.value;
  e.value = path.value;
  if (!wide_.empty()) wide_[ev] = path.wide;
  e.drops = 0;
  e.damping = 0;
  e.withdrawn_with_port = false;
  e.unacked_since = Time::never();
  e.relapses = 0;
  e.suspended_until = Time::long_ago();
  if (e.state == EvState::skip) end_skip(e);
  if (e.state == EvState::assumed_bad) return_to_service(ev);
  e.carried = 255;
}

std::uint16_t EvSet::find_on(std::uint32_t port, std::uint32_t value) const {
  for (std::uint32_t i = port * per_port_; i < (port + 1) * per_port_; ++i)
    if (evs_[i].value == value && evs_[i].state != EvState::denied) return static_cast<std::uint16_t>(i);
  return no_ev;
}

std::uint16_t EvSet::permitted_on(std::uint32_t port, Prng& prng) const {
  if (ports_[port].in_rotation) return order_[port * per_port_ + prng.below(ports_[port].in_rotation)];
  std::uint16_t chosen = no_ev;
  std::uint32_t seen = 0;
  for (std::uint32_t i = port * per_port_; i < (port + 1) * per_port_; ++i)
    if (evs_[i].state != EvState::denied && prng.below(++seen) == 0) chosen = static_cast<std::uint16_t>(i);
  return chosen;
}

std::optional<std::uint16_t> EvSet::find(std::uint32_t value) const {
  for (std::uint16_t i = 0; i < size(); ++i)
    if (evs_[i].value == value) return i;
  return std::nullopt;
}

std::optional<std::uint16_t> EvSet::any_on(std::uint32_t port) {
  if (ports_[port].in_rotation == 0) return std::nullopt;
  return order_[port * per_port_ + prng_.below(ports_[port].in_rotation)];
}

}  // namespace softmrc::proto
