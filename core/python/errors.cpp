// Errors of the core as Python exceptions, and Python's memory as buffers. Every extension has a copy of this.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <charconv>
#include <cmath>

#include "base/check.h"
#include "host/connector.h"
#include "host/host_error.h"
#include "python/bind.h"
#include "udp/device_error.h"

namespace nb = nanobind;

namespace softmrc::python {

namespace {

void set_config_error(const std::string& field, const nb::handle value, const std::string& problem,
                      const std::string& hint = "") {
  const nb::object type = hang_if_finalizing(
      [] { return nb::object(nb::module_::import_("softmrc.errors").attr("ConfigError")); });
  const nb::object error = hang_if_finalizing([&] { return type(field, value, problem, hint); });
  PyErr_SetObject(type.ptr(), error.ptr());
}

// The value as a number, where it is one.
void set_config_error(const proto::Error& refused) {
  const std::string& text = refused.value;
  const char* const end = text.data() + text.size();
  nb::object value = nb::str(text.data(), text.size());
  std::int64_t whole = 0;
  std::uint64_t large = 0;
  double number = 0;
  if (const auto read = std::from_chars(text.data(), end, whole); read.ec == std::errc() && read.ptr == end)
    value = nb::int_(whole);
  else if (const auto more = std::from_chars(text.data(), end, large); more.ec == std::errc() && more.ptr == end)
    value = nb::int_(large);
  else if (const auto any = std::from_chars(text.data(), end, number);
           any.ec == std::errc() && any.ptr == end && std::isfinite(number))
    value = nb::float_(number);
  set_config_error(refused.field, value, "must be " + refused.expected);
}

}  // namespace

void register_exceptions() {
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const softmrc::CheckFailure& failure) {
      PyErr_SetString(nb::module_::import_("softmrc.errors").attr("InternalError").ptr(), failure.what());
    } catch (const softmrc::host::HandshakeRefused& refusal) {
      const nb::object type = nb::module_::import_("softmrc.errors").attr("HandshakeError");
      const nb::object error = type(refusal.what(), refusal.message_to_peer, refusal.is_busy);
      PyErr_SetObject(type.ptr(), error.ptr());
    } catch (const softmrc::host::PeerClosed& failure) {
      const nb::object type = nb::module_::import_("softmrc.errors").attr("HandshakeError");
      const nb::object error = type(failure.what());
      PyErr_SetObject(type.ptr(), error.ptr());
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

void raise_config_error(const std::string& field, nb::handle value, const std::string& problem,
                        const std::string& hint) {
  set_config_error(field, value, problem, hint);
  throw nb::python_error();
}

void raise_if(const proto::MaybeError& verdict) {
  if (!verdict) return;
  if (verdict->kind == proto::Error::Kind::config) {
    set_config_error(*verdict);
  } else {
    const nb::object errors = hang_if_finalizing([] { return nb::object(nb::module_::import_("softmrc.errors")); });
    const std::string text = host::to_string(*verdict);
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
