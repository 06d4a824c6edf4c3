// Who drives an endpoint, as those see it that live on it: a lane with its sockets and thread, or a scheduler and a
// clock that is made up.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>

#include "base/time.h"

namespace softmrc::proto {

class Endpoint;

// Native code that lives on completions and gives the engine new work. It is called by the thread that drives, with the
// engine to itself, after every batch that came in.
class ProgressHandler {
 public:
  virtual ~ProgressHandler() = default;
  // True when it has more to do at once, whether or not anything comes in.
  virtual bool progress(Endpoint& engine, Time now) = 0;
  // When it wants to be called even if nothing happens.
  virtual Time deadline() const = 0;
};

// Something to do with the engine: a reference to a caller's function, for the length of the call that it is passed to.
class FunctionRef {
 public:
  template <typename F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef>)
  FunctionRef(F&& f)  // NOLINT: a function is one
      : what_(std::addressof(f)), call_([](const void* what, Endpoint& engine, Time now) {
          (*static_cast<std::remove_reference_t<F>*>(const_cast<void*>(what)))(engine, now);
        }) {}
  void operator()(Endpoint& engine, Time now) const { call_(what_, engine, now); }

 private:
  const void* what_;
  void (*call_)(const void*, Endpoint&, Time);
};

class Driver {
 public:
  virtual ~Driver() = default;
  // Does it while nothing else touches the engine. It must not wait for anything that a caller may hold.
  virtual void run(FunctionRef function) = 0;
  // The same for what gives the engine something to send, which then leaves soon.
  virtual void run_and_send(FunctionRef function) = 0;
  // What the engine has to send leaves before this returns.
  virtual void send_pending() = 0;
  // Waits, and drives, until `is_done`, which is called under the engine's lock. False when the time is up, when it is
  // closed, or where time does not pass by waiting.
  virtual bool wait_until(const std::function<bool()>& is_done, Duration timeout) = 0;
  // The thread that drives calls the progress handlers soon, and looks again at what it waits for. From any, whatever
  // that holds.
  virtual void request_progress() = 0;
  virtual void add_progress_handler(ProgressHandler* progress_handler) = 0;
  virtual void remove_progress_handler(ProgressHandler* progress_handler) = 0;
  // Nothing is sent or comes in any longer, and progress handlers are not called.
  virtual bool is_closed() const = 0;
  virtual Time now() const = 0;
};

}  // namespace softmrc::proto
