// Errors of the core as Python exceptions, and Python's memory as buffers. Every extension has a copy of this.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cmath>
#include <cstdlib>

#include "base/check.h"
#include "host/host_error.h"
#include "python/bind.h"
#include "udp/device_error.h"

namespace nb = nanobind;

namespace softmrc::python {

namespace {

void set_config_error(const std::string& field, const nb::handle value, const std::string& allowed) {
  const nb::object type = hang_if_finalizing(
      [] { return nb::object(nb::module_::import_("softmrc.errors").attr("ConfigError")); });
  const nb::object error = hang_if_finalizing([&] { return type(field, value, allowed); });
  PyErr_SetObject(type.ptr(), error.ptr());
}

// The value as a number, where it is one.
void set_config_error(const proto::Error& refused) {
  const std::string& text = refused.value;
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  nb::object value = nb::str(text.c_str());
  if (!text.empty() && text.find_first_not_of("-0123456789") == text.npos) value = nb::int_(value);
  else if (!text.empty() && !*end && std::isfinite(number)) value = nb::float_(number);
  set_config_error(refused.field, value, refused.allowed);
}

}  // namespace

void register_exceptions() {
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const softmrc::CheckFailure& failure) {
      PyErr_SetString(nb::module_::import_("softmrc.errors").attr("InternalError").ptr(), failure.what());
    } catch (const softmrc::host::HostError& failure) {
      if (failure.refused) set_config_error(*failure.refused);
      else PyErr_SetString(nb::module_::import_("softmrc.errors").attr("DeviceError").ptr(), failure.what());
    } catch (const softmrc::udp::DeviceError& failure) {
      const nb::object type = nb::module_::import_("softmrc.errors").attr("DeviceError");
      const nb::object error = type(failure.code, failure.what());
      PyErr_SetObject(type.ptr(), error.ptr());
    }
  });
}

void raise_config_error(const std::string& field, nb::handle value, const std::string& allowed) {
  set_config_error(field, value, allowed);
  throw nb::python_error();
}

void raise_if(const proto::MaybeError& verdict) {
  if (!verdict) return;
  if (verdict->kind == proto::Error::Kind::config) {
    set_config_error(*verdict);
  } else {
    const nb::object errors = hang_if_finalizing([] { return nb::object(nb::module_::import_("softmrc.errors")); });
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
