// Capture files, as bytes.
#include "python/bind.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "python/wire_values.h"
#include "wire/pcapng.h"

namespace softmrc::python {
namespace {

using namespace nb::literals;

// A file's text may be in any encoding; what is not UTF-8 is shown with replacement marks rather than refused.
nb::object text(const std::string& s) {
  return nb::steal(PyUnicode_DecodeUTF8(s.data(), static_cast<Py_ssize_t>(s.size()), "replace"));
}

// Holds on to the file's bytes, into which the reader points.
class CaptureReader {
 public:
  explicit CaptureReader(nb::bytes data) : data_(std::move(data)), reader_(view(data_)) {}

  std::optional<nb::tuple> next() {
    wire::CaptureRecord r;
    if (!reader_.next(r)) return std::nullopt;
    return nb::make_tuple(r.interface, r.time_ns, to_bytes(r.frame), r.original_size, text(r.comment));
  }
  nb::tuple interface(std::size_t i) const {
    const auto& one = reader_.interfaces().at(i);
    return nb::make_tuple(text(one.name), text(one.description), one.linktype);
  }
  std::size_t interfaces() const { return reader_.interfaces().size(); }
  const std::string& error() const { return reader_.error(); }

 private:
  nb::bytes data_;
  wire::PcapngReader reader_;
};

}  // namespace

void bind_capture(nanobind::module_& m) {
  m.attr("MRC_ON_ANY_PORT") = nb::str(wire::mrc_on_any_port.data(), wire::mrc_on_any_port.size());
  nb::class_<wire::PcapngWriter>(m, "PcapngWriter")
      .def("__init__",
           [](wire::PcapngWriter* self, const std::string& application) { new (self) wire::PcapngWriter(application); },
           "application"_a)
      .def("add_interface",
           [](wire::PcapngWriter& self, const std::string& name, const std::string& description,
              std::uint16_t linktype) { return self.add_interface(name, description, linktype); },
           "name"_a, "description"_a, "linktype"_a)
      .def("write",
           [](wire::PcapngWriter& self, std::uint32_t interface, std::uint64_t time_ns, const nb::bytes& frame,
              const std::string& comment, std::optional<std::uint32_t> original_size) {
    return self.write(interface, time_ns, view(frame), comment, original_size);
  },
           "interface"_a, "time_ns"_a, "frame"_a, "comment"_a, "original_size"_a.none())
      .def_prop_ro("interfaces", &wire::PcapngWriter::interfaces)
      .def_prop_ro("pending", [](const wire::PcapngWriter& self) {
    return self.bytes().size();
  }).def("take", [](wire::PcapngWriter& self) { return to_bytes(self.take()); });

  nb::class_<CaptureReader>(m, "PcapngReader")
      .def("__init__", [](CaptureReader* self, nb::bytes data) { new (self) CaptureReader(std::move(data)); }, "data"_a)
      .def("next", &CaptureReader::next)
      .def("interface", &CaptureReader::interface, "index"_a)
      .def_prop_ro("interfaces", &CaptureReader::interfaces)
      .def_prop_ro("error", &CaptureReader::error);
}

}  // namespace softmrc::python
