#include "sim/links.h"

#include <algorithm>
#include <limits>

#include "base/prefetch.h"

namespace softmrc::sim {
namespace {

std::uint32_t scaled(std::uint32_t bytes, float share) {
  constexpr double most = std::numeric_limits<std::uint32_t>::max();
  return share == 1
             ? bytes
             : static_cast<std::uint32_t>(std::min(most, static_cast<double>(bytes) * static_cast<double>(share)));
}

}  // namespace

LinkTable::LinkTable(const Fabric& fabric)
    : fabric_(fabric), links_(fabric.links()), ends_(fabric.links()), faults_(fabric.links()) {
  for (LinkId at = 0; at < fabric.links(); ++at) {
    ends_[at] = fabric.to(at);
    links_[at].is_first_hop = fabric.is_first_hop(at);
    links_[at].is_last_hop = fabric.is_last_hop(at);
    links_[at].ps_per_byte_q8 = static_cast<std::uint32_t>(byte_time_q8(at) + 0.5);
    links_[at].queue_share = static_cast<float>(fabric.cables(at));  // every cable has a port, and it a queue
  }
}

void LinkTable::divide(const Partition& partition) {
  for (LinkId at = 0; at < links_.size(); ++at)
    links_[at].end_shard = static_cast<std::uint8_t>(partition.of(ends_[at]));
}

// As it is when nothing is wrong with it.
double LinkTable::byte_time_q8(LinkId at) const { return 8e12 * 256 / static_cast<double>(fabric_.rate_bps(at)); }

void LinkTable::apply(Time now, const Fault& f) {
  faults_.apply(now, f);
  Link& link = links_[f.link];
  const bool is_slow = f.kind == FaultKind::slow || f.kind == FaultKind::slow_scaled;
  if (!is_slow && f.kind != FaultKind::heal) return;
  const double share = is_slow ? f.value : 1;
  link.ps_per_byte_q8 = static_cast<std::uint32_t>(byte_time_q8(f.link) / share + 0.5);
  link.queue_share = static_cast<float>(fabric_.cables(f.link)) *
                     (f.kind == FaultKind::slow_scaled ? static_cast<float>(share) : 1);
}

Links::Links(const Context& p)
    : config_(p.config),
      fabric_(p.fabric),
      partition_(p.partition),
      shard_(p.shard),
      scheduler_(p.scheduler),
      outbox_(p.outbox),
      packets_(p.packets),
      observer_(p.observer),
      links_(p.table.links_),
      ends_(p.table.ends_),
      faults_(p.table.faults_),
      seed_(Prng(p.config.seed, "links").bits()),
      router_(p.config, p.fabric, p.table.faults_, p.scheduler),
      is_lossless_(p.config.transport == Transport::roce && p.config.roce.pfc),
      xoff_bytes_(p.config.roce.pfc_xoff_bytes ? p.config.roce.pfc_xoff_bytes : p.config.queue.data_bytes / 2),
      xon_bytes_(p.config.roce.pfc_xon_bytes ? p.config.roce.pfc_xon_bytes : xoff_bytes_ / 4 * 3) {}

void Links::send(std::uint32_t shard, const Scheduler::Event& event) {
  if (shard == shard_) scheduler_.push(event);
  else outbox_.send(shard, event);
}

Links::Counters& Links::Counters::operator+=(const Counters& o) {
  hops += o.hops, trimmed += o.trimmed, marked += o.marked, dropped += o.dropped;
  lost += o.lost, corrupted += o.corrupted, pauses += o.pauses;
  return *this;
}

void Links::lose(std::uint32_t id) {
  ++counters_.lost;
  observer_.on_lost(packets_[id]);
  packets_.drop(id);
}

void Links::drop(std::uint32_t id) {
  ++counters_.dropped;
  observer_.on_dropped(packets_[id]);
  packets_.drop(id);
}

bool Links::should_mark(LinkId at) {
  const Link& link = links_[at];
  const QueueConfig& q = config_.queue;
  const std::uint32_t low = scaled(q.ecn_low_bytes, link.queue_share);
  const std::uint32_t high = scaled(q.ecn_high_bytes, link.queue_share);
  if (high == 0 || link.data_bytes <= low) return false;
  if (link.is_last_hop && !q.ecn_on_last_hop) return false;
  if (link.data_bytes >= high) return true;
  const double share = static_cast<double>(link.data_bytes - low) / (high - low);
  return draw(at).chance(share);
}

// The payload goes, the header goes on as control traffic.
void Links::cut(SimPacket& p, bool last_hop) {
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
bool Links::admit(LinkId at, std::uint32_t id) {
  Link& link = links_[at];
  const QueueConfig& q = config_.queue;
  SimPacket* p = &packets_[id];
  if (!p->is_control) {
    const std::uint32_t full = link.is_last_hop && q.last_hop_trim_bytes ? q.last_hop_trim_bytes : q.trim_bytes;
    const std::uint32_t limit = scaled(full, link.queue_share);
    if (limit && p->is_trimmable && link.data_bytes + p->bytes > limit) {
      if (!link.data.empty() && packets_[link.data.tail].is_trimmable && draw(at).chance(0.5)) {
        SimPacket& newest = packets_[link.data.tail];
        link.data_bytes += p->bytes - newest.bytes;
        std::swap(*p, newest);
        std::swap(p->next, newest.next);
        std::swap(p->owner, newest.owner);
      }
      cut(*p, link.is_last_hop);
    } else if (q.data_bytes && link.data_bytes + p->bytes > scaled(q.data_bytes, link.queue_share) && !is_lossless_) {
      return false;
    }
  }
  if (p->is_control) {
    if (q.control_bytes && link.control_bytes + p->bytes > q.control_bytes) return false;
    link.control_bytes += p->bytes;
    link.control.push(packets_, id);
  } else {
    link.data_bytes += p->bytes;
    link.max_queue = std::max(link.max_queue, link.data_bytes);
    link.data.push(packets_, id);
    count_buffered(p->came_from, p->bytes);
  }
  return true;
}

void Links::enqueue(LinkId at, std::uint32_t id) {
  Link& link = links_[at];
  if (faults_.is_down(at)) return lose(id);
  const bool may_go = !link.is_paused || packets_[id].is_control;
  if (!link.is_ready_armed && link.busy_until <= now() && may_go) return transmit(at, id);
  if (!admit(at, id)) return drop(id);
  kick(at);
}

// Makes sure that a link with something to send will be looked at when it is free.
void Links::kick(LinkId at) {
  Link& link = links_[at];
  const bool has_work = !link.control.empty() || (!link.data.empty() && !link.is_paused);
  if (link.is_ready_armed || !has_work) return;
  link.is_ready_armed = true;
  scheduler_.push(std::max(link.busy_until, now()), EventKind::ready, at, 0);
}

bool Links::on_ready(LinkId at) {
  Link& link = links_[at];
  if (link.is_first_hop) {
    if (link.data.empty()) return true;
    transmit(at, link.data.pop(packets_));
    return false;
  }
  link.is_ready_armed = false;
  std::uint32_t id;
  if (!link.control.empty()) {
    id = link.control.pop(packets_);
    link.control_bytes -= packets_[id].bytes;
  } else if (link.data.empty() || link.is_paused) {
    return false;
  } else {
    id = link.data.head;
    SimPacket& p = packets_[id];
    if (should_mark(at)) {
      p.congestion = true;
      ++counters_.marked;
    }
    link.data.pop(packets_);
    link.data_bytes -= p.bytes;
    count_buffered(p.came_from, -static_cast<std::int64_t>(p.bytes));
  }
  transmit(at, id);
  kick(at);
  return false;
}

void Links::transmit(LinkId at, std::uint32_t id) {
  Link& link = links_[at];
  SimPacket& p = packets_[id];
  // At least a moment, so that no two packets reach the end of a link at once.
  const auto ps = static_cast<std::int64_t>(static_cast<std::uint64_t>(p.bytes) * link.ps_per_byte_q8 >> 8);
  link.busy_until = now() + Duration{std::max<std::int64_t>(ps, 1)};
  link.bytes += p.bytes;
  ++counters_.hops;
  if (link.is_first_hop) scheduler_.push(link.busy_until, EventKind::ready, at, 0);
  if (faults_.is_faulty(at)) [[unlikely]] {
    LinkRng chance = draw(at);
    if (faults_.swallows(at, p, chance)) return lose(id);
    if (faults_.corrupts(at, chance)) {
      p.is_corrupt = true;
      ++counters_.corrupted;
    }
  }
  send(link.end_shard, Scheduler::event(link.busy_until + config_.fabric.link_delay, EventKind::arrive, at, id));
}

bool Links::on_arrive(LinkId at, std::uint32_t id) {
  if (faults_.is_down(at)) {
    lose(id);
    return false;
  }
  const FabricNode& node = ends_[at];
  if (node.tier == Tier::host) return true;
  SimPacket& p = packets_[id];
  p.came_from = at;
  const LinkId next = router_.next_link(node, p);
  if (next == no_link) {
    drop(id);
    return false;
  }
  p.route.shift();
  enqueue(next, id);
  return false;
}

// PFC: the switch at the end of `came_from` holds so much that arrived by it; past a limit the sender must pause.
void Links::count_buffered(LinkId came_from, std::int64_t bytes) {
  if (!is_lossless_ || came_from == no_link) return;
  Link& link = links_[came_from];
  link.buffered = static_cast<std::uint32_t>(link.buffered + bytes);
  const std::uint64_t cables = fabric_.cables(came_from);
  if (!link.pause_asked && link.buffered > cables * xoff_bytes_) {
    link.pause_asked = true;
    ++counters_.pauses;
    ask_to_pause(came_from, true);
  } else if (link.pause_asked && link.buffered < cables * xon_bytes_) {
    link.pause_asked = false;
    ask_to_pause(came_from, false);
  }
}

void Links::ask_to_pause(LinkId at, bool is_paused) {
  send(partition_.of(fabric_.from(at)),
       Scheduler::event(now() + config_.fabric.link_delay, EventKind::pause, at, is_paused));
}

bool Links::on_pause(LinkId at, bool is_paused) {
  links_[at].is_paused = is_paused;
  if (links_[at].is_first_hop) return true;
  kick(at);
  return false;
}

void Links::fetch_link(const Scheduler::Event& event) const {
  if (event.kind() == EventKind::arrive) {
    prefetch(&packets_[event.what()]);
    prefetch(&ends_[event.who()]);
  } else if (event.kind() == EventKind::ready) {
    prefetch(&links_[event.who()]);
  }
}

bool Links::fetch_behind(const Scheduler::Event& event) const {
  if (event.kind() == EventKind::arrive) {
    const FabricNode& node = ends_[event.who()];
    if (node.tier == Tier::host) {
      prefetch(&packets_[event.what()].packet);
      return false;
    }
    if (const LinkId next = router_.next_link(node, packets_[event.what()]); next != no_link) prefetch(&links_[next]);
  } else if (event.kind() == EventKind::ready) {
    const Link& link = links_[event.who()];
    const std::uint32_t head = link.control.empty() ? link.data.head : link.control.head;
    if (head == no_packet) return !link.is_first_hop;
    prefetch(&packets_[head]);
  }
  return true;
}

}  // namespace softmrc::sim
