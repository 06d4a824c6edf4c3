#include <nanobind/nanobind.h>

#include "python/bind.h"

namespace nb = nanobind;

NB_MODULE(_core, m) {
  using namespace softmrc::python;
  m.doc() = "The native core of SoftMRC.";
  register_exceptions();
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
  bind_connection(m);
  bind_handshake(m);
  bind_collectives(m);
  bind_types(m);
}
