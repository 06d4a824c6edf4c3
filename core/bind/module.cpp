#include "bind/bind.h"

NB_MODULE(_core, m) {
  m.doc() = "The native core of SoftMRC.";
  nanobind::module_ wire = m.def_submodule("wire");
  softmrc::bind::bind_wire(wire);
}
