#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "base/check.h"
#include "bind/bind.h"
#include "udp/failure.h"

namespace nb = nanobind;

namespace softmrc::bind {

void raise_if(const proto::Verdict& verdict) {
  if (!verdict) return;
  const nb::object errors = stay_if_ended([] { return nb::object(nb::module_::import_("softmrc.errors")); });
  if (verdict->kind == proto::Problem::Kind::config) {
    const nb::object type = errors.attr("ConfigError");
    const nb::object error = stay_if_ended([&] { return type(verdict->field, verdict->value, verdict->allowed); });
    PyErr_SetObject(type.ptr(), error.ptr());
  } else {
    const std::string text = verdict->field + " " + verdict->value + ": expected " + verdict->allowed;
    PyErr_SetString(errors.attr("UsageError").ptr(), text.c_str());
  }
  throw nb::python_error();
}

Buffer::Buffer(nb::object owner, bool writable) {
  const int flags = PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(owner.ptr(), &view_, flags) != 0) throw nb::python_error();
}

Buffer::~Buffer() { PyBuffer_Release(&view_); }

}  // namespace softmrc::bind

NB_MODULE(_core, m) {
  using namespace softmrc::bind;
  m.doc() = "The native core of SoftMRC.";
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const softmrc::CheckFailure& failure) {
      PyErr_SetString(nb::module_::import_("softmrc.errors").attr("InternalError").ptr(), failure.what());
    } catch (const softmrc::udp::DeviceFailure& failure) {
      const nb::object type = nb::module_::import_("softmrc.errors").attr("DeviceError");
      const nb::object error = type(failure.code, failure.what());
      PyErr_SetObject(type.ptr(), error.ptr());
    }
  });
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
  nb::module_ parts = m.def_submodule("parts");
  bind_parts(parts);
  bind_face(parts);
  bind_sim_parts(parts);
  bind_seal_parts(parts);
  bind_types(m);
}
