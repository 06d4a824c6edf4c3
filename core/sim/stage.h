// Drives one endpoint for those that live on it, under a clock that is made up. It has no loop of its own: whoever moves the
// clock calls `attend` after every batch that came in, and when it is due.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "proto/driver.h"
#include "proto/endpoint.h"

namespace softmrc::sim {

class Stage final : public proto::Driver {
 public:
  struct Clock {
    virtual ~Clock() = default;
    virtual Time now() const = 0;
    // The endpoint of this number was given something to send.
    virtual void on_posted(std::uint32_t number) = 0;
    // Time passes, for everybody, until something is over or this much has passed; whether it is over.
    virtual bool pass(const std::function<bool()>& is_over, Duration) { return is_over(); }
  };

  Stage(proto::Endpoint& engine, Clock& clock, std::uint32_t number) : engine_(engine), clock_(clock), number_(number) {}

  void run(proto::Errand errand) override { errand(engine_, clock_.now()); }
  void run_and_send(proto::Errand errand) override {
    errand(engine_, clock_.now());
    send_owed();
  }
  void send_owed() override {
    if (!is_closed_) clock_.on_posted(number_);
  }
  bool wait_until(const std::function<bool()>& is_done, Duration timeout) override { return clock_.pass(is_done, timeout); }
  void nudge() override {
    is_nudged_ = true;
    send_owed();
  }
  proto::Verdict init(proto::Endpoint& engine, Time, std::uint32_t qpn, const proto::InitAttributes& attributes, bool) override {
    return engine.modify_init(qpn, attributes);
  }
  proto::Verdict connect(proto::Endpoint& engine, Time now, std::uint32_t qpn, const proto::RtrAttributes& attributes) override {
    return engine.modify_rtr(now, qpn, attributes);
  }
  void destroy(proto::Endpoint& engine, Time now, std::uint32_t qpn) override { engine.destroy_qp(now, qpn); }
  void add_attendant(proto::Attendant* attendant) override { attendants_.push_back(attendant); }
  void remove_attendant(proto::Attendant* attendant) override { std::erase(attendants_, attendant); }
  bool is_closed() const override { return is_closed_; }
  Time now() const override { return clock_.now(); }

  // True when they have more to do at once.
  bool attend() {
    bool has_more = is_nudged_ = false;
    for (std::size_t i = 0; i < attendants_.size(); ++i) has_more |= attendants_[i]->attend(engine_, clock_.now());
    return has_more;
  }
  Time deadline() const {
    Time at = is_nudged_ ? Time::long_ago() : Time::never();
    for (const proto::Attendant* attendant : attendants_) at = std::min(at, attendant->deadline());
    return at;
  }
  // Its process is gone.
  void close() {
    is_closed_ = true;
    attendants_.clear();
  }

 private:
  proto::Endpoint& engine_;
  Clock& clock_;
  const std::uint32_t number_;
  std::vector<proto::Attendant*> attendants_;
  bool is_nudged_ = false;
  bool is_closed_ = false;
};

}  // namespace softmrc::sim
