// The only folder that includes nanobind. Each function below binds one folder of the core.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <string>

#include "collectives/types.h"
#include "proto/config.h"

namespace softmrc::python {

void bind_wire(nanobind::module_& m);
void bind_paths(nanobind::module_& m);    // entropy values and SRv6, in the same module as bind_wire
void bind_capture(nanobind::module_& m);  // pcapng, likewise
void bind_config(nanobind::module_& m);
void bind_endpoint(nanobind::module_& m);
void bind_mesh(nanobind::module_& m);
void bind_ranks(nanobind::module_& m);
void bind_network(nanobind::module_& m);
void bind_device(nanobind::module_& m);
void bind_connection(nanobind::module_& m);  // after bind_device
void bind_handshake(nanobind::module_& m);   // likewise
void bind_collectives(nanobind::module_& m);
void bind_seal(nanobind::module_& m);   // before bind_device
void bind_types(nanobind::module_& m);  // Python classes that Python cannot make

// Runs what may lose the GIL. A daemon thread that wants it back when the interpreter is gone is ended by CPython
// (before 3.14) as pthread_exit does it: its stack is unwound, through destructors and nanobind's `catch (...)`, and
// the process aborts. Such a thread stays here for ever instead, which is also what CPython does from 3.14 on. It is
// known by having no exception: to catch abi::__forced_unwind by reference would bind that to nothing, which UBSan
// objects to.
template <typename F>
auto hang_if_finalizing(F f) {
  try {
    return f();
  } catch (...) {
    if (std::current_exception()) throw;
    for (;;) pause();
  }
}

// Lets go of the GIL for as long as this lives.
class GilRelease {
 public:
  GilRelease() : state_(PyEval_SaveThread()) {}
  ~GilRelease() {
    hang_if_finalizing([this] { PyEval_RestoreThread(state_); });
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* state_;
};

// Waits without the GIL: `wait(Duration)` until it returns true, or the time is up. In slices, since Python's handlers
// of signals (Ctrl-C) run only where the GIL is held.
template <typename Wait>
bool wait_in_slices(double timeout_s, Wait wait) {
  constexpr double slice_s = 0.2;
  for (double left = timeout_s;; left -= slice_s) {
    {
      const GilRelease release;
      if (wait(Duration{static_cast<std::int64_t>(std::clamp(left, 0.0, slice_s) * 1e12)})) return true;
    }
    if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
    if (!(left > slice_s)) return false;
  }
}

// Translates C++ exceptions into those of softmrc.errors, in the extension that calls it.
void register_exceptions();

// Raises ConfigError for a value that is wrong, UsageError for a call at the wrong time.
void raise_if(const proto::MaybeError& verdict);

[[noreturn]] void raise_config_error(const std::string& field, nanobind::handle value, const std::string& problem,
                                     const std::string& hint = "");

// By its name; none for none.
std::optional<collectives::Algorithm> algorithm_of(const std::optional<std::string>& name);

// Durations cross the boundary as microseconds.
template <typename Class, typename Struct>
void def_us(Class& c, const char* name, Duration Struct::* member, const char* meaning = "") {
  c.def_prop_rw(name, [member](const Struct& s) {
    return static_cast<double>((s.*member).ps) / 1e6;
  }, [member](Struct& s, double us) { s.*member = Duration{static_cast<std::int64_t>(us * 1e6 + 0.5)}; }, meaning);
}

// A Python object's memory, held by the buffer protocol for as long as this lives.
class Buffer {
 public:
  explicit Buffer(nanobind::object owner, bool writable);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::uint8_t* data() const { return static_cast<std::uint8_t*>(view_.buf); }
  std::size_t size() const { return static_cast<std::size_t>(view_.len); }

 private:
  Py_buffer view_{};
};

}  // namespace softmrc::python
