// Drives one endpoint for those that live on it, under a clock that is made up. It has no loop: whatever
// moves the clock calls `progress` after every batch that came in, and when it is due.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "proto/driver.h"
#include "proto/endpoint.h"
#include "proto/qp_factory.h"

namespace softmrc::sim {

class SimDriver final : public proto::Driver {
 public:
  struct Context {
    virtual ~Context() = default;
    virtual Time now() const = 0;
    // The endpoint of this number was given something to send.
    virtual void on_posted(std::uint32_t number) = 0;
    // Time passes, for everybody, until something is over or this much has passed; whether it is over.
    virtual bool pass(const std::function<bool()>& is_over, Duration) { return is_over(); }
  };

  SimDriver(proto::Endpoint& engine, Context& clock, std::uint32_t number)
      : engine_(engine), clock_(clock), number_(number) {}

  void run(proto::FunctionRef function) override { function(engine_, clock_.now()); }
  void run_and_send(proto::FunctionRef function) override {
    function(engine_, clock_.now());
    send_pending();
  }
  void send_pending() override {
    if (!is_closed_) clock_.on_posted(number_);
  }
  bool wait_until(const std::function<bool()>& is_done, Duration timeout) override {
    return clock_.pass(is_done, timeout);
  }
  void request_progress() override {
    progress_requested_ = true;
    send_pending();
  }
  void add_progress_handler(proto::ProgressHandler* progress_handler) override {
    progress_handlers_.push_back(progress_handler);
  }
  void remove_progress_handler(proto::ProgressHandler* progress_handler) override {
    std::erase(progress_handlers_, progress_handler);
  }
  bool is_closed() const override { return is_closed_; }
  Time now() const override { return clock_.now(); }

  proto::QpFactory& qp_factory() { return qp_factory_; }
  // True when they have more to do at once.
  bool progress() {
    bool has_more = progress_requested_ = false;
    for (std::size_t i = 0; i < progress_handlers_.size(); ++i)
      has_more |= progress_handlers_[i]->progress(engine_, clock_.now());
    return has_more;
  }
  Time deadline() const {
    Time at = progress_requested_ ? Time::long_ago() : Time::never();
    for (const proto::ProgressHandler* progress_handler : progress_handlers_)
      at = std::min(at, progress_handler->deadline());
    return at;
  }
  // Its process is gone.
  void close() {
    is_closed_ = true;
    progress_handlers_.clear();
  }

 private:
  proto::Endpoint& engine_;
  Context& clock_;
  const std::uint32_t number_;
  proto::PlainQpFactory qp_factory_;
  std::vector<proto::ProgressHandler*> progress_handlers_;
  bool progress_requested_ = false;
  bool is_closed_ = false;
};

}  // namespace softmrc::sim
