// The always-on check: a broken promise of our own code stops the run, with the place and the promise in words.
// What the network or the caller did wrong is never a check; that is a counter, an event or a status.
#pragma once

#include <stdexcept>
#include <string>

namespace softmrc {

struct CheckFailure : std::logic_error {
  using std::logic_error::logic_error;
};

[[noreturn]] inline void check_failed(const char* file, int line, const char* promise) {
  throw CheckFailure(std::string(file) + ":" + std::to_string(line) + ": broken promise: " + promise);
}

}  // namespace softmrc

#define SOFTMRC_CHECK(promise)                               \
  do {                                                       \
    if (!(promise)) [[unlikely]]                             \
      ::softmrc::check_failed(__FILE__, __LINE__, #promise); \
  } while (false)
