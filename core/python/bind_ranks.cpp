#include <nanobind/stl/string.h>

#include "python/bind.h"
#include "sim/ranks.h"

namespace nb = nanobind;

namespace softmrc::python {

using namespace sim;

namespace {

std::uint32_t checked(const Ranks& ranks, std::uint32_t rank) {
  if (rank >= ranks.size())
    raise_if(proto::Error{proto::Error::Kind::config, "rank", std::to_string(rank),
                          "below " + std::to_string(ranks.size())});
  return rank;
}

}  // namespace

void bind_ranks(nb::module_& m) {
  nb::class_<RanksConfig>(m, "RanksConfig")
      .def(nb::init<>())
      .def_rw("seed", &RanksConfig::seed)
      .def_rw("mtu", &RanksConfig::mtu)
      .def_rw("unit", &RanksConfig::unit)
      .def_rw("mpr", &RanksConfig::mpr)
      .def_rw("max_wimm", &RanksConfig::max_wimm)
      .def_rw("max_send_wr", &RanksConfig::max_send_wr)
      .def_rw("timeout", &RanksConfig::timeout)
      .def_rw("retry_linear", &RanksConfig::retry_linear)
      .def_rw("retry_exponential", &RanksConfig::retry_exponential);

  nb::class_<Ranks>(m, "Ranks")
      .def("__init__",
           [](Ranks* self, Mesh& mesh, const RanksConfig& config, const proto::EvProfile& evs,
              const proto::CcProfile& window) {
    raise_if(proto::validate(evs, mesh.side(0).config().ports));
    raise_if(proto::validate(window));
    new (self) Ranks(mesh, config, std::make_shared<proto::EvProfile>(evs), std::make_shared<proto::CcProfile>(window));
  },
           nb::keep_alive<1, 2>())
      .def("group", [](Ranks& r, std::uint32_t rank) -> collectives::Group& { return r.group(checked(r, rank)); },
           nb::rv_policy::reference_internal)
      .def("join", [](Ranks& r, std::uint32_t rank) { r.join(checked(r, rank)); })
      .def("lie", [](Ranks& r, std::uint32_t rank, std::uint32_t to, std::uint32_t after, std::uint32_t offset,
                     std::uint8_t flips) { r.tell({checked(r, rank), checked(r, to), after, offset, flips}); })
      .def("region_count", [](Ranks& r, std::uint32_t rank) { return r.engine(checked(r, rank)).regions(); })
      .def("reads_from", [](Ranks& r, std::uint32_t rank, const Buffer& b) {
    return r.engine(checked(r, rank)).reads_from(b.data(), b.data() + b.size());
  }).def_prop_ro("lies_told", &Ranks::lies_told);
}

}  // namespace softmrc::python
