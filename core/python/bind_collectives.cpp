#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "collectives/group.h"
#include "python/bind.h"
#include "udp/device.h"

namespace nb = nanobind;

namespace softmrc::python {

using namespace collectives;

namespace {

using Parts = std::vector<std::pair<std::uint64_t, std::uint64_t>>;  // address and bytes

Part part_of(std::uint64_t address, std::uint64_t bytes) { return {reinterpret_cast<std::uint8_t*>(address), bytes}; }

std::vector<Part> parts_of(const Parts& parts) {
  std::vector<Part> result;
  result.reserve(parts.size());
  for (const auto& [address, bytes] : parts) result.push_back(part_of(address, bytes));
  return result;
}

// Every lane with the profiles of paths and of congestion control there.
using Lanes = std::vector<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>>;

void make(Group* self, udp::Device& device, const Lanes& lanes, std::uint32_t rank, std::uint32_t size,
          std::uint32_t cq, std::uint64_t seed, std::shared_ptr<CompletionNotifier> port) {
  std::vector<proto::Domain> domains(size);
  std::iota(domains.begin(), domains.end(), device.create_domains(size));
  std::vector<ChannelResources> homes;
  for (const auto& [lane, evs, control] : lanes)
    homes.push_back(
        {&device.lane(lane), &device.lane(lane), device.part_of_cq(cq, lane), evs, control, lane, device.lanes()});
  new (self) Group(homes, {rank, size, 4096}, std::move(domains), seed, std::move(port));
}

// The first number of queue pairs, what is from one to the next, and the first key, by channel.
using Kept = std::vector<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>>;

Kept reserve(Group& group) {
  Kept kept;
  for (const PeerEndpoint& end : group.reserve()) kept.emplace_back(end.first_qpn, end.stride, end.first_rkey);
  return kept;
}

void set_peer(Group& group, std::uint32_t peer, const std::vector<std::uint32_t>& places, const Kept& kept,
              std::uint32_t mpr, std::uint32_t max_wimm, const std::optional<proto::EvProfile>& paths,
              std::vector<std::uint32_t> denied, bool is_neighbour) {
  PeerInfo member{
      {}, mpr, max_wimm, paths ? std::make_shared<proto::EvProfile>(*paths) : nullptr, is_neighbour, std::move(denied)};
  for (std::size_t k = 0; k < group.channels(); ++k) {
    const auto& [first_qpn, stride, first_rkey] = kept.at(k);
    member.ends.push_back({places.at(k), first_qpn, stride, first_rkey});
  }
  raise_if(group.set_peer(peer, std::move(member)));
}

std::shared_ptr<Work> issue(Group& group, std::uint8_t kind, std::uint8_t dtype, std::uint8_t op, double factor,
                            std::int32_t root, const Parts& inputs, const Parts& outputs, double timeout_s) {
  CollectiveCall call{static_cast<Kind>(kind), static_cast<DType>(dtype), static_cast<ReduceOp>(op), factor, root,
                      parts_of(inputs),        parts_of(outputs)};
  if (const std::string problem = check(call, group.place()); !problem.empty())
    raise_if(proto::Error{proto::Error::Kind::config, kind_names[kind], problem,
                          "parts, types and roots that fit the group"});
  GilRelease release;
  return group.issue(call, timeout_s);
}

// Words that may have come from another process, and from the middle of a character.
nb::str text_of(const std::string& words) {
  return nb::steal<nb::str>(PyUnicode_DecodeUTF8(words.data(), static_cast<Py_ssize_t>(words.size()), "replace"));
}

bool wait(Group& group, const Work& work, double timeout_s) {
  if (work.has_ended()) return true;
  wait_in_slices(timeout_s, [&](Duration slice) {
    group.wait(work, slice);
    return work.has_ended() || group.is_device_closed();
  });
  if (!work.has_ended() && group.is_device_closed())
    raise_if(
        proto::Error{proto::Error::Kind::usage, "device", "closed", "an open device while operations are under way"});
  return work.has_ended();
}

// What the model says of every algorithm that could carry out a collective, in seconds; parts are even. The least one
// is taken.
nb::dict collective_times(std::uint8_t kind, std::uint32_t ranks, std::uint64_t bytes) {
  const bool has_parts = static_cast<Kind>(kind) == Kind::reduce_scatter || static_cast<Kind>(kind) == Kind::all_gather;
  const CollectiveSize load{static_cast<Kind>(kind), ranks, bytes, has_parts ? bytes / ranks : bytes};
  nb::dict times;
  for (std::size_t i = 0; i < algorithm_names.size(); ++i)
    if (const std::uint64_t ps = time_of(static_cast<Algorithm>(i), load, {}); ps != impossible_ps)
      times[algorithm_names[i]] = static_cast<double>(ps) * 1e-12;
  return times;
}

std::uint32_t grid_columns(std::uint32_t ranks, std::uint64_t bytes) {
  return columns_of({Kind::all_reduce, ranks, bytes, bytes}, {});
}

// One kernel by itself, as tests and benches want it: out = a op b.
void combine(bool plain, std::uint8_t dtype, std::uint8_t op, std::uint64_t out, std::uint64_t a, std::uint64_t b,
             std::size_t count) {
  const Kernels& kernels = plain ? plain::kernels : best_kernels();
  const Combine fn = kernels.combine(static_cast<DType>(dtype), static_cast<ReduceOp>(op));
  if (!fn)
    raise_if(proto::Error{proto::Error::Kind::config, "op", std::to_string(op),
                          "an operation that makes sense for the type"});
  GilRelease release;
  fn(reinterpret_cast<std::uint8_t*>(out), reinterpret_cast<const std::uint8_t*>(a),
     reinterpret_cast<const std::uint8_t*>(b), count);
}

}  // namespace

std::optional<Algorithm> algorithm_of(const std::optional<std::string>& name) {
  if (!name) return {};
  const auto at = std::find(algorithm_names.begin(), algorithm_names.end(), *name);
  if (at == algorithm_names.end())
    raise_if(proto::Error{proto::Error::Kind::config, "algorithm", *name, "a name that collective_times uses"});
  return static_cast<Algorithm>(at - algorithm_names.begin());
}

void bind_collectives(nb::module_& m) {
  nb::class_<CompletionNotifier>(m, "CompletionPort")
      .def(nb::init<>())
      .def("take", &CompletionNotifier::take, nb::call_guard<GilRelease>())
      .def("shut", &CompletionNotifier::shut)
      .def("watch", &CompletionNotifier::watch);
  nb::class_<Work>(m, "CollectiveWork")
      .def_prop_ro("has_ended", &Work::has_ended)
      .def_prop_ro("error", [](const Work& w) {
    return text_of(w.has_ended() ? w.error() : std::string());
  }).def_prop_ro("source", [](const Work& w) { return w.has_ended() ? w.source : -1; });
  nb::class_<Group>(m, "CollectiveGroup")
      .def("__init__", &make, nb::keep_alive<1, 2>())
      .def("reserve", &reserve)
      .def("narrow", &Group::narrow, nb::call_guard<GilRelease>())
      .def("set_params",
           [](Group& g, std::pair<std::uint64_t, std::uint64_t> key, const proto::RtrAttributes& receiving,
              const proto::RtsAttributes& sending) { g.set_params({{key.first, key.second}, receiving, sending}); })
      .def("set_peer", &set_peer, nb::arg("peer"), nb::arg("places"), nb::arg("kept"), nb::arg("mpr"),
           nb::arg("max_wimm"), nb::arg("paths").none(), nb::arg("denied"), nb::arg("is_neighbour"))
      .def("connect_now",
           [](Group& g, std::uint32_t channel, std::uint32_t peer, double timeout_s) {
    return g.meet(channel, peer, Duration{static_cast<std::int64_t>(timeout_s * 1e12)});
  }, nb::arg("channel"), nb::arg("peer"), nb::arg("timeout_s") = 0.0, nb::call_guard<GilRelease>())
      .def("domain", &Group::domain)
      .def("pairs", &Group::pairs, nb::call_guard<GilRelease>())
      .def_prop_ro("channels", &Group::channels)
      .def("start", &Group::start, nb::arg("unit"), nb::arg("side_by_side") = 1)
      .def("stop", &Group::stop, nb::call_guard<GilRelease>())
      .def("force", [](Group& g, const std::optional<std::string>& name) { g.force(algorithm_of(name)); },
           nb::arg("algorithm").none())
      .def("issue", &issue)
      .def("send",
           [](Group& g, std::uint64_t address, std::uint64_t bytes, std::uint8_t dtype, std::uint32_t to,
              std::uint32_t tag, double timeout_s) {
    return g.send(part_of(address, bytes), static_cast<DType>(dtype), to, tag, timeout_s);
  },
           nb::call_guard<GilRelease>())
      .def("receive",
           [](Group& g, std::uint64_t address, std::uint64_t bytes, std::uint8_t dtype, std::int32_t source,
              std::uint32_t tag, double timeout_s) {
    return g.receive(part_of(address, bytes), static_cast<DType>(dtype), source, tag, timeout_s);
  },
           nb::call_guard<GilRelease>())
      .def("wait", &wait)
      .def("abort", &Group::abort, nb::call_guard<GilRelease>())
      .def("close", [](Group& g, double linger_s) { g.close(Duration{static_cast<std::int64_t>(linger_s * 1e12)}); },
           nb::call_guard<GilRelease>())
      .def_prop_ro("error", [](Group& g) {
    return text_of(g.error());
  }).def("stats", [](Group& g) {
    const GroupStats stats = g.stats();
    nb::dict d;
#define X(name) d[#name] = stats.name;
    SOFTMRC_COLLECTIVE_COUNTERS(X)
#undef X
    return d;
  });
  m.def("combine", &combine);
  m.def("collective_times", &collective_times);
  m.def("grid_columns", &grid_columns, nb::arg("ranks"), nb::arg("bytes"));
}

}  // namespace softmrc::python
