// Collectives on the hosts of a network: the ones that are shipped. What they move weighs nothing where there is much
// of it: then lengths travel, and messages, but no data. Reducing takes no time.
#include <algorithm>

#include "base/check.h"
#include "sim/checker.h"
#include "sim/mrc_hosts.h"

namespace softmrc::sim {
namespace {

using collectives::Kind;
using collectives::Part;

// Of all ranks together: as much as tests want to see the bytes of.
constexpr std::uint64_t max_data = 64 * 1024 * 1024;
constexpr double patience_s = 1e6;

struct Sizes {
  std::uint64_t in = 0, out = 0;  // bytes
  bool has_parts_in = false, has_parts_out = false;
};

Sizes sizes_of(const Collective& c, std::uint64_t ranks) {
  switch (c.kind) {
    case Kind::all_reduce: return {c.bytes, c.bytes, false, false};
    case Kind::reduce_scatter: return {c.bytes, c.bytes / ranks, true, false};
    case Kind::all_gather: return {c.bytes / ranks, c.bytes, false, true};
    case Kind::all_to_all: return {c.bytes * ranks, c.bytes * ranks, true, true};
    default: return {};
  }
}

std::vector<Part> parts_of(std::uint8_t* at, std::uint64_t bytes, std::uint64_t parts) {
  std::vector<Part> result;
  for (std::uint64_t i = 0; i < parts; ++i) result.push_back({at + i * (bytes / parts), bytes / parts});
  return result;
}

// Where data would lie that weighs nothing.
std::uint8_t* nowhere(std::uint32_t mtu) { return reinterpret_cast<std::uint8_t*>(static_cast<std::uintptr_t>(mtu)); }

}  // namespace

// The network is gone by then: groups that leave notify no peer.
MrcHostFactory::~MrcHostFactory() {
  for (Host& host : hosts_) {
    if (host.endpoint) host.endpoint->set_trace(nullptr);
    if (host.driver) host.driver->close();
  }
  groups_.clear();
}

void MrcHostFactory::add_group(const std::vector<std::uint32_t>& hosts) {
  std::vector<Rank>& ranks = groups_.emplace_back().ranks;
  for (const std::uint32_t host : hosts) ranks.emplace_back().host = host;
}

std::int32_t MrcHostFactory::add_collective(const Collective& collective) {
  Group& group = groups_[collective.group];
  const Sizes sizes = sizes_of(collective, group.ranks.size());
  if (std::max(sizes.in, sizes.out) * group.ranks.size() > max_data) group.is_dry_run = true;
  collectives_.push_back(collective);
  return static_cast<std::int32_t>(collectives_.size()) - 1;
}

collectives::CollectiveCall MrcHostFactory::asked(const Collective& what, std::uint8_t* in, std::uint8_t* out) const {
  const auto ranks = static_cast<std::uint32_t>(groups_[what.group].ranks.size());
  const Sizes sizes = sizes_of(what, ranks);
  collectives::CollectiveCall call;
  call.kind = what.kind;
  call.dtype = collectives::DType::uint32;
  if (what.kind != Kind::barrier) {
    call.inputs = parts_of(in, sizes.in, sizes.has_parts_in ? ranks : 1);
    call.outputs = parts_of(out, sizes.out, sizes.has_parts_out ? ranks : 1);
  }
  return call;
}

// Before anything moves: a rank meets all that it will need for this call. How many bytes will come to it.
std::uint64_t MrcHostFactory::meet(const Flow& flow) {
  const Collective& what = collectives_[static_cast<std::uint32_t>(flow.collective)];
  Group& group = groups_[what.group];
  collectives::RankInfo place = group.place(flow.rank, config_.mtu);
  place.forced = what.forced;
  const collectives::CollectiveCall call = asked(what, nowhere(config_.mtu), nowhere(config_.mtu));
  SOFTMRC_CHECK(check(call, place).empty());
  std::uint64_t expected = 0;
  const std::unique_ptr<collectives::Operation> plan = collectives::plan(call, place);
  for (const collectives::Inbound& one : plan->ins) {
    introduce(group, flow.rank, one.peer);
    if (!one.is_eager) expected += one.bytes;
  }
  for (const collectives::Outbound& one : plan->outs) introduce(group, flow.rank, one.peer);
  return expected;
}

void MrcHosts::call(std::uint32_t id, const Flow& flow) {
  const auto number = static_cast<std::uint32_t>(flow.collective);
  const Collective& what = all_.collectives_[number];
  MrcHostFactory::Group& group = groups_[what.group];
  MrcHostFactory::Rank& rank = group.ranks[flow.rank];
  const Sizes sizes = sizes_of(what, group.ranks.size());
  MrcHostFactory::Call call{id, number, flow.rank, nullptr, {}, {}};
  std::uint8_t* in = nowhere(place_.config.mtu);
  std::uint8_t* out = in;
  if (!group.is_dry_run) {
    call.in.resize(sizes.in / 4);
    call.out.resize(sizes.out / 4);
    for (std::uint64_t i = 0; i < call.in.size(); ++i) call.in[i] = Checker::sample(flow.rank, i);
    in = reinterpret_cast<std::uint8_t*>(call.in.data());
    out = reinterpret_cast<std::uint8_t*>(call.out.data());
  }
  Host& host = hosts_[rank.host];
  host.calls.push_back(std::move(call));
  rank.part->force(what.forced);
  host.calls.back().work = rank.part->issue(all_.asked(what, in, out), patience_s);
  end_calls(rank.host);
}

// Both make a queue pair for messages and one for bulk data, as if they had met long ago.
void MrcHostFactory::introduce(Group& group, std::uint32_t a, std::uint32_t b) {
  std::vector<Rank>& ranks = group.ranks;
  const std::uint64_t seed = config_.seed + (static_cast<std::uint64_t>(&group - groups_.data()) << 32);
  if (!ranks[a].peers.insert(b).second) return;
  ranks[b].peers.insert(a);
  const std::array<std::uint32_t, 2> ends = {a, b};
  for (const std::uint32_t r : ends) {
    Rank& rank = ranks[r];
    if (rank.part) continue;
    MrcHosts& here = at(rank.host);
    proto::Endpoint& engine = here.endpoint_of(rank.host);
    Host& host = hosts_[rank.host];
    if (!host.driver) host.driver = std::make_unique<SimDriver>(engine, here.clock(), rank.host);
    rank.cq = engine.create_cq();
    rank.domains.resize(ranks.size());
    for (proto::Domain& domain : rank.domains) domain = engine.create_domain();
    rank.part = std::make_unique<collectives::Group>(
        std::vector<collectives::ChannelResources>{{host.driver.get(), &host.driver->qp_factory(), rank.cq}},
        group.place(r, config_.mtu), rank.domains, seed + r, std::make_shared<collectives::CompletionNotifier>());
    rank.part->start(config_.mtu);
  }
  std::array<std::uint32_t, 2> ids{};
  for (std::uint32_t i = 0; i < 2; ++i) ids[i] = hosts_[ranks[ends[i]].host].endpoint->add_peer();
  for (std::uint32_t i = 0; i < 2; ++i)
    hosts_[ranks[ends[i]].host].peers.push_back({ranks[ends[1 - i]].host, ids[1 - i]});
  const auto first = first_qpn +
                     static_cast<std::uint32_t>(connections_.size());  // messages and bulk data of a, then of b
  for (std::uint32_t bulk = 0; bulk < 2; ++bulk) {
    for (std::uint32_t i = 0; i < 2; ++i) {
      const Rank& rank = ranks[ends[i]];
      proto::InitAttributes init;
      init.send_cq = init.recv_cq = rank.cq;
      init.domain = rank.domains[ends[1 - i]];
      at(rank.host).make_queue_pair(rank.host, first + 2 * i + bulk, first + 2 * (1 - i) + bulk, ids[i],
                                    first_psn(first + bulk), init);
    }
  }
  for (std::uint32_t i = 0; i < 2; ++i)
    for (std::uint32_t bulk = 0; bulk < 2; ++bulk) {
      const std::uint32_t here = ranks[ends[i]].host, there = ranks[ends[1 - i]].host;
      connections_.push_back({there, here, ids[1 - i], ids[i], hosts_[there].endpoint->qp(first + 2 * (1 - i) + bulk),
                              hosts_[here].endpoint->qp(first + 2 * i + bulk),
                              bulk ? Carried::bulk : Carried::message});
    }
  for (std::uint32_t i = 0; i < 2; ++i)
    ranks[ends[i]].part->connect(0, ends[1 - i], first + 2 * i, first + 2 * i + 1,
                                 ranks[ends[1 - i]].part->ring_rkey(0, ends[i]));
}

bool MrcHosts::progress(std::uint32_t host) {
  Host& h = hosts_[host];
  if (!h.driver) return false;
  const bool has_more = h.driver->progress();
  if (!h.calls.empty()) end_calls(host);
  return has_more;
}

void MrcHosts::end_calls(std::uint32_t host) {
  Host& h = hosts_[host];
  for (std::size_t i = 0; i < h.calls.size();) {
    if (!h.calls[i].work->has_ended()) {
      ++i;
      continue;
    }
    const MrcHostFactory::Call ended = std::move(h.calls[i]);
    h.calls.erase(h.calls.begin() + static_cast<std::ptrdiff_t>(i));
    if (ended.work->has_failed()) {
      ++counters_.broken_connections;
      errors_.push_back({ended.flow, "rank " + std::to_string(ended.rank) + ": " + ended.work->error()});
      continue;
    }
    const Collective& what = all_.collectives_[ended.collective];
    Checker::check_result(what.kind, ended.rank, static_cast<std::uint32_t>(groups_[what.group].ranks.size()),
                          ended.out);
    place_.network.on_delivered(ended.flow);
    place_.network.on_completed(ended.flow);
  }
}

}  // namespace softmrc::sim
