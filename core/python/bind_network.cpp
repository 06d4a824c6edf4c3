#include <algorithm>

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "python/bind.h"
#include "python/engine_views.h"
#include "sim/network.h"

namespace nb = nanobind;

namespace softmrc::python {

using namespace sim;

namespace {

template <typename T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void bind_fabric(nb::module_& m) {
  nb::enum_<Forwarding>(m, "Forwarding")
      .value("SRV6", Forwarding::srv6)
      .value("ECMP", Forwarding::ecmp)
      .value("STRUCTURED", Forwarding::structured);
  nb::enum_<FaultKind>(m, "FaultKind")
      .value("DOWN", FaultKind::down)
      .value("BLACK_HOLE", FaultKind::black_hole)
      .value("LOSS", FaultKind::loss)
      .value("CORRUPT", FaultKind::corrupt)
      .value("SLOW", FaultKind::slow)
      .value("SLOW_SCALED", FaultKind::slow_scaled)
      .value("EV_LOSS", FaultKind::ev_loss)
      .value("HEAL", FaultKind::heal);

  nb::class_<FabricConfig> fabric(m, "FabricConfig");
  fabric.def(nb::init<>())
      .def_rw("planes", &FabricConfig::planes)
      .def_rw("hosts", &FabricConfig::hosts)
      .def_rw("hosts_per_leaf", &FabricConfig::hosts_per_leaf)
      .def_rw("spines", &FabricConfig::spines)
      .def_rw("pods", &FabricConfig::pods)
      .def_rw("cores_per_spine", &FabricConfig::cores_per_spine)
      .def_rw("host_link_bps", &FabricConfig::host_link_bps)
      .def_rw("fabric_link_bps", &FabricConfig::fabric_link_bps)
      .def_rw("cables_per_link", &FabricConfig::cables_per_link)
      .def_rw("cables_per_core_link", &FabricConfig::cables_per_core_link);
  def_us(fabric, "link_delay_us", &FabricConfig::link_delay);

  nb::class_<QueueConfig>(m, "QueueConfig")
      .def(nb::init<>())
      .def_rw("data_bytes", &QueueConfig::data_bytes)
      .def_rw("control_bytes", &QueueConfig::control_bytes)
      .def_rw("ecn_low_bytes", &QueueConfig::ecn_low_bytes)
      .def_rw("ecn_high_bytes", &QueueConfig::ecn_high_bytes)
      .def_rw("trim_bytes", &QueueConfig::trim_bytes)
      .def_rw("last_hop_trim_bytes", &QueueConfig::last_hop_trim_bytes)
      .def_rw("ecn_on_last_hop", &QueueConfig::ecn_on_last_hop);

  nb::enum_<Transport>(m, "Transport").value("MRC", Transport::mrc).value("ROCE", Transport::roce);
  nb::class_<RoceConfig> roce(m, "RoceConfig");
  roce.def(nb::init<>())
      .def_rw("qps_per_pair", &RoceConfig::qps_per_pair)
      .def_rw("dcqcn", &RoceConfig::dcqcn)
      .def_rw("pfc", &RoceConfig::pfc)
      .def_rw("pfc_xoff_bytes", &RoceConfig::pfc_xoff_bytes)
      .def_rw("pfc_xon_bytes", &RoceConfig::pfc_xon_bytes)
      .def_rw("ack_every_packets", &RoceConfig::ack_every_packets)
      .def_rw("max_retries", &RoceConfig::max_retries)
      .def_rw("line_rate_bps", &RoceConfig::line_rate_bps);
  def_us(roce, "retransmit_timeout_us", &RoceConfig::retransmit_timeout);
  def_us(roce, "cnp_interval_us", &RoceConfig::cnp_interval);
  def_us(roce, "alpha_interval_us", &RoceConfig::alpha_interval);
  def_us(roce, "increase_interval_us", &RoceConfig::increase_interval);

  nb::class_<NetworkConfig> network(m, "NetworkConfig");
  network.def(nb::init<>())
      .def_rw("transport", &NetworkConfig::transport)
      .def_rw("roce", &NetworkConfig::roce)
      .def_rw("seed", &NetworkConfig::seed)
      .def_rw("cores", &NetworkConfig::cores)
      .def_rw("fabric", &NetworkConfig::fabric)
      .def_rw("queue", &NetworkConfig::queue)
      .def_rw("forwarding", &NetworkConfig::forwarding)
      .def_rw("data_overhead_bytes", &NetworkConfig::data_overhead_bytes)
      .def_rw("control_packet_bytes", &NetworkConfig::control_packet_bytes)
      .def_rw("trimmed_packet_bytes", &NetworkConfig::trimmed_packet_bytes)
      .def_rw("mtu", &NetworkConfig::mtu)
      .def_rw("mpr", &NetworkConfig::mpr)
      .def_rw("timeout", &NetworkConfig::timeout)
      .def_rw("qps_per_pair", &NetworkConfig::qps_per_pair)
      .def_rw("hints", &NetworkConfig::hints)
      .def_rw("chain_on_acknowledgement", &NetworkConfig::chain_on_acknowledgement)
      .def_rw("process", &NetworkConfig::process)
      .def_rw("endpoint", &NetworkConfig::endpoint)
      .def("set_ev_profile", [](NetworkConfig& c, const proto::EvProfile& p) {
    c.ev_profile = std::make_shared<proto::EvProfile>(p);
  }).def("set_cc_profile", [](NetworkConfig& c, const proto::CcProfile& p) {
    c.cc_profile = std::make_shared<proto::CcProfile>(p);
  });
  def_us(network, "convergence_delay_us", &NetworkConfig::convergence_delay);
}

void check(const NetworkConfig& c) {
  using proto::Error;
  if (const auto p = validate(c.fabric)) raise_if(Error{Error::Kind::config, p->field, p->value, p->expected});
  proto::EndpointConfig endpoint = c.endpoint;
  endpoint.ports = c.fabric.planes;
  raise_if(proto::validate(endpoint));
  if (c.roce.qps_per_pair < 1 || c.roce.qps_per_pair > 16)
    raise_if(Error{Error::Kind::config, "qps_per_pair", std::to_string(c.roce.qps_per_pair), "1 to 16"});
  if (!c.ev_profile || !c.cc_profile)
    raise_if(Error{Error::Kind::usage, "profiles", "none", "an EV profile and a CC profile"});
  raise_if(proto::validate(*c.ev_profile, c.fabric.planes));
  raise_if(proto::validate(*c.cc_profile));
  proto::RtrAttributes rtr;
  rtr.dest_qpn = 16;
  rtr.mtu = c.mtu;
  rtr.mpr_dest = c.mpr;
  raise_if(proto::validate(rtr));
  proto::RtsAttributes rts;
  rts.timeout = c.timeout;
  raise_if(proto::validate(rts));
}

// Of rows with a collective, each is a rank's call of it; those that last are computing.
void add_flows(Network& n, Column<std::uint32_t> source, Column<std::uint32_t> destination, Column<std::uint32_t> bytes,
               Column<std::int64_t> start_ps, Column<std::int32_t> collective, Column<std::uint32_t> rank,
               Column<std::int64_t> lasts_ps) {
  const auto refuse = [](const char* field, std::uint64_t value, std::string expected) {
    raise_if(proto::Error{proto::Error::Kind::config, field, std::to_string(value), std::move(expected)});
  };
  const std::size_t count = source.shape(0);
  if (destination.shape(0) != count || bytes.shape(0) != count || start_ps.shape(0) != count ||
      collective.shape(0) != count || rank.shape(0) != count || lasts_ps.shape(0) != count)
    refuse("flows", count, "columns of one length");
  const std::uint32_t hosts = n.fabric().config().hosts;
  for (std::size_t i = 0; i < count; ++i) {
    if (source(i) >= hosts) refuse("source", source(i), "a host below " + std::to_string(hosts));
    if (destination(i) >= hosts) refuse("destination", destination(i), "a host below " + std::to_string(hosts));
    const Time start = start_ps(i) < 0 ? Time::never() : Time{start_ps(i)};
    if (collective(i) >= 0) {
      Flow flow;
      flow.source = source(i);
      flow.destination = destination(i);
      flow.bytes = bytes(i);
      flow.start = start;
      n.add_call(collective(i), rank(i), flow);
      continue;
    }
    if (lasts_ps(i) >= 0) {
      n.add_compute(source(i), Duration{lasts_ps(i)}, start);
      continue;
    }
    if (source(i) == destination(i)) refuse("destination", destination(i), "another host than the source");
    if (bytes(i) == 0) refuse("bytes", 0, "at least 1");
    n.add_flow(source(i), destination(i), bytes(i), start);
  }
}

template <typename T>
nb::bytes raw(const std::vector<T>& values) {
  return nb::bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

// One row a packet of a survey: when, whose, by which plane, how long, and up to six uSIDs, zeros behind the last.
void add_probes(Network& n, Column<std::int64_t> at_ps, Column<std::uint32_t> host, Column<std::uint32_t> plane,
                Column<std::uint32_t> bytes,
                nb::ndarray<const std::uint16_t, nb::shape<-1, 6>, nb::c_contig, nb::device::cpu> usids) {
  const auto refuse = [](const char* field, std::int64_t value, std::string expected) {
    raise_if(proto::Error{proto::Error::Kind::config, field, std::to_string(value), std::move(expected)});
  };
  const std::size_t count = at_ps.shape(0);
  if (host.shape(0) != count || plane.shape(0) != count || bytes.shape(0) != count || usids.shape(0) != count)
    refuse("shots", static_cast<std::int64_t>(count), "columns of one length");
  if (n.config().forwarding != Forwarding::srv6)
    refuse("forwarding", static_cast<std::int64_t>(n.config().forwarding), "srv6, for packets with routes");
  const FabricConfig& fabric = n.fabric().config();
  for (std::size_t i = 0; i < count; ++i) {
    if (at_ps(i) < n.reached().ps) refuse("at_ps", at_ps(i), "not before now, " + std::to_string(n.reached().ps));
    if (host(i) >= fabric.hosts) refuse("host", host(i), "a host below " + std::to_string(fabric.hosts));
    if (plane(i) >= fabric.planes) refuse("plane", plane(i), "below " + std::to_string(fabric.planes));
    if (bytes(i) == 0 || bytes(i) > 65536) refuse("bytes", bytes(i), "1 to 65536");
    for (unsigned k = 0; k < 6 && usids(i, k); ++k)
      if (!n.fabric().is_usid(usids(i, k)))
        refuse("uSID", usids(i, k), "that of a switch or a downlink of this fabric");
  }
  for (std::size_t i = 0; i < count; ++i) {
    ProbeTraffic::MapperProbe shot;
    shot.at = Time{at_ps(i)};
    shot.host = host(i);
    shot.plane = plane(i);
    shot.bytes = bytes(i);
    for (unsigned k = 0; k < 6 && usids(i, k); ++k) shot.route.append(k, usids(i, k));
    n.add_probe(shot);
  }
}

// How long each was under way, in the order in which they were added; -1 for those that never came back. And which of
// them came back broken.
nb::tuple take_probes(Network& n) {
  if (!n.is_survey_over())
    raise_if(proto::Error{proto::Error::Kind::usage, "shots", "under way", "a run until all are back or lost"});
  std::vector<std::int64_t> took;
  std::vector<std::uint8_t> is_corrupt;
  for (const ProbeTraffic::MapperProbe& shot : n.take_probes()) {
    took.push_back(shot.back == Time::never() ? -1 : shot.back.ps - shot.at.ps);
    is_corrupt.push_back(shot.is_corrupt);
  }
  return nb::make_tuple(raw(took), raw(is_corrupt));
}

// One row a flow, as softmrc.sim reads it.
struct FlowRow {
  std::int64_t start_ps, delivered_ps, completed_ps;
  std::uint32_t source, destination, bytes, reserved;
};

nb::bytes flow_rows(const Network& n) {
  const auto or_minus = [](Time t) { return t == Time::never() ? -1 : t.ps; };
  std::vector<FlowRow> rows;
  rows.reserve(n.workload().flows().size());
  for (const Flow& f : n.workload().flows())
    rows.push_back(
        {or_minus(f.start), or_minus(f.delivered), or_minus(f.completed), f.source, f.destination, f.bytes, 0});
  return raw(rows);
}

nb::dict counters(const Network& n) {
  nb::dict d;
  const Links::Counters links = n.link_counters();
  const Hosts::Counters hosts = n.host_counters();
  d["events"] = n.events();
  d["link_hops"] = links.hops;
  d["data_packets"] = hosts.data_packets;
  d["control_packets"] = hosts.control_packets;
  d["trimmed"] = links.trimmed;
  d["marked"] = links.marked;
  d["dropped"] = links.dropped + hosts.dropped;
  d["lost_to_faults"] = links.lost;
  d["corrupted"] = links.corrupted;
  d["retransmitted"] = hosts.retransmitted;
  d["pauses"] = links.pauses;
  d["broken_connections"] = hosts.broken_connections;
  d["bytes_placed"] = n.bytes_placed();
  d["data_lost"] = n.recovery().lost();
  return d;
}

}  // namespace

void bind_network(nb::module_& m) {
  bind_fabric(m);
  nb::class_<Network>(m, "Network")
      .def("__init__",
           [](Network* self, const NetworkConfig& config) {
    check(config);
    GilRelease release;
    new (self) Network(config);
  })
      .def("add_group", &Network::add_group)
      .def("add_collective",
           [](Network& n, std::uint32_t group, std::uint8_t kind, std::uint64_t bytes,
              const std::optional<std::string>& algorithm) {
    const std::int32_t number = n.add_collective(
        {group, static_cast<collectives::Kind>(kind), bytes, algorithm_of(algorithm)});
    if (number < 0)
      raise_if(proto::Error{proto::Error::Kind::config, "transport", "roce", "mrc, which has collectives"});
    return number;
  },
           nb::arg("group"), nb::arg("kind"), nb::arg("bytes"), nb::arg("algorithm") = nb::none())
      .def("collective_errors", [](const Network& n) { return n.errors(); })
      .def("add_flows", &add_flows)
      .def("add_dependencies",
           [](Network& n, Column<std::uint32_t> earlier, Column<std::uint32_t> later, Column<std::int64_t> think_ps) {
    for (std::size_t i = 0; i < earlier.shape(0); ++i) n.add_dependency(earlier(i), later(i), Duration{think_ps(i)});
  })
      .def("add_fault",
           [](Network& n, std::int64_t at_ps, FaultKind kind, LinkId link, double value) {
    if (link >= n.fabric().links())
      raise_if(proto::Error{proto::Error::Kind::config, "link", std::to_string(link),
                            "below " + std::to_string(n.fabric().links())});
    if (at_ps < n.reached().ps)
      raise_if(proto::Error{proto::Error::Kind::config, "at_ps", std::to_string(at_ps),
                            "not before now, " + std::to_string(n.reached().ps)});
    n.add_fault({Time{at_ps}, kind, link, value});
  })
      .def("add_shots", &add_probes)
      .def("take_shots", &take_probes)
      .def("sample_every", [](Network& n, std::int64_t bin_ps) { n.sample_every(Duration{bin_ps}); })
      .def("run",
           [](Network& n, std::int64_t until_ps, std::uint64_t max_events) {
    return n.run(Time{until_ps}, max_events);
  }, nb::call_guard<GilRelease>())
      .def_prop_ro("cores", &Network::cores)
      .def_prop_ro("last_placed_ps", [](const Network& n) { return std::max<std::int64_t>(n.last_placed().ps, 0); })
      .def_prop_ro("now_ps", [](const Network& n) { return n.now().ps; })
      .def_prop_ro("is_idle", &Network::is_idle)
      .def_prop_ro("flows_completed", [](const Network& n) { return n.completed(); })
      .def_prop_ro("trace_hash", [](const Network& n) { return n.trace_hash(); })
      .def_prop_ro("links", [](const Network& n) { return n.fabric().links(); })
      .def_prop_ro("leaves", [](const Network& n) { return n.fabric().leaves(); })
      .def("host_up", [](const Network& n, std::uint32_t p, std::uint32_t h) { return n.fabric().host_up(p, h); })
      .def("host_down", [](const Network& n, std::uint32_t p, std::uint32_t h) { return n.fabric().host_down(p, h); })
      .def("leaf_up", [](const Network& n, std::uint32_t p, std::uint32_t l,
                         std::uint32_t s) { return n.fabric().leaf_up(p, l, s); })
      .def("leaf_down", [](const Network& n, std::uint32_t p, std::uint32_t l,
                           std::uint32_t s) { return n.fabric().leaf_down(p, l, s); })
      .def("t1_up", [](const Network& n, std::uint32_t p, std::uint32_t t,
                       std::uint32_t u) { return n.fabric().t1_up(p, t, u); })
      .def("t1_down", [](const Network& n, std::uint32_t p, std::uint32_t t,
                         std::uint32_t u) { return n.fabric().t1_down(p, t, u); })
      .def("flow_rows", &flow_rows)
      .def("counters", &counters)
      .def("total_stats", [](const Network& n) { return stats_dict(n.hosts().total_stats()); })
      .def("link_bytes",
           [](const Network& n) {
    std::vector<std::uint64_t> bytes(n.fabric().links());
    for (LinkId i = 0; i < bytes.size(); ++i) bytes[i] = n.links().bytes_on(i);
    return raw(bytes);
  })
      .def("link_max_queue",
           [](const Network& n) {
    std::vector<std::uint32_t> most(n.fabric().links());
    for (LinkId i = 0; i < most.size(); ++i) most[i] = n.links().max_queue_on(i);
    return raw(most);
  })
      .def("goodput_series", [](const Network& n) { return raw(n.series().placed()); })
      .def("bad_ev_series", [](const Network& n) { return raw(n.series().bad_evs()); })
      .def("ev_census",
           [](const Network& n) {
    const auto states = n.hosts().ev_census();
    return nb::make_tuple(states[0], states[1], states[2], states[3]);
  })
      .def_prop_ro("bytes_placed", [](const Network& n) { return n.bytes_placed(); })
      .def("recovery", [](const Network& n) {
    const Recovery& r = n.recovery();
    return nb::make_tuple(r.last_lost().ps, r.last_resent().ps, n.unsent());
  }).def("stuck_flows", [](const Network& n) { return n.workload().stuck(); });
}

}  // namespace softmrc::python
