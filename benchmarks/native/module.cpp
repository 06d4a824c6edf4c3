// softmrc_bench._yardstick: what only measurements and tests need of native code. Nothing that is imported to be used
// imports it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "allocations.h"
#include "python/bind.h"
#include "sockets.h"
#include "throughput_series.h"

namespace nb = nanobind;
using namespace softmrc;

NB_MODULE(_yardstick, m) {
  m.doc() = "What SoftMRC is measured with.";
  m.def("watch_allocations", [](const std::string& path) { return benchmarks::watch_allocations(path.c_str()); },
        nb::arg("path"),
        "Count what the library at this path allocates from now on; returns how many of its references were replaced.");
  m.def("allocations", [] {
    const benchmarks::AllocationCount found = benchmarks::allocations();
    return nb::make_tuple(found.count, found.bytes);
  }, "How often the watched libraries have allocated so far, and how many bytes they hold more than when it began.");
  m.def("send", &benchmarks::send, nb::call_guard<python::GilRelease>(), nb::arg("fd"), nb::arg("message_bytes"),
        nb::arg("seconds"));
  m.def("receive", &benchmarks::receive, nb::call_guard<python::GilRelease>(), nb::arg("fd"), nb::arg("message_bytes"),
        nb::arg("seconds"));
  m.def("flood", [](const std::vector<int>& fds, const std::vector<nb::bytes>& payloads, double per_s, double seconds) {
    std::vector<std::vector<std::uint8_t>> copies;
    for (const nb::bytes& p : payloads)
      copies.emplace_back(reinterpret_cast<const std::uint8_t*>(p.c_str()),
                          reinterpret_cast<const std::uint8_t*>(p.c_str()) + p.size());
    python::GilRelease release;
    benchmarks::flood(fds, copies, per_s, seconds);
  }, nb::arg("fds"), nb::arg("payloads"), nb::arg("per_s"), nb::arg("seconds"));
  // A device is bound by softmrc._core: both extensions know it as the same type.
  nb::class_<benchmarks::ThroughputSeries>(m, "Series",
                                           "Payload bytes of one queue pair that were placed in each span of time.")
      .def("__init__",
           [](benchmarks::ThroughputSeries* self, nb::object device, std::uint32_t qpn, double bin_us,
              std::uint32_t bins) {
    new (self) benchmarks::ThroughputSeries(nb::cast<udp::Device&>(device), qpn,
                                            Duration{static_cast<std::int64_t>(bin_us * 1e6)}, bins);
  },
           nb::keep_alive<1, 2>(), nb::arg("device"), nb::arg("qpn"), nb::arg("bin_us"), nb::arg("bins"))
      .def_prop_ro("bins", &benchmarks::ThroughputSeries::bins)
      .def_prop_ro("started_ns", &benchmarks::ThroughputSeries::started_ns);
}
