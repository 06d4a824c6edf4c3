#include "sim/mesh.h"

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
wire::Route route(std::uint32_t sender, std::uint32_t receiver, std::uint8_t port, std::uint32_t entropy) {
  const auto address = [port](std::uint32_t side) {
    return wire::Ipv6{0x20, 0x01, 0x0D, 0xB8, 0, port, 0, 0, 0, 0, 0, 0, 0, 0, 0, static_cast<std::uint8_t>(side + 1)};
  };
  return {address(sender), address(receiver), static_cast<std::uint16_t>(entropy), wire::default_udp_port};
}

}  // namespace

Mesh::Mesh(const MeshConfig& config, const std::vector<proto::EndpointConfig>& sides)
    : config_(config),
      now_(Time{} + config.starts_at),
      links_(sides.size() * sides.size() * config.ports),
      prng_(config.seed, "pair") {
  SOFTMRC_CHECK(sides.size() < 255);  // each has its own address
  for (std::uint32_t i = 0; i < sides.size(); ++i) sides_.emplace_back(*this, i);
  for (Side& side : sides_) equip(side, sides[side.number]);
}

// An endpoint that knows nothing yet, but whom there is to talk to.
void Mesh::equip(Side& side, const proto::EndpointConfig& config) {
  SOFTMRC_CHECK(config.ports == config_.ports);
  side.endpoint = std::make_unique<proto::Endpoint>(config);
  SimDriver::Context& clock = *this;
  side.driver = std::make_unique<SimDriver>(*side.endpoint, clock, side.number);
  side.free_at.resize(config.ports);
  for (std::uint32_t other = 1; other < sides(); ++other) side.endpoint->add_peer();
}

void Mesh::set_process(std::uint32_t which, const ProcessConfig& config) {
  sides_[which].process = Process(config, config_.ports, Prng(config_.seed, "process", which));
}

void Mesh::restart(std::uint32_t which, const proto::EndpointConfig& config) {
  Side& side = sides_[which];
  side.process.die([this](std::uint32_t slot) { free_in_flight_.push_back(slot); });
  dead_.push_back(std::move(side.endpoint));
  equip(side, config);
  side.stalled_until = now_;
}

void Mesh::kill(std::uint32_t which, bool host_says_so) {
  Side& side = sides_[which];
  side.process.die([this](std::uint32_t slot) { free_in_flight_.push_back(slot); });
  side.driver->close();
  side.is_dead = true;
  side.is_known_dead = host_says_so;
}

void Mesh::set_ev_dead(std::uint32_t sender, std::uint32_t receiver, std::uint32_t port, std::uint32_t entropy,
                       bool is_dead) {
  Link& direction = link(sender, receiver, port);
  direction.watches_paths = true;
  direction.paths[entropy].is_dead = is_dead;
}

void Mesh::set_ev_loss(std::uint32_t sender, std::uint32_t receiver, std::uint32_t port, std::uint32_t entropy,
                       double loss) {
  Link& direction = link(sender, receiver, port);
  direction.watches_paths = true;
  direction.paths[entropy].loss = loss;
}

Time Mesh::last_polled_at(std::uint32_t sender, std::uint32_t receiver, std::uint32_t port,
                          std::uint32_t entropy) const {
  const auto& paths = link(sender, receiver, port).paths;
  const auto found = paths.find(entropy);
  return found == paths.end() ? Time::long_ago() : found->second.last_polled;
}

void Mesh::mix(std::uint64_t value) { hash_ = (hash_ ^ value) * 0x100000001B3u ^ (hash_ >> 29); }

std::uint32_t Mesh::take_slot() {
  if (free_in_flight_.empty()) {
    in_flight_.emplace_back();
    return static_cast<std::uint32_t>(in_flight_.size() - 1);
  }
  const std::uint32_t slot = free_in_flight_.back();
  free_in_flight_.pop_back();
  return slot;
}

