// The machine underneath refused something that was asked of it while a device was being set up. Once a device runs,
// what the system says about a single packet is a counter, never this.
#pragma once

#include <cerrno>
#include <stdexcept>
#include <string>

namespace softmrc::udp {

struct DeviceFailure : std::runtime_error {
  DeviceFailure(int error_number, const std::string& what) : std::runtime_error(what), code(error_number) {}
  int code;
};

[[noreturn]] void fail_with_errno(const std::string& what);

// Whether the system lacked something that it may have again in a moment. Nothing is to be concluded from such an answer,
// and nothing given up for good.
inline bool is_shortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM || error == EAGAIN || error == EINTR;
}

}  // namespace softmrc::udp
