// softmrc._yardstick: what only measurements and tests need of native code. Nothing that is imported to be used imports it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind/bind.h"
#include "yardstick/allocations.h"
#include "yardstick/sockets.h"

namespace nb = nanobind;
using namespace softmrc;

NB_MODULE(_yardstick, m) {
  m.doc() = "What SoftMRC is measured with.";
  m.def("watch_allocations", [](const std::string& path) { return yardstick::watch_allocations(path.c_str()); }, nb::arg("path"),
        "Count what the library at this path allocates from now on; returns how many of its references were replaced.");
  m.def("allocations", [] {
    const yardstick::Allocations found = yardstick::allocations();
    return nb::make_tuple(found.count, found.bytes);
  }, "How often the watched libraries have allocated so far, and how many bytes they hold more than when it began.");
  m.def("send", &yardstick::send, nb::call_guard<bind::WithoutGil>(), nb::arg("fd"), nb::arg("message_bytes"), nb::arg("seconds"));
  m.def("receive", &yardstick::receive, nb::call_guard<bind::WithoutGil>(), nb::arg("fd"), nb::arg("message_bytes"), nb::arg("seconds"));
  m.def("flood", [](const std::vector<int>& fds, const std::vector<nb::bytes>& payloads, double per_s, double seconds) {
    std::vector<std::vector<std::uint8_t>> copies;
    for (const nb::bytes& p : payloads)
      copies.emplace_back(reinterpret_cast<const std::uint8_t*>(p.c_str()), reinterpret_cast<const std::uint8_t*>(p.c_str()) + p.size());
    bind::WithoutGil release;
    yardstick::flood(fds, copies, per_s, seconds);
  }, nb::arg("fds"), nb::arg("payloads"), nb::arg("per_s"), nb::arg("seconds"));
}
