// The system refused something while a device was being set up. Once a device runs,
// what the system says about a single packet is a counter, never this.
#pragma once

#include <cerrno>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

namespace softmrc::udp {

struct DeviceError : std::runtime_error {
  DeviceError(int error_number, const std::string& what) : std::runtime_error(what), code(error_number) {}
  int code;
};

[[noreturn]] void fail_with_errno(const std::string& what);

// Whether the system lacked something that it may have again in a moment. Nothing is to be concluded from such an
// answer, and nothing given up for good.
inline bool is_transient(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM || error == EAGAIN || error == EINTR;
}

// The same of what was thrown: a thread that did not start and memory that was not there come from the standard
// library.
inline bool is_transient(const std::exception& error) {
  if (const auto* const failure = dynamic_cast<const DeviceError*>(&error)) return is_transient(failure->code);
  if (const auto* const refused = dynamic_cast<const std::system_error*>(&error))
    return is_transient(refused->code().value());
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
}

}  // namespace softmrc::udp
