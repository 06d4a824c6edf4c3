// Parts of the simulator by themselves, for tests that put one of them next to a plain model: the extension `_parts`.
// Times are picoseconds.
#include <algorithm>

#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "parts.h"
#include "python/bind.h"
#include "sim/checker.h"
#include "sim/links.h"
#include "sim/recovery.h"
#include "sim/series.h"
#include "sim/workload.h"

namespace nb = nanobind;

namespace softmrc::python {

using namespace sim;

namespace {

// The oracle with what it has seen, all at one place.
struct CheckerRig {
  explicit CheckerRig(std::uint32_t mtu) : checker(mtu) {}
  Checker checker;
  Checker::Seen seen;
};

void bind_checker(nb::module_& m) {
  nb::class_<CheckerRig>(m, "Checker")
      .def(nb::init<std::uint32_t>(), nb::arg("mtu"))
      .def("plan",
           [](CheckerRig& c, std::uint32_t source, std::uint32_t destination, std::uint32_t bytes) {
    c.checker.plan(source, destination, bytes);
  }, nb::arg("source"), nb::arg("destination"), nb::arg("bytes"))
      .def("on_placed",
           [](CheckerRig& c, std::uint32_t flow, std::uint32_t source, std::uint32_t destination, std::uint64_t offset,
              std::uint32_t bytes) { c.checker.on_placed(c.seen, flow, source, destination, offset, bytes); },
           nb::arg("flow"), nb::arg("source"), nb::arg("destination"), nb::arg("offset"), nb::arg("bytes"))
      .def("on_delivered", [](const CheckerRig& c, std::uint32_t flow) { c.checker.on_delivered(flow); })
      .def_static("check_conserved",
                  [](std::uint64_t sent, std::uint64_t arrived, std::uint64_t dropped, std::uint64_t lost,
                     std::uint64_t under_way) { Checker::check_conserved({sent, arrived, dropped, lost, under_way}); },
                  nb::arg("sent"), nb::arg("arrived") = 0, nb::arg("dropped") = 0, nb::arg("lost") = 0,
                  nb::arg("under_way") = 0)
      .def_prop_ro("bytes_placed", [](const CheckerRig& c) { return c.seen.bytes_placed; });
}

void bind_workload(nb::module_& m) {
  using Starts = std::vector<std::pair<std::int64_t, std::uint32_t>>;  // when, and which flow
  const auto into = [](Starts& starts) {
    return [&starts](Time at, std::uint32_t flow) { starts.emplace_back(at.ps, flow); };
  };
  nb::class_<Workload>(m, "Workload")
      .def(nb::init<bool>(), nb::arg("chain_on_acknowledgement") = false)
      .def("add",
           [](Workload& w, std::int64_t start) { return w.add(0, 1, 1, start < 0 ? Time::never() : Time{start}); },
           nb::arg("start"))
      .def("add_dependency",
           [](Workload& w, std::uint32_t earlier, std::uint32_t later, std::int64_t think) {
    w.add_dependency(earlier, later, Duration{think});
  }, nb::arg("earlier"), nb::arg("later"), nb::arg("think") = 0)
      .def("begin",
           [into](Workload& w) {
    Starts s;
    w.begin(into(s));
    return s;
  })
      .def("on_delivered",
           [into](Workload& w, std::int64_t now, std::uint32_t id) {
    Starts s;
    w.on_delivered(Time{now}, id, into(s));
    return s;
  })
      .def("on_completed", [into](Workload& w, std::int64_t now, std::uint32_t id) {
    Starts s;
    w.on_completed(Time{now}, id, into(s));
    return s;
  }).def("stuck", &Workload::stuck);
}

void bind_series(nb::module_& m) {
  nb::class_<Series>(m, "Series")
      .def(nb::init<std::uint32_t>(), nb::arg("planes"))
      .def("sample_every", [](Series& s, std::int64_t bin) { s.sample_every(Duration{bin}); })
      .def("on_placed", [](Series& s, std::int64_t now, std::uint8_t plane,
                           std::uint32_t bytes) { s.on_placed(Time{now}, plane, bytes); })
      .def("on_bad_evs", [](Series& s, std::int64_t now, std::int64_t change) { s.on_bad_evs(Time{now}, change); })
      .def_prop_ro("placed", &Series::placed)
      .def_prop_ro("bad_evs", &Series::bad_evs);
}

auto among(const std::vector<std::uint64_t>& placed) {
  return [&placed](const Recovery::Lost& lost) {
    return std::find(placed.begin(), placed.end(), lost.key) != placed.end();
  };
}

void bind_recovery(nb::module_& m) {
  nb::class_<Recovery>(m, "Recovery")
      .def(nb::init<>())
      .def("settle",
           [](Recovery& r, const std::vector<std::pair<std::int64_t, std::uint64_t>>& lost,
              const std::vector<std::pair<std::int64_t, std::uint64_t>>& resent,
              const std::vector<std::uint64_t>& placed) {
    std::vector<Recovery::Lost> taken;
    for (const auto& [at, key] : lost) taken.push_back({Time{at}, key, 0, 0, 0, true});
    std::vector<Recovery::Resent> again;
    for (const auto& [at, key] : resent) again.push_back({Time{at}, key});
    r.settle(taken, again, among(placed));
  },
           nb::arg("lost"), nb::arg("resent"), nb::arg("placed"))
      .def_prop_ro("lost", &Recovery::lost)
      .def("unsent",
           [](const Recovery& r, const std::vector<std::uint64_t>& placed) { return r.unsent(among(placed)); },
           nb::arg("placed"))
      .def_prop_ro("last_lost", [](const Recovery& r) {
    return r.last_lost().ps;
  }).def_prop_ro("last_resent", [](const Recovery& r) { return r.last_resent().ps; });
}

// Links and switches without hosts: packets are put on the first link and gathered behind the last one.
class LinkRig : private LinkObserver {
 public:
  explicit LinkRig(const NetworkConfig& config)
      : config_(config),
        fabric_(config.fabric),
        table_(fabric_),
        partition_(fabric_, 1),
        links_({config_, fabric_, table_, partition_, 0, scheduler_, outbox_, parcels_, *this}) {}
  LinkRig(const LinkRig&) = delete;
  LinkRig& operator=(const LinkRig&) = delete;

