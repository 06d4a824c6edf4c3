#include "udp/completion_tracker.h"

#include <array>
#include <utility>

namespace softmrc::udp {
namespace {

constexpr std::uint64_t polls_every = 64;  // posts: or what is never waited for would pile up
constexpr std::size_t batch = 64;
constexpr std::size_t max_messages_taken = 256;  // taken before the caller asked for them

class Counted {
 public:
  explicit Counted(std::atomic<int>& count) : count_(count) { ++count_; }
  ~Counted() { --count_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  std::atomic<int>& count_;
};

}  // namespace

CompletionTracker::CompletionTracker(Lane& lane, std::uint32_t qpn, std::uint32_t send_cq, std::uint32_t recv_cq)
    : lane_(lane), qpn_(qpn), send_cq_(send_cq), recv_cq_(recv_cq) {
  lane_.with_engine([this](proto::Endpoint& engine, Time) { engine_ = &engine; });
}

proto::PostStatus CompletionTracker::post(const proto::WorkRequest& request) {
  return lane_.with_engine_and_send([&](proto::Endpoint& engine, Time now) {
    if (request.wr_id % polls_every == 0 && take_writes()) tell_waiters();
    const proto::PostStatus status = engine.post_write(now, qpn_, request);
    if (status == proto::PostStatus::ok) pending_.insert(request.wr_id);
    return status;
  });
}

bool CompletionTracker::wait_for_write(std::uint64_t number, Duration timeout) {
  const Counted waiting(waiters_);
  return lane_.wait_until([&] {
    take_writes();
    return !pending_.contains(number) || is_closed_ || lane_.is_closed() || !engine_->qp_state(qpn_);
  }, timeout);
}

CompletionTracker::RecvResult CompletionTracker::wait_for_message(Message& out, Duration timeout) {
  const Counted waiting(waiters_);
  auto found = RecvResult::timed_out;
  // A message that is there is this caller's from then on.
  lane_.wait_until([&] {
    if (found == RecvResult::timed_out && take_message(out)) found = RecvResult::message;
    if (found == RecvResult::timed_out && is_over()) found = RecvResult::none_will_come;
    return found != RecvResult::timed_out;
  }, timeout);
  return found;
}

bool CompletionTracker::take_message(Message& out) {
  take_messages();
  if (messages_.empty()) return false;
  out = messages_.front();
  messages_.pop_front();
  return true;
}

void CompletionTracker::put_back(const Message& message) {
  lane_.with_engine([&](proto::Endpoint&, Time) {
    messages_.push_front(message);
    lane_.set_readable(recv_cq_);
    tell_waiters();
  });
}

bool CompletionTracker::poll_writes() {
  return lane_.with_engine([&](proto::Endpoint&, Time) {
    if (take_writes()) tell_waiters();
    return lane_.clear_readable(send_cq_);
  });
}

bool CompletionTracker::poll_messages() {
  return lane_.with_engine([&](proto::Endpoint&, Time) {
    if (take_messages()) tell_waiters();
    return lane_.clear_readable(recv_cq_);
  });
}

bool CompletionTracker::has_arrival() {
  return lane_.with_engine([&](proto::Endpoint&, Time) {
    take_messages();
    return !messages_.empty() || is_over();
  });
}

bool CompletionTracker::is_pending(std::uint64_t number) {
  return lane_.with_engine([&](proto::Endpoint&, Time) { return pending_.contains(number); });
}

bool CompletionTracker::has_failed(std::uint64_t number) {
  return lane_.with_engine([&](proto::Endpoint&, Time) { return failed_.contains(number); });
}

std::optional<proto::CompletionStatus> CompletionTracker::first_failure() {
  return lane_.with_engine([&](proto::Endpoint&, Time) { return first_failure_; });
}

std::vector<std::uint64_t> CompletionTracker::take_ended() {
  return lane_.with_engine([&](proto::Endpoint&, Time) { return std::exchange(ended_, {}); });
}

void CompletionTracker::close() {
  lane_.with_engine([&](proto::Endpoint&, Time) {
    is_closed_ = true;
    lane_.set_readable(send_cq_);
    lane_.set_readable(recv_cq_);
    lane_.look_again();
  });
}

bool CompletionTracker::take_writes() {
  if (is_closed_) return false;  // the queue may be gone
  std::array<proto::Completion, batch> found;
  bool has_any = false;
  while (const std::size_t count = engine_->poll_completions(send_cq_, found)) {
    has_any = true;
    for (std::size_t i = 0; i < count; ++i) {
      const proto::Completion& completion = found[i];
      if (completion.status != proto::CompletionStatus::success) {
        failed_.emplace(completion.wr_id, completion.status);
        if (!first_failure_) first_failure_ = completion.status;
      }
      if (pending_.erase(completion.wr_id)) ended_.push_back(completion.wr_id);
    }
  }
  if (has_any) lane_.set_readable(send_cq_);
  return has_any;
}

// Each takes one receive: another is posted for it, which is refused once the queue pair is in error.
bool CompletionTracker::take_messages() {
  if (is_closed_ || !messages_.empty()) return false;
  std::array<proto::Completion, batch> found;
  bool has_any = false;
  while (messages_.size() < max_messages_taken) {
    const std::size_t count = engine_->poll_completions(recv_cq_, found);
    if (count == 0) break;
    has_any = true;
    for (std::size_t i = 0; i < count; ++i) {
      if (found[i].status != proto::CompletionStatus::success) continue;
      messages_.push_back({found[i].imm, found[i].length});
      engine_->post_receive(qpn_, 0);
    }
  }
  if (has_any) lane_.set_readable(recv_cq_);
  return has_any;
}

void CompletionTracker::tell_waiters() {
  if (waiters_ > 0) lane_.look_again();
}

bool CompletionTracker::is_over() const {
  const std::optional<proto::QpState> state = engine_->qp_state(qpn_);
  return is_closed_ || lane_.is_closed() || lane_.is_peer_gone(qpn_) || !state || *state == proto::QpState::error;
}

}  // namespace softmrc::udp
