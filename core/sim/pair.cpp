#include "sim/pair.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "wire/icrc.h"

namespace softmrc::sim {
namespace {

bool is_data(const proto::Transmit& t) { return t.traffic_class != proto::TrafficClass::control; }
bool is_trimmable(const proto::Transmit& t) {
  return wire::is_write(t.packet.bth.opcode) && t.traffic_class != proto::TrafficClass::data_no_trim;
}

// The addresses that the ICRC covers: one per side and port, out of a documentation prefix.
wire::Route route(std::uint32_t sender, std::uint8_t port, std::uint32_t entropy) {
  const auto address = [port](std::uint32_t side) {
    return wire::Ipv6{0x20, 0x01, 0x0D, 0xB8, 0, port, 0, 0, 0, 0, 0, 0, 0, 0, 0, static_cast<std::uint8_t>(side + 1)};
  };
  return {address(sender), address(1 - sender), static_cast<std::uint16_t>(entropy), wire::default_udp_port};
}

}  // namespace

Pair::Pair(const PairConfig& config, const proto::EndpointConfig& a, const proto::EndpointConfig& b)
    : config_(config), prng_(config.seed, "pair") {
  SOFTMRC_CHECK(a.ports == config.ports && b.ports == config.ports);
  endpoints_[0] = std::make_unique<proto::Endpoint>(a);
  endpoints_[1] = std::make_unique<proto::Endpoint>(b);
  for (std::uint32_t i = 0; i < 2; ++i) {
    peer_ids_[i] = endpoints_[i]->add_peer();
    links_[i].resize(config.ports);
    surroundings_[i].pair = this;
    surroundings_[i].side = i;
  }
}

void Pair::set_process(std::uint32_t which, const ProcessConfig& config) {
  processes_[which] = Process(config, config_.ports, Prng(config_.seed, "process", which));
}

void Pair::restart(std::uint32_t which, const proto::EndpointConfig& config) {
  SOFTMRC_CHECK(config.ports == config_.ports);
  processes_[which].die([this](std::uint32_t slot) { free_in_flight_.push_back(slot); });
  dead_.push_back(std::move(endpoints_[which]));
  endpoints_[which] = std::make_unique<proto::Endpoint>(config);
  peer_ids_[which] = endpoints_[which]->add_peer();
  stalled_until_[which] = now_;
}

void Pair::set_ev_dead(std::uint32_t sender, std::uint32_t port, std::uint32_t entropy, bool is_dead) {
  Link& link = links_[sender][port];
  link.watches_paths = true;
  link.paths[entropy].is_dead = is_dead;
}

void Pair::set_ev_loss(std::uint32_t sender, std::uint32_t port, std::uint32_t entropy, double loss) {
  Link& link = links_[sender][port];
  link.watches_paths = true;
  link.paths[entropy].loss = loss;
}

Time Pair::last_polled_at(std::uint32_t sender, std::uint32_t port, std::uint32_t entropy) const {
  const auto& paths = links_[sender][port].paths;
  const auto found = paths.find(entropy);
  return found == paths.end() ? Time::long_ago() : found->second.last_polled;
}

void Pair::mix(std::uint64_t value) { hash_ = (hash_ ^ value) * 0x100000001B3u ^ (hash_ >> 29); }

std::uint32_t Pair::take_slot() {
  if (free_in_flight_.empty()) {
    in_flight_.emplace_back();
    return static_cast<std::uint32_t>(in_flight_.size() - 1);
  }
  const std::uint32_t slot = free_in_flight_.back();
  free_in_flight_.pop_back();
  return slot;
}

// A port takes another packet while its queue is shorter than two full packets of time.
std::uint32_t Pair::free_ports(std::uint32_t sender) {
  port_free_at_[sender] = Time::never();
  if (config_.port_rate_bps == 0) return (1u << config_.ports) - 1;
  const Duration room{static_cast<std::int64_t>(2.0 * 4096 * 8 * 1e12 / static_cast<double>(config_.port_rate_bps))};
  std::uint32_t mask = 0;
  for (std::uint32_t port = 0; port < config_.ports; ++port) {
    const Time free_at = links_[sender][port].free_at - room;
    if (free_at <= now_) mask |= 1u << port;
    else port_free_at_[sender] = std::min(port_free_at_[sender], free_at);
  }
  return mask;
}

void Pair::drain(std::uint32_t sender) {
  if (processes_[sender].exists()) return processes_[sender].kick(now_);
  if (stalled_until_[sender] > now_) return;
  proto::Endpoint& endpoint = *endpoints_[sender];
  while (true) {
    const std::uint32_t ports = free_ports(sender);
    if (ports == 0 || !endpoint.poll_transmit(now_, ports, scratch_)) return;
    send(sender, scratch_);
  }
}

Time Pair::arrival_time(Link& link, const proto::Transmit& transmit, Time departs) {
  const Weather& weather = link.weather;
  if (weather.neck_bps) {
    const double bits = 8.0 * static_cast<double>(wire::packet_size(transmit.packet) + proto::nominal_overhead);
    departs = std::max(departs, link.neck_free_at) + Duration{static_cast<std::int64_t>(bits * 1e12 / static_cast<double>(weather.neck_bps))};
    link.neck_free_at = departs;
  }
  Time at = departs + config_.one_way_delay + weather.delay;
  if (weather.path_jitter.ps > 0) {
    Path& path = link.paths[transmit.entropy];
    if (now_ >= path.redraw_at) {
      path.extra = Duration{static_cast<std::int64_t>(prng_.unit() * static_cast<double>(weather.path_jitter.ps))};
      path.redraw_at = now_ + config_.one_way_delay * (2 + prng_.below(16));
    }
    at = std::max(at + path.extra, path.last_arrival);
    path.last_arrival = at;
  }
  if ((is_data(transmit) || !weather.spares_control) && prng_.chance(weather.reorder)) {
    at = at + Duration{static_cast<std::int64_t>(prng_.unit() * static_cast<double>(weather.reorder_delay.ps))};
    ++counters_.reordered;
  }
  return at;
}

void Pair::send(std::uint32_t sender, const proto::Transmit& transmit) {
  Link& link = links_[sender][transmit.port];
  const Weather& weather = link.weather;
  const bool data = is_data(transmit);
  if (wire::is_write(transmit.packet.bth.opcode)) ++link.data_packets;

  Time departs = now_;
  bool marked = false;
  bool trimmed = false;
  if (config_.port_rate_bps) {
    const std::int64_t queued_ps = std::max<std::int64_t>(0, (link.free_at - now_).ps);
    const double queued_bytes = static_cast<double>(queued_ps) * static_cast<double>(config_.port_rate_bps) / 8e12;
    marked = data && config_.mark_above_bytes && queued_bytes > config_.mark_above_bytes;
    trimmed = config_.trim_above_bytes && queued_bytes > config_.trim_above_bytes && is_trimmable(transmit);
    const double bytes = trimmed ? 100.0 : static_cast<double>(wire::packet_size(transmit.packet) + proto::nominal_overhead);
    departs = std::max(now_, link.free_at) + Duration{static_cast<std::int64_t>(bytes * 8e12 / static_cast<double>(config_.port_rate_bps))};
    link.free_at = departs;
  }
  if (link.watches_paths) {
    Path& path = link.paths[transmit.entropy];
    path.last_polled = processes_[sender].exists() ? processes_[sender].polled_at() : now_;
    if (path.is_dead || prng_.chance(path.loss)) {
      ++counters_.swallowed;
      return;
    }
  }
  if (weather.black_hole) {
    ++counters_.swallowed;
    return;
  }
  const bool overflows = weather.neck_bytes && static_cast<double>((link.neck_free_at - departs).ps) * static_cast<double>(weather.neck_bps) >
                                                   8e12 * static_cast<double>(weather.neck_bytes);
  if (overflows) {
    ++counters_.lost;
    return;
  }
  const bool exposed = data || !weather.spares_control;
  if (exposed && prng_.chance(weather.loss)) {
    ++counters_.lost;
    return;
  }
  if (prng_.chance(weather.starve) && wire::is_write(transmit.packet.bth.opcode)) {
    ++counters_.starved;
    return refuse_for_want(sender, transmit, arrival_time(link, transmit, departs) + config_.one_way_delay);
  }
  marked = marked || (data && prng_.chance(weather.mark));
  trimmed = trimmed || (is_trimmable(transmit) && prng_.chance(weather.trim));
  const bool corrupt = exposed && prng_.chance(weather.corrupt);
  counters_.marked += marked;
  counters_.trimmed += trimmed;
  launch(sender, transmit, arrival_time(link, transmit, departs), marked, trimmed, corrupt);
  if (exposed && prng_.chance(weather.duplicate)) {
    ++counters_.duplicated;
    launch(sender, transmit, arrival_time(link, transmit, departs), marked, trimmed, false);
  }
}

// The receiver had no room for this packet: a NACK goes back in its place, for any of the reasons that are not the
// network's.
void Pair::refuse_for_want(std::uint32_t sender, const proto::Transmit& transmit, Time at) {
  constexpr wire::NackReason reasons[] = {wire::NackReason::no_bitmap, wire::NackReason::no_packet_buffer, wire::NackReason::no_resource};
  const wire::NackReason reason = reasons[prng_.below(3)];
  const proto::QueuePair* pair = endpoints_[1 - sender]->qp(transmit.packet.bth.dqp);
  if (!pair) return;
  proto::Transmit back;
  back.entropy = transmit.entropy;
  back.port = transmit.port;
  back.traffic_class = proto::TrafficClass::control;
  back.packet.bth.opcode = wire::Opcode::nack;
  back.packet.bth.dqp = pair->dest_qpn();
  back.packet.bth.psn = transmit.packet.bth.psn;
  wire::Nack& nack = back.packet.body.emplace<wire::Nack>();
  nack.reason = reason;
  nack.entropy = transmit.entropy;
  nack.spdcid = static_cast<std::uint16_t>(pair->qpn());
  nack.dpdcid = static_cast<std::uint16_t>(pair->dest_qpn());
  nack.nack_psn = transmit.packet.bth.psn;
  nack.tx_timestamp = std::get<wire::Write>(transmit.packet.body).tseth.ticks;
  launch(1 - sender, back, at, false, false, false);
}

void Pair::launch(std::uint32_t sender, const proto::Transmit& transmit, Time at, bool marked, bool trimmed, bool corrupt) {
  const std::uint32_t slot = take_slot();
  InFlight& f = in_flight_[slot];
  f.arrival = proto::Arrival{};
  f.arrival.peer = peer_ids_[1 - sender];
  f.arrival.entropy = transmit.entropy;
  f.arrival.port = transmit.port;
  f.arrival.congestion = marked;
  f.arrival.trim = trimmed ? proto::Trim::trimmed : proto::Trim::none;
  f.options = wire::ParseOptions{};
  f.options.has_icrc = false;
  f.options.trimmed = trimmed;
  if (!config_.encode) {
    f.packet = transmit.packet;
    if (corrupt) f.arrival.integrity = proto::Integrity::bad;
  } else if (!config_.carry_payload || trimmed) {
    std::size_t size = wire::emit_headers(transmit.packet, f.header.data());
    const auto* write = std::get_if<wire::Write>(&transmit.packet.body);
    if (trimmed) size -= wire::has_imm(transmit.packet.bth.opcode) ? 4 : 0;
    else if (write) f.options.elided_payload = (write->payload_size + 3) & ~3u;
    f.size = static_cast<std::uint32_t>(size);
    if (corrupt) f.arrival.integrity = proto::Integrity::bad;
  } else {
    f.bytes.resize(wire::packet_size(transmit.packet) + wire::icrc_size);
    wire::emit(transmit.packet, f.bytes);
    wire::seal(route(sender, transmit.port, transmit.entropy), f.bytes);
    f.size = static_cast<std::uint32_t>(f.bytes.size());
    f.options.has_icrc = true;
    if (corrupt) {
      const std::uint32_t bit = prng_.below(f.size * 8);
      f.bytes[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
    }
  }
  counters_.corrupted += corrupt;
  toward_[1 - sender].push(at, slot);
}

void Pair::deliver(std::uint32_t receiver) {
  const std::uint32_t slot = toward_[receiver].pop();
  if (!processes_[receiver].exists()) return hand_in(receiver, slot);
  if (processes_[receiver].arrive(now_, in_flight_[slot].arrival.port, slot)) return;
  ++counters_.overflowed;
  free_in_flight_.push_back(slot);
}

void Pair::hand_in(std::uint32_t receiver, std::uint32_t slot) {
  InFlight& f = in_flight_[slot];
  proto::Endpoint& endpoint = *endpoints_[receiver];
  ++packets_delivered_;
  if (f.options.has_icrc) {
    const bool holds = wire::verify(route(1 - receiver, f.arrival.port, f.arrival.entropy), f.bytes);
    f.arrival.integrity = holds ? proto::Integrity::verified : proto::Integrity::bad;
  }
  if (config_.encode) {
    const bool whole = config_.carry_payload && !f.options.trimmed;
    const std::uint8_t* bytes = whole ? f.bytes.data() : f.header.data();
    mix(static_cast<std::uint64_t>(now_.ps) ^ wire::load32(bytes + 8) ^ static_cast<std::uint64_t>(bytes[0]) << 40);
    endpoint.handle_datagram(now_, {bytes, f.size}, f.arrival, f.options);
  } else {
    const wire::Bth& b = f.packet.bth;
    const std::uint32_t word = static_cast<std::uint32_t>(b.ack_request) << 31 | static_cast<std::uint32_t>(b.retransmission) << 29 |
                               static_cast<std::uint32_t>(b.timestamped) << 28 | b.psn;
    mix(static_cast<std::uint64_t>(now_.ps) ^ word ^ static_cast<std::uint64_t>(b.opcode) << 40);
    if (f.arrival.integrity == proto::Integrity::bad) endpoint.handle_datagram(now_, {}, f.arrival, f.options);
    else endpoint.handle_packet(now_, f.packet, f.arrival);
  }
  free_in_flight_.push_back(slot);
}

void Pair::flush() {
  drain(0);
  drain(1);
}

// The earliest of: a packet for either side, a timer, a port that has room again. Stalled sides wait; with a process,
// packets reach its queues all the same, and everything else is the process's business.
bool Pair::step(Time until) {
  Time best = Time::never();
  std::uint32_t who = 0;
  enum class What { packet, timer, port, process } what = What::packet;
  for (std::uint32_t side = 0; side < 2; ++side) {
    const bool has_process = processes_[side].exists();
    const auto consider = [&](Time at, What kind) {
      if (at != Time::never() && !(has_process && kind == What::packet)) at = std::max(at, stalled_until_[side]);
      if (at < best) {
        best = at;
        who = side;
        what = kind;
      }
    };
    consider(toward_[side].next_at(), What::packet);
    if (has_process) {
      consider(processes_[side].next_at(*endpoints_[side], surroundings_[side]), What::process);
      continue;
    }
    consider(endpoints_[side]->poll_timeout(), What::timer);
    consider(port_free_at_[side], What::port);
    if (stalled_until_[side] > now_) consider(stalled_until_[side], What::port);
  }
  if (best > until) {
    now_ = std::max(now_, until);
    return false;
  }
  now_ = std::max(now_, best);
  switch (what) {
    case What::process: processes_[who].step(now_, *endpoints_[who], surroundings_[who]); return true;
    case What::packet: deliver(who); break;
    case What::timer: endpoints_[who]->handle_timeout(now_); break;
    case What::port: break;
  }
  if (!processes_[who].exists()) drain(who);
  return true;
}

void Pair::run(Time until) {
  flush();
  while (step(until)) {
  }
}

std::uint64_t Pair::run_until_completions(Time until, std::uint32_t which, std::uint32_t cq, std::size_t completions) {
  const std::uint64_t before = packets_delivered_;
  flush();
  while (endpoints_[which]->completions_waiting(cq) < completions && step(until)) {
  }
  return packets_delivered_ - before;
}

}  // namespace softmrc::sim
