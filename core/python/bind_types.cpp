#include "python/bind.h"

namespace nb = nanobind;

namespace softmrc::python {

namespace {

// A class derived from `base` whose instances are laid out as those of `base`, so that these can be made instances of
// it
// (`__class__`). What a class statement makes always takes part in garbage collection, and is laid out otherwise.
nb::object lookalike(nb::handle base, const char* name) {
  PyType_Slot slots[] = {{0, nullptr}};
  PyType_Spec spec{name, 0, 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
  PyObject* type = PyType_FromSpecWithBases(&spec, nb::make_tuple(base).ptr());
  if (!type) throw nb::python_error();
  return nb::steal(type);
}

}  // namespace

void bind_types(nb::module_& m) { m.def("lookalike", &lookalike, nb::arg("base"), nb::arg("name")); }

}  // namespace softmrc::python