  std::uint32_t send(std::uint32_t source, std::uint32_t destination, std::uint32_t entropy, std::uint8_t plane,
                     std::uint32_t bytes, bool is_control) {
    const std::uint32_t id = parcels_.take();
    SimPacket& p = parcels_[id];
    p.packet.body = wire::Write{};
    p.entropy = entropy;
    p.source = source;
    p.destination = destination;
    p.plane = plane;
    p.bytes = bytes;
    p.is_control = is_control;
    p.is_trimmable = !is_control;
    p.congestion = p.is_corrupt = false;
    p.trim = proto::Trim::none;
    p.came_from = no_link;
    links_.router().address(p);
    const LinkId link = fabric_.host_up(plane, source);
    if (is_busy_[link]) links_.leave_later(link, id);
    else links_.leave(link, id);
    is_busy_[link] = true;
    return id;
  }

  // Until nothing moves: when which packet reached which host, whether it was trimmed, marked, corrupted.
  std::vector<std::tuple<std::int64_t, std::uint32_t, std::uint32_t, bool, bool, bool>> run() {
    std::vector<std::tuple<std::int64_t, std::uint32_t, std::uint32_t, bool, bool, bool>> seen;
    for (Scheduler::Event event; scheduler_.pop_before(Time::never(), event);) {
      if (event.kind() == EventKind::arrive) follow(event.what(), event.who());
      if (event.kind() == EventKind::arrive && links_.on_arrive(event.who(), event.what())) {
        const SimPacket& p = parcels_[event.what()];
        seen.emplace_back(event.at.ps, event.what(), table_.end_of(event.who()).index, p.trim != proto::Trim::none,
                          p.congestion, p.is_corrupt);
        parcels_.drop(event.what());
      } else if (event.kind() == EventKind::ready && links_.on_ready(event.who())) {
        is_busy_[event.who()] = false;
      }
    }
    return seen;
  }

  void apply(FaultKind kind, LinkId link, double value) {
    if (link >= fabric_.links())
      raise_if(proto::Error{proto::Error::Kind::config, "link", std::to_string(link),
                            "below " + std::to_string(fabric_.links())});
    table_.apply(scheduler_.now(), {scheduler_.now(), kind, link, value});
  }
  const Links::Counters& counters() const { return links_.counters(); }
  // Packets that went on by a link which does not begin where the one before it ends.
  std::uint64_t leaps() const { return leaps_; }
  std::int64_t under_way() const { return parcels_.in_use(); }
  std::uint64_t taken_by_faults() const { return taken_by_faults_; }

 private:
  void on_lost(const SimPacket&) override { ++taken_by_faults_; }
  void follow(std::uint32_t id, LinkId link) {
    const LinkId before = parcels_[id].came_from;
    if (before != no_link && fabric_.to(before) != fabric_.from(link)) ++leaps_;
  }

  const NetworkConfig config_;
  const Fabric fabric_;
  LinkTable table_;
  const Partition partition_;
  Scheduler scheduler_;
  Outbox outbox_{1};
  PacketArena store_;
  PacketPool parcels_{store_, 1, 0};
  Links links_;
  std::vector<bool> is_busy_ = std::vector<bool>(fabric_.links());
  std::uint64_t taken_by_faults_ = 0;
  std::uint64_t leaps_ = 0;
};

void bind_links(nb::module_& m) {
  nb::class_<LinkRig>(m, "Links")
      .def("__init__",
           [](LinkRig* self, const NetworkConfig& config) {
    if (const auto p = validate(config.fabric))
      raise_if(proto::Error{proto::Error::Kind::config, p->field, p->value, p->expected});
    new (self) LinkRig(config);
  })
      .def("send", &LinkRig::send, nb::arg("source"), nb::arg("destination"), nb::arg("entropy") = 0,
           nb::arg("plane") = 0, nb::arg("bytes") = 1000, nb::arg("is_control") = false)
      .def("run", &LinkRig::run)
      .def("apply", &LinkRig::apply, nb::arg("kind"), nb::arg("link"), nb::arg("value") = 0.0)
      .def_prop_ro("hops", [](const LinkRig& l) { return l.counters().hops; })
      .def_prop_ro("dropped", [](const LinkRig& l) { return l.counters().dropped; })
      .def_prop_ro("lost", [](const LinkRig& l) { return l.counters().lost; })
      .def_prop_ro("leaps", &LinkRig::leaps)
      .def_prop_ro("under_way", &LinkRig::under_way)
      .def_prop_ro("taken_by_faults", &LinkRig::taken_by_faults);
}

}  // namespace

void bind_sim_parts(nb::module_& m) {
  bind_checker(m);
  bind_workload(m);
  bind_series(m);
  bind_recovery(m);
  bind_links(m);
}

}  // namespace softmrc::python