// A port takes another packet while its queue is shorter than two full packets of time.
std::uint32_t Mesh::free_ports(Side& sender) {
  sender.port_free_at = Time::never();
  if (config_.port_rate_bps == 0) return (1u << config_.ports) - 1;
  const Duration room{static_cast<std::int64_t>(2.0 * 4096 * 8 * 1e12 / static_cast<double>(config_.port_rate_bps))};
  std::uint32_t mask = 0;
  for (std::uint32_t port = 0; port < config_.ports; ++port) {
    const Time free_at = sender.free_at[port] - room;
    if (free_at <= now_) mask |= 1u << port;
    else sender.port_free_at = std::min(sender.port_free_at, free_at);
  }
  return mask;
}

void Mesh::drain(Side& sender) {
  if (sender.is_dead) return;
  if (sender.process.exists()) return sender.process.kick(now_);
  if (sender.stalled_until > now_) return;
  while (true) {
    const std::uint32_t ports = free_ports(sender);
    if (ports == 0 || !sender.endpoint->poll_transmit(now_, ports, scratch_)) return;
    send(sender.number, scratch_);
  }
}

Time Mesh::arrival_time(Link& link, const proto::Transmit& transmit, Time departs) {
  const MeshFaults& faults = link.faults;
  if (faults.neck_bps) {
    const double bits = 8.0 * static_cast<double>(wire::packet_size(transmit.packet) + proto::nominal_overhead);
    departs = std::max(departs, link.neck_free_at) +
              Duration{static_cast<std::int64_t>(bits * 1e12 / static_cast<double>(faults.neck_bps))};
    link.neck_free_at = departs;
  }
  Time at = departs + config_.one_way_delay + faults.delay;
  if (faults.path_jitter.ps > 0) {
    Path& path = link.paths[transmit.entropy];
    if (now_ >= path.redraw_at) {
      path.extra = Duration{static_cast<std::int64_t>(prng_.unit() * static_cast<double>(faults.path_jitter.ps))};
      path.redraw_at = now_ + config_.one_way_delay * (2 + prng_.below(16));
    }
    at = std::max(at + path.extra, path.last_arrival);
    path.last_arrival = at;
  }
  if ((is_data(transmit) || !faults.spares_control) && prng_.chance(faults.reorder)) {
    at = at + Duration{static_cast<std::int64_t>(prng_.unit() * static_cast<double>(faults.reorder_delay.ps))};
    ++counters_.reordered;
  }
  return at;
}

void Mesh::send(std::uint32_t sender, const proto::Transmit& transmit) {
  // Of two, any other peer that a node knows is the other side under a later name; of more, none that is here.
  const std::uint32_t peer = sides_.size() == 2 ? 0 : transmit.peer;
  const std::uint32_t receiver = peer < sender ? peer : peer + 1;
  if (receiver >= sides_.size()) {
    ++counters_.swallowed;
    return;
  }
  Link& link = this->link(sender, receiver, transmit.port);
  Time& free_at = sides_[sender].free_at[transmit.port];
  const MeshFaults& faults = link.faults;
  const bool data = is_data(transmit);
  if (wire::is_write(transmit.packet.bth.opcode)) ++link.data_packets;

  Time departs = now_;
  bool marked = false;
  bool trimmed = false;
  if (config_.port_rate_bps) {
    const std::int64_t queued_ps = std::max<std::int64_t>(0, (free_at - now_).ps);
    const double queued_bytes = static_cast<double>(queued_ps) * static_cast<double>(config_.port_rate_bps) / 8e12;
    marked = data && config_.mark_above_bytes && queued_bytes > config_.mark_above_bytes;
    trimmed = config_.trim_above_bytes && queued_bytes > config_.trim_above_bytes && is_trimmable(transmit);
    const double bytes = trimmed ? 100.0
                                 : static_cast<double>(wire::packet_size(transmit.packet) + proto::nominal_overhead);
    departs = std::max(now_, free_at) +
              Duration{static_cast<std::int64_t>(bytes * 8e12 / static_cast<double>(config_.port_rate_bps))};
    free_at = departs;
  }
  if (link.watches_paths) {
    Path& path = link.paths[transmit.entropy];
    const Process& process = sides_[sender].process;
    path.last_polled = process.exists() ? process.polled_at() : now_;
    if (path.is_dead || prng_.chance(path.loss)) {
      ++counters_.swallowed;
      return;
    }
  }
  if (faults.black_hole) {
    ++counters_.swallowed;
    return;
  }
  const bool overflows = faults.neck_bytes &&
                         static_cast<double>((link.neck_free_at - departs).ps) * static_cast<double>(faults.neck_bps) >
                             8e12 * static_cast<double>(faults.neck_bytes);
  if (overflows) {
    ++counters_.lost;
    return;
  }
  const bool exposed = data || !faults.spares_control;
  if (exposed && prng_.chance(faults.loss)) {
    ++counters_.lost;
    return;
  }
  if (prng_.chance(faults.starve) && wire::is_write(transmit.packet.bth.opcode)) {
    ++counters_.starved;
    return refuse_for_want(sender, receiver, transmit, arrival_time(link, transmit, departs) + config_.one_way_delay);
  }
  marked = marked || (data && prng_.chance(faults.mark));
  trimmed = trimmed || (is_trimmable(transmit) && prng_.chance(faults.trim));
  const bool corrupt = exposed && prng_.chance(faults.corrupt);
  counters_.marked += marked;
  counters_.trimmed += trimmed;
  launch(sender, receiver, transmit, arrival_time(link, transmit, departs), marked, trimmed, corrupt);
  if (exposed && prng_.chance(faults.duplicate)) {
    ++counters_.duplicated;
    launch(sender, receiver, transmit, arrival_time(link, transmit, departs), marked, trimmed, false);
  }
}

