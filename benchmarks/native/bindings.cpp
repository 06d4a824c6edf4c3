// softmrc_bench._native: what benchmarks and tests need of native code. It uses nothing of SoftMRC's own.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "allocations.h"
#include "sockets.h"

namespace nb = nanobind;
using namespace softmrc::benchmarks;

NB_MODULE(_native, m) {
  m.doc() = "Counts of a library's allocations, plain UDP, and floods.";
  m.def("watch_allocations", [](const std::string& path) { return watch_allocations(path.c_str()); }, nb::arg("path"),
        "Count what the library at this path allocates from now on; returns how many of its references were replaced.");
  m.def("allocations", [] {
    const AllocationCount found = allocations();
    return nb::make_tuple(found.count, found.bytes);
  }, "How often the watched libraries have allocated so far, and how many bytes they hold more than when it began.");
  m.def("send", &send, nb::call_guard<nb::gil_scoped_release>(), nb::arg("fd"), nb::arg("message_bytes"),
        nb::arg("seconds"), "Send messages without a pause for so long; returns the bytes that the kernel took.");
  m.def("receive", &receive, nb::call_guard<nb::gil_scoped_release>(), nb::arg("fd"), nb::arg("message_bytes"),
        nb::arg("seconds"), "Receive until nothing has come for 100 ms, or for so long; returns bytes per second.");
  m.def("flood",
        [](const std::vector<int>& fds, const std::vector<nb::bytes>& payloads, double per_s, double seconds) {
    std::vector<std::vector<std::uint8_t>> copies;
    for (const nb::bytes& p : payloads) {
      const auto* first = reinterpret_cast<const std::uint8_t*>(p.c_str());
      copies.emplace_back(first, first + p.size());
    }
    nb::gil_scoped_release release;
    flood(fds, copies, per_s, seconds);
  }, nb::arg("fds"), nb::arg("payloads"), nb::arg("per_s"), nb::arg("seconds"),
        "Send these payloads in turn, at a steady rate over all descriptors, for so long.");
}
