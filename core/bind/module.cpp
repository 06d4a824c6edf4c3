#include <nanobind/nanobind.h>

#include "bind/bind.h"

namespace nb = nanobind;

NB_MODULE(_core, m) {
  using namespace softmrc::bind;
  m.doc() = "The native core of SoftMRC.";
  translate_errors();
  m.def("expect_leaks", [] { nb::set_leak_warnings(false); });  // in forked children, which leak on purpose
  nb::module_ wire = m.def_submodule("wire");
  bind_wire(wire);
  bind_config(m);
  bind_endpoint(m);
  bind_mesh(m);
  bind_ranks(m);
  bind_network(m);
  bind_seal(m);
  bind_device(m);
  bind_collectives(m);
  bind_types(m);
}
