// How what goes wrong in the core reaches Python, and Python's memory the core. Every extension of ours has a copy.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "base/check.h"
#include "bind/bind.h"
#include "udp/failure.h"

namespace nb = nanobind;

namespace softmrc::bind {

void translate_errors() {
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
}

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