// The receiver had no room for this packet: a NACK goes back in its place, for any of the reasons that are not the
// network's.
void Mesh::refuse_for_want(std::uint32_t sender, std::uint32_t receiver, const proto::Transmit& transmit, Time at) {
  constexpr wire::NackReason reasons[] = {wire::NackReason::no_bitmap, wire::NackReason::no_packet_buffer,
                                          wire::NackReason::no_resource};
  const wire::NackReason reason = reasons[prng_.below(3)];
  const proto::QueuePair* pair = sides_[receiver].endpoint->qp(transmit.packet.bth.dqp);
  if (!pair) return;
  proto::Transmit back;
  back.peer = peer_id(receiver, sender);
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
  launch(receiver, sender, back, at, false, false, false);
}

void Mesh::launch(std::uint32_t sender, std::uint32_t receiver, const proto::Transmit& transmit, Time at, bool marked,
                  bool trimmed, bool corrupt) {
  const std::uint32_t slot = take_slot();
  InFlight& f = in_flight_[slot];
  f.sender = sender;
  f.arrival = proto::Arrival{};
  f.arrival.peer = peer_id(receiver, sender);
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
    if (const auto* write = std::get_if<wire::Write>(&transmit.packet.body); write && forger_) {
      const std::size_t padded = (write->payload_size + 3) & ~3u;
      forger_->forge(sender, receiver, transmit.packet,
                     std::span(f.bytes).subspan(f.bytes.size() - wire::icrc_size - padded, write->payload_size));
    }
    wire::append_icrc(route(sender, receiver, transmit.port, transmit.entropy), f.bytes);
    f.size = static_cast<std::uint32_t>(f.bytes.size());
    f.options.has_icrc = true;
    if (corrupt) {
      const std::uint32_t bit = prng_.below(f.size * 8);
      f.bytes[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
    }
  }
  counters_.corrupted += corrupt;
  sides_[receiver].toward.push(at, slot);
}

void Mesh::deliver(Side& receiver) {
  const std::uint32_t slot = receiver.toward.pop();
  if (receiver.is_dead) {
    const std::uint32_t sender = in_flight_[slot].sender;
    if (receiver.is_known_dead && !sides_[sender].is_dead)
      sides_[sender].endpoint->on_unreachable(now_, peer_id(sender, receiver.number));
    free_in_flight_.push_back(slot);
    return;
  }
  if (!receiver.process.exists()) return hand_in(receiver.number, slot);
  if (receiver.process.arrive(now_, in_flight_[slot].arrival.port, slot)) return;
  ++counters_.overflowed;
  free_in_flight_.push_back(slot);
}

