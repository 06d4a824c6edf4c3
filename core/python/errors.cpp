// How what goes wrong in the core reaches Python, and Python's memory the core. Every extension of ours has a copy.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "base/check.h"
#include "python/bind.h"
#include "udp/device_error.h"

namespace nb = nanobind;

namespace softmrc::python {

void register_exceptions() {
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const softmrc::CheckFailure& failure) {
      PyErr_SetString(nb::module_::import_("softmrc.errors").attr("InternalError").ptr(), failure.what());
    } catch (const softmrc::udp::DeviceError& failure) {
      const nb::object type = nb::module_::import_("softmrc.errors").attr("DeviceError");
      const nb::object error = type(failure.code, failure.what());
      PyErr_SetObject(type.ptr(), error.ptr());
    }
  });
}

void raise_if(const proto::MaybeError& verdict) {
  if (!verdict) return;
  const nb::object errors = hang_if_finalizing([] { return nb::object(nb::module_::import_("softmrc.errors")); });
  if (verdict->kind == proto::Error::Kind::config) {
    const nb::object type = errors.attr("ConfigError");
    const nb::object error = hang_if_finalizing([&] { return type(verdict->field, verdict->value, verdict->allowed); });
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

}  // namespace softmrc::python
