// Queues, links and forwarding of Network.
#include <algorithm>

#include "base/fetch.h"
#include "sim/network.h"

namespace softmrc::sim {

std::uint32_t Network::take_parcel() {
  if (free_parcels_ == none) {
    const auto first = static_cast<std::uint32_t>(parcel_chunks_.size()) << chunk_bits;
    parcel_chunks_.push_back(std::make_unique<Parcel[]>(chunk_size));
    for (std::uint32_t i = chunk_size; i-- > 0;) {
      parcel_chunks_.back()[i].next = free_parcels_;
      free_parcels_ = first + i;
    }
  }
  const std::uint32_t id = free_parcels_;
  free_parcels_ = parcel(id).next;
  return id;
}

void Network::drop_parcel(std::uint32_t id) {
  parcel(id).next = free_parcels_;
  free_parcels_ = id;
}

void Network::push(Fifo& fifo, std::uint32_t id) {
  parcel(id).next = none;
  if (fifo.head == none) fifo.head = id;
  else parcel(fifo.tail).next = id;
  fifo.tail = id;
}

std::uint32_t Network::pop(Fifo& fifo) {
  const std::uint32_t id = fifo.head;
  fifo.head = parcel(id).next;
  return id;
}

namespace {

std::uint32_t scaled(std::uint32_t bytes, float share) {
  return share == 1 ? bytes : static_cast<std::uint32_t>(static_cast<double>(bytes) * static_cast<double>(share));
}

}  // namespace

bool Network::should_mark(const Link& link) {
  const QueueConfig& q = config_.queue;
  const std::uint32_t low = scaled(q.ecn_low_bytes, link.queue_share);
  const std::uint32_t high = scaled(q.ecn_high_bytes, link.queue_share);
  if (high == 0 || link.data_bytes <= low) return false;
  if (link.is_last_hop && !q.ecn_on_last_hop) return false;
  if (link.data_bytes >= high) return true;
  const double share = static_cast<double>(link.data_bytes - low) / (high - low);
  return prng_.chance(share);
}

// The payload goes, the header goes on as control traffic.
void Network::cut(Parcel& p, bool last_hop) {
  p.trim = last_hop ? proto::Trim::trimmed_last_hop : proto::Trim::trimmed;
  p.is_control = true;
  p.is_trimmable = false;
  p.bytes = config_.trimmed_packet_bytes;
  auto& write = std::get<wire::Write>(p.packet.body);
  write.payload = nullptr;
  write.payload_size = 0;
  ++counters_.trimmed;
}

// Finds the packet a place in one of the link's queues, or says that there is none. On overflow either the arriving or
// the newest waiting packet is trimmed, whichever a coin says, so that flows which burst do not always pay.
bool Network::admit(Link& link, std::uint32_t id) {
  const QueueConfig& q = config_.queue;
  Parcel* p = &parcel(id);
  if (!p->is_control) {
    const std::uint32_t full = link.is_last_hop && q.last_hop_trim_bytes ? q.last_hop_trim_bytes : q.trim_bytes;
    const std::uint32_t limit = scaled(full, link.queue_share);
    if (limit && p->is_trimmable && link.data_bytes + p->bytes > limit) {
      if (link.data.head != none && parcel(link.data.tail).is_trimmable && prng_.chance(0.5)) {
        Parcel& newest = parcel(link.data.tail);
        link.data_bytes += p->bytes - newest.bytes;
        std::swap(*p, newest);
        std::swap(p->next, newest.next);
      }
      cut(*p, link.is_last_hop);
    } else if (q.data_bytes && link.data_bytes + p->bytes > scaled(q.data_bytes, link.queue_share) && !is_lossless_) {
      return false;
    }
  }
  if (p->is_control) {
    if (q.control_bytes && link.control_bytes + p->bytes > q.control_bytes) return false;
    link.control_bytes += p->bytes;
    push(link.control, id);
  } else {
    link.data_bytes += p->bytes;
    link.max_queue = std::max(link.max_queue, link.data_bytes);
    push(link.data, id);
    count_buffered(p->came_from, p->bytes);
  }
  return true;
}

void Network::enqueue(LinkId at, std::uint32_t id) {
  Link& link = links_[at];
  if (is_down_[at]) {
    lose(id);
    return;
  }
  const bool may_go = !link.is_paused || parcel(id).is_control;
  if (!link.is_ready_armed && link.busy_until <= now() && may_go) {
    transmit(at, id);
    return;
  }
  if (!admit(link, id)) {
    ++counters_.dropped;
    drop_parcel(id);
    return;
  }
  kick(at);
}

// Makes sure that a link with something to send will be looked at when it is free.
void Network::kick(LinkId at) {
  Link& link = links_[at];
  const bool has_work = link.control.head != none || (link.data.head != none && !link.is_paused);
  if (link.is_ready_armed || !has_work) return;
  link.is_ready_armed = true;
  scheduler_.push(std::max(link.busy_until, now()), ready, at, 0);
}

void Network::on_ready(LinkId at) {
  Link& link = links_[at];
  const Node from = fabric_.from(at);
  if (from.tier == Tier::host) {
    if (link.data.head != none) return transmit(at, pop(link.data));
    hosts_[from.index].busy_ports &= ~(1u << from.plane);
    drain(from.index);
    return;
  }
  link.is_ready_armed = false;
  std::uint32_t id;
  if (link.control.head != none) {
    id = pop(link.control);
    link.control_bytes -= parcel(id).bytes;
  } else if (link.data.head == none || link.is_paused) {
    return;
  } else {
    id = link.data.head;
    Parcel& p = parcel(id);
    if (should_mark(link)) {
      p.congestion = true;
      ++counters_.marked;
    }
    pop(link.data);
    link.data_bytes -= p.bytes;
    count_buffered(p.came_from, -static_cast<std::int64_t>(p.bytes));
  }
  transmit(at, id);
  kick(at);
}

bool Network::is_swallowed(LinkId at, const Parcel& p) {
  LinkFaults& faults = link_faults_.at(at);
  if (is_down_[at] || faults.is_black_hole || prng_.chance(static_cast<double>(faults.loss))) return true;
  if (faults.ev_loss <= 0 || p.is_control) return false;
  if (faults.lossy_ev == none) faults.lossy_ev = p.entropy;
  return p.entropy == faults.lossy_ev && prng_.chance(static_cast<double>(faults.ev_loss));
}

bool Network::is_corrupted(LinkId at) {
  const float share = link_faults_.at(at).corrupt;
  return share > 0 && prng_.chance(static_cast<double>(share));
}

void Network::transmit(LinkId at, std::uint32_t id) {
  Link& link = links_[at];
  Parcel& p = parcel(id);
  link.busy_until = now() + Duration{static_cast<std::int64_t>(static_cast<std::uint64_t>(p.bytes) * link.ps_per_byte_q8 >> 8)};
  link.bytes += p.bytes;
  ++counters_.link_hops;
  if (const std::uint32_t in_plane = at % links_per_plane_; in_plane < config_.fabric.hosts) {
    hosts_[in_plane].busy_ports |= 1u << p.plane;
    scheduler_.push(link.busy_until, ready, at, 0);
  }
  if (link.is_faulty) [[unlikely]] {
    if (is_swallowed(at, p)) {
      lose(id);
      return;
    }
    if (is_corrupted(at)) {
      p.is_corrupt = true;
      ++counters_.corrupted;
    }
  }
  scheduler_.push(link.busy_until + config_.fabric.link_delay, arrive, at, id);
}

void Network::on_arrive(LinkId at, std::uint32_t id) {
  if (is_down_[at]) {
    lose(id);
    return;
  }
  const Node& node = link_to_[at];
  if (node.tier == Tier::host) {
    deliver(node.index, id);
    return;
  }
  parcel(id).came_from = at;
  const LinkId next = next_link(node, parcel(id));
  if (next == none) {
    ++counters_.dropped;
    drop_parcel(id);
    return;
  }
  parcel(id).route.shift();
  enqueue(next, id);
}

// The queue pair that will handle this event at a host, as far as that can be told beforehand.
const proto::QueuePair* Network::pair_of(const Scheduler::Event& event) const {
  if (event.kind == ready) return hosts_[event.who % links_per_plane_].last_sender;
  const Parcel& p = parcel(event.what);
  const std::uint32_t index = p.packet.bth.dqp - first_qpn;
  if (index >= connections_.size() || connections_[index].sender == nullptr) return nullptr;
  return connections_[index].destination == p.destination ? connections_[index].receiver : connections_[index].sender;
}

// Large fabrics wait for memory more than for anything else, and the next events are known: what they will touch is
// asked for a few events before its turn, one step of the pointer chain at a time.
void Network::fetch_ahead() const {
  if (const Scheduler::Event* event = scheduler_.ahead(16)) {
    if (event->kind == arrive) {
      fetch(&parcel(event->what));
      fetch(&link_to_[event->who]);
    } else if (event->kind == ready) {
      fetch(&links_[event->who]);
    } else if (event->kind == timer) {
      fetch(&hosts_[event->who]);
    }
  }
  if (const Scheduler::Event* event = scheduler_.ahead(10)) {
    if (event->kind == arrive) {
      const Node& node = link_to_[event->who];
      if (node.tier == Tier::host) {
        fetch(&hosts_[node.index]);
        fetch(&parcel(event->what).packet);
      } else if (const LinkId next = next_link(node, parcel(event->what)); next != none) {
        fetch(&links_[next]);
      }
    } else if (event->kind == ready) {
      const Link& link = links_[event->who];
      const std::uint32_t head = link.control.head != none ? link.control.head : link.data.head;
      if (head != none) fetch(&parcel(head));
      else if (is_host_up(event->who)) fetch(&hosts_[event->who % links_per_plane_]);
    }
  }
  if (config_.transport != Transport::mrc) return;
  if (const Scheduler::Event* event = scheduler_.ahead(6)) fetch_host(*event, false);
  if (const Scheduler::Event* event = scheduler_.ahead(3)) fetch_host(*event, true);
}

// First the endpoint and the queue pair, then what they point to.
void Network::fetch_host(const Scheduler::Event& event, bool is_second_step) const {
  const bool arrives = event.kind == arrive && link_to_[event.who].tier == Tier::host;
  const bool sends = event.kind == ready && is_host_up(event.who);
  if (!arrives && !sends) return;
  const Host& host = hosts_[arrives ? link_to_[event.who].index : event.who % links_per_plane_];
  const proto::QueuePair* pair = pair_of(event);
  if (!host.endpoint || !pair) return;
  if (is_second_step) {
    host.endpoint->fetch_ahead();
    pair->fetch_ahead(arrives && wire::is_write(parcel(event.what).packet.bth.opcode));
  } else {
    fetch_bytes(host.endpoint.get(), sizeof *host.endpoint);
    fetch_bytes(pair, sizeof *pair);
  }
}

Network::Route Network::make_route(std::uint32_t source, std::uint32_t destination, std::uint32_t entropy, std::uint32_t plane) const {
  Route route;
  unsigned place = 0;
  const auto via = [&](Tier tier, std::uint32_t index) {
    route.append(place++, fabric_.usid({tier, static_cast<std::uint8_t>(plane), index}));
  };
  const std::uint32_t from = fabric_.leaf_of(source);
  const std::uint32_t to = fabric_.leaf_of(destination);
  const std::uint32_t spines = config_.fabric.spines;
  const std::uint32_t spine = entropy % spines;
  via(Tier::t0, from);
  if (from != to && !fabric_.has_three_tiers()) {
    via(Tier::t1, spine);
    via(Tier::t0, to);
  } else if (from != to) {
    const std::uint32_t cores = config_.fabric.cores_per_spine;
    const std::uint32_t from_pod = fabric_.pod_of_leaf(from);
    const std::uint32_t to_pod = fabric_.pod_of_leaf(to);
    via(Tier::t1, from_pod * spines + spine);
    if (from_pod != to_pod) {
      via(Tier::t2, spine * cores + entropy / spines % cores);
      via(Tier::t1, to_pod * spines + spine);
    }
    via(Tier::t0, to);
  }
  via(Tier::host, destination);
  return route;
}

LinkId Network::next_link(const Node& at, const Parcel& p) const {
  return config_.forwarding == Forwarding::srv6 ? forward_by_usid(at, p) : forward_by_choice(at, p);
}

// uN: the first uSID is this switch's own; shift, and look the next one up in the static table, which here is
// arithmetic on the ranges that uSIDs are allotted from.
LinkId Network::forward_by_usid(const Node& at, const Parcel& p) const {
  if (p.route.front() != fabric_.usid(at)) return none;
  Route shifted = p.route;
  shifted.shift();
  const std::uint32_t next = shifted.front();
  const FabricConfig& f = config_.fabric;
  const std::uint32_t spine = at.index % f.spines;
  if (at.tier == Tier::t0) {
    if (next >= 0x1000) return fabric_.host_down(at.plane, at.index * f.hosts_per_leaf + (next - 0x1000));
    if (next >= 0x0300 && next < 0x0500) return fabric_.leaf_up(at.plane, at.index, (next - 0x0300) % f.spines);
    return none;
  }
  if (at.tier == Tier::t1) {
    if (next >= 0x0100 && next < 0x0300) return fabric_.leaf_down(at.plane, next - 0x0100, spine);
    if (next >= 0x0500 && next < 0x1000) return fabric_.t1_up(at.plane, at.index, (next - 0x0500) % f.cores_per_spine);
    return none;
  }
  if (next >= 0x0300 && next < 0x0500) return fabric_.t1_down(at.plane, next - 0x0300, at.index % f.cores_per_spine);
  return none;
}

bool Network::is_routable(LinkId link) const {
  if (!links_[link].is_faulty) return true;
  const Time dead = link_faults_.at(link).dead_since;
  return dead == Time::never() || dead + config_.convergence_delay > now();
}

// Down if the destination lies below, else up by choice.
LinkId Network::forward_by_choice(const Node& at, const Parcel& p) const {
  const FabricConfig& f = config_.fabric;
  const std::uint32_t leaf = fabric_.leaf_of(p.destination);
  if (at.tier == Tier::t0 && at.index == leaf) return fabric_.host_down(at.plane, p.destination);
  if (at.tier == Tier::t1) {
    const std::uint32_t spine = at.index % f.spines;
    if (!fabric_.has_three_tiers() || fabric_.pod_of_leaf(leaf) == at.index / f.spines) return fabric_.leaf_down(at.plane, leaf, spine);
  }
  if (at.tier == Tier::t2) {
    const std::uint32_t t1 = fabric_.pod_of_leaf(leaf) * f.spines + at.index / f.cores_per_spine;
    return fabric_.t1_down(at.plane, t1, at.index % f.cores_per_spine);
  }
  return choose_uplink(at, p);
}

LinkId Network::choose_uplink(const Node& at, const Parcel& p) const {
  const FabricConfig& f = config_.fabric;
  const std::uint32_t count = at.tier == Tier::t0 ? f.spines : f.cores_per_spine;
  const auto uplink = [&](std::uint32_t i) {
    return at.tier == Tier::t0 ? fabric_.leaf_up(at.plane, at.index, i) : fabric_.t1_up(at.plane, at.index, i);
  };
  if (config_.forwarding == Forwarding::structured)
    return uplink(at.tier == Tier::t0 ? p.entropy % count : p.entropy / f.spines % count);
  std::uint64_t state = static_cast<std::uint64_t>(p.entropy) << 32 ^ static_cast<std::uint64_t>(p.source) << 16 ^ p.destination ^
                        static_cast<std::uint64_t>(at.tier) << 61 ^ static_cast<std::uint64_t>(at.index) << 40;
  const auto hash = static_cast<std::uint32_t>(splitmix64(state) >> 33);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t choice = (hash + i) % count;
    const bool way_down_lives = at.tier != Tier::t0 || fabric_.has_three_tiers() ||
                                is_routable(fabric_.leaf_down(at.plane, fabric_.leaf_of(p.destination), choice));
    if (is_routable(uplink(choice)) && way_down_lives) return uplink(choice);
  }
  return none;
}

}  // namespace softmrc::sim