void Mesh::hand_in(std::uint32_t receiver, std::uint32_t slot) {
  InFlight& f = in_flight_[slot];
  proto::Endpoint& endpoint = *sides_[receiver].endpoint;
  ++packets_delivered_;
  if (f.options.has_icrc) {
    const bool holds = wire::verify(route(f.sender, receiver, f.arrival.port, f.arrival.entropy), f.bytes);
    f.arrival.integrity = holds ? proto::Integrity::verified : proto::Integrity::bad;
  }
  if (config_.encode) {
    const bool whole = config_.carry_payload && !f.options.trimmed;
    const std::uint8_t* bytes = whole ? f.bytes.data() : f.header.data();
    mix(static_cast<std::uint64_t>(now_.ps) ^ wire::load32(bytes + 8) ^ static_cast<std::uint64_t>(bytes[0]) << 40);
    endpoint.handle_datagram(now_, {bytes, f.size}, f.arrival, f.options);
  } else {
    const wire::Bth& b = f.packet.bth;
    const std::uint32_t word = static_cast<std::uint32_t>(b.ack_request) << 31 |
                               static_cast<std::uint32_t>(b.retransmission) << 29 |
                               static_cast<std::uint32_t>(b.timestamped) << 28 | b.psn;
    mix(static_cast<std::uint64_t>(now_.ps) ^ word ^ static_cast<std::uint64_t>(b.opcode) << 40);
    if (f.arrival.integrity == proto::Integrity::bad) endpoint.handle_datagram(now_, {}, f.arrival, f.options);
    else endpoint.handle_packet(now_, f.packet, f.arrival);
  }
  free_in_flight_.push_back(slot);
}

void Mesh::flush() {
  for (Side& side : sides_) drain(side);
}

// The earliest of: a packet for a side, a timer, a port that has room again, something that lives there and wants to be
// called. Stalled sides wait; with a process, packets reach its queues all the same, and everything else is the
// process's business.
bool Mesh::step(Time until) {
  Time best = Time::never();
  Side* who = nullptr;
  enum class What { packet, timer, port, process } what = What::packet;
  for (Side& side : sides_) {
    const bool is_at_once = side.process.exists() || side.is_dead;
    const auto consider = [&](Time at, What kind) {
      if (at != Time::never() && !(is_at_once && kind == What::packet)) at = std::max(at, side.stalled_until);
      if (at < best) {
        best = at;
        who = &side;
        what = kind;
      }
    };
    consider(side.toward.next_at(), What::packet);
    if (side.is_dead) continue;
    if (side.process.exists()) {
      consider(side.process.next_at(*side.endpoint, side), What::process);
      continue;
    }
    consider(side.endpoint->poll_timeout(), What::timer);
    consider(std::min(side.port_free_at, side.driver->deadline()), What::port);
    if (side.stalled_until > now_) consider(side.stalled_until, What::port);
  }
  if (best > until) {
    now_ = std::max(now_, until);
    return false;
  }
  now_ = std::max(now_, best);
  switch (what) {
    case What::process: who->process.step(now_, *who->endpoint, *who); return true;
    case What::packet: deliver(*who); break;
    case What::timer: who->endpoint->handle_timeout(now_); break;
    case What::port: break;
  }
  if (who->process.exists() || who->is_dead) return true;
  who->driver->progress();
  drain(*who);
  return true;
}

bool Mesh::pass(const std::function<bool()>& is_over, Duration timeout) {
  const Time until = now_ + timeout;
  flush();
  while (!is_over() && step(until)) {}
  return is_over();
}

void Mesh::run(Time until) {
  flush();
  while (step(until)) {}
}

std::uint64_t Mesh::run_until_completions(Time until, std::uint32_t which, std::uint32_t cq, std::size_t completions) {
  const std::uint64_t before = packets_delivered_;
  flush();
  while (sides_[which].endpoint->completions_waiting(cq) < completions && step(until)) {}
  return packets_delivered_ - before;
}

}  // namespace softmrc::sim
