#include "collectives/group.h"

#include <algorithm>

#include "base/check.h"
#include "collectives/error_text.h"

namespace softmrc::collectives {
namespace {

// The first channel has a stripe of everything, and reports which ranks are missing. The others are for when it has
// nothing left to wait for.
constexpr Duration others_wait = milliseconds(1500);

}  // namespace

Group::Group(const std::vector<ChannelResources>& resources, RankInfo place, std::vector<proto::Domain> domains,
             std::uint64_t seed, std::shared_ptr<CompletionNotifier> notifier)
    : place_(place),
      domains_(std::move(domains)),
      directory_{place.rank, {}, std::vector<PeerInfo>(place.size)},
      notifier_(std::move(notifier)),
      work_queues_(resources.size()) {
  SOFTMRC_CHECK(!resources.empty() && resources.size() <= max_channels);
  ChannelOwner& owner = *this;
  for (const ChannelResources& one : resources)
    channels_.push_back(std::make_unique<Channel>(owner, channels(), one, place_, directory_, domains_, seed));
}

Group::~Group() { close(Duration{0}); }

std::vector<PeerEndpoint> Group::reserve() {
  std::vector<PeerEndpoint> ends;
  for (const auto& channel : channels_) ends.push_back(channel->reserve());
  return ends;
}

// Checked now, and not when it is connected.
proto::MaybeError Group::set_peer(std::uint32_t peer, PeerInfo member) {
  directory_.members[peer] = std::move(member);
  for (std::uint32_t channel = 0; channel < channels(); ++channel)
    for (const bool is_bulk : {false, true}) {
      if (auto v = validate(directory_.receiving(channel, peer, is_bulk, 0))) return v;
      if (auto v = validate(directory_.sending(channel, peer, is_bulk))) return v;
    }
  return std::nullopt;
}

void Group::connect(std::uint32_t channel, std::uint32_t peer, std::uint32_t message_qpn, std::uint32_t bulk_qpn,
                    std::uint32_t remote_rkey) {
  channels_[channel]->connect(peer, message_qpn, bulk_qpn, remote_rkey);
}

void Group::start(std::uint32_t unit, std::uint32_t side_by_side) {
  place_.unit = unit;
  place_.side_by_side = side_by_side;
  for (const auto& channel : channels_) channel->start();
}

bool Group::stop() {
  bool is_untouched = true;
  for (const auto& channel : channels_) is_untouched &= channel->stop();
  return is_untouched;
}

// Operations -------------------------------------------------------------------------------------------------------

std::shared_ptr<InflightOp> Group::prepare(const CollectiveCall& call, double timeout_s) {
  auto op = plan(call, place_);
  auto issued = std::make_shared<InflightOp>();
  issued->descriptor = op->descriptor;
  issued->ranges = std::move(op->ranges);
  issued->reductions = std::move(op->reductions);  // whose addresses stay
  issued->temporary = std::move(op->temporary);
  issued->timeout_s = timeout_s;
  issued->work = std::make_shared<Work>(notifier_);
  issued->stripes = cut_into_stripes(std::move(op), channels(), place_.unit);
  return issued;
}

std::shared_ptr<Work> Group::issue(const CollectiveCall& call, double timeout_s) {
  const std::shared_ptr<InflightOp> issued = prepare(call, timeout_s);
  const Time now = channels_[0]->driver().now();
  ChannelMask to_wake = 0;
  {
    const std::lock_guard guard(mutex_);
    if (is_refused(*issued->work)) return issued->work;
    issued->number = next_number_++;
    issued->deadline = deadline_of(now, timeout_s);
    for (std::size_t k = 0; k < issued->stripes.size(); ++k) {
      const auto& stripe = issued->stripes[k];
      if (!stripe) continue;
      stripe->number = issued->number;
      stripe->issued_at = now;
      stripe->deadline = issued->deadline + (k ? others_wait : Duration{0});
      stripe->timeout_s = timeout_s;
      issued->open.fetch_add(1, std::memory_order_relaxed);
    }
    const auto& outs = issued->stripes[0]->outs;
    ++operations_;
    operations_small_ += std::all_of(outs.begin(), outs.end(), [](const Outbound& out) { return out.is_eager; });
    operations_striped_ += issued->stripes.size() > 1;
    issued_.push_back(issued);
    to_wake = start_ready();
  }
  request_progress(to_wake & ~ChannelMask{1});
  channels_[0]->catch_up();
  return issued->work;
}

// In the order of issue, several at a time; one that shares memory with an earlier one waits for it.
bool Group::may_start(Queue::const_iterator at) const {
  std::size_t started = 0;
  for (auto other = issued_.begin(); other != at; ++other)
    if ((*at)->conflicts(**other) || ++started >= max_started) return false;
  return true;
}

// Queues what may start; the channels that it is for.
Group::ChannelMask Group::start_ready() {
  ChannelMask to_wake = 0;
  for (auto at = issued_.begin(); at != issued_.end() && !has_ended_; ++at) {
    InflightOp& issued = **at;
    if (issued.has_started) continue;
    if (!may_start(at)) break;
    issued.has_started = true;
    for (std::size_t k = 0; k < issued.stripes.size(); ++k) {
      if (!issued.stripes[k]) continue;
      issued.stripes[k]->whole = *at;
      work_queues_[k].work.operations.push_back(std::move(issued.stripes[k]));
      work_queues_[k].is_full.store(true, std::memory_order_release);
      to_wake |= ChannelMask{1} << k;
    }
    issued.stripes.clear();
  }
  watch_waiting();
  return to_wake;
}

void Group::watch_waiting() {
  Time first = Time::never();
  for (const auto& issued : issued_)
    if (!issued->has_started) first = std::min(first, issued->deadline);
  waits_until_ps_.store(first.ps, std::memory_order_relaxed);
}

std::string Group::overdue(Time now) {
  const std::lock_guard guard(mutex_);
  for (const auto& issued : issued_)
    if (!issued->has_started && issued->deadline <= now)
      return timeout_message(describe(issued->descriptor), place_.rank, issued->timeout_s,
                             "an earlier operation on the same memory has not ended");
  return {};
}

QueuedWork Group::pop_all(std::uint32_t channel) {
  QueuedWork queued;
  const std::lock_guard guard(mutex_);
  std::swap(queued, work_queues_[channel].work);
  work_queues_[channel].is_full.store(false, std::memory_order_release);
  return queued;
}

// The last stripe's end is the operation's. It is forgotten first: a caller that sees its end may issue, or close, at
// once.
void Group::on_ended(std::uint32_t channel, Operation& stripe, bool is_well) {
  const std::shared_ptr<InflightOp> issued = stripe.whole;
  if (!is_well) issued->has_failed.store(true, std::memory_order_relaxed);
  if (issued->open.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  ChannelMask to_wake = 0;
  std::string why;
  {
    const std::lock_guard guard(mutex_);
    issued_.remove(issued);
    to_wake = start_ready();
    why = ending_.why;
  }
  if (issued->has_failed.load(std::memory_order_relaxed)) issued->work->fail(why);
  else issued->work->succeed();
  // A thread that waits drives the first channel. Either it has seen the end, or its count is seen here.
  to_wake &= ~(ChannelMask{1} << channel);
  if (waiting_threads_.fetch_add(0, std::memory_order_acq_rel)) to_wake |= 1;
  request_progress(to_wake);
}

void Group::request_progress(ChannelMask channels) {
  for (std::size_t k = 0; k < channels_.size(); ++k)
    if (channels >> k & 1) channels_[k]->driver().request_progress();
}

bool Group::wait(const Work& work, Duration timeout) {
  if (work.has_ended()) return true;
  waiting_threads_.fetch_add(1, std::memory_order_acq_rel);
  channels_[0]->driver().wait_until([&work] { return work.has_ended(); }, timeout);
  waiting_threads_.fetch_sub(1, std::memory_order_acq_rel);
  return work.has_ended();
}

// Point to point ---------------------------------------------------------------------------------------------------

std::shared_ptr<Work> Group::send(Part from, DType dtype, std::uint32_t to, std::uint32_t tag, double timeout_s) {
  auto work = std::make_shared<Work>(notifier_);
  {
    const std::lock_guard guard(mutex_);
    if (is_refused(*work)) return work;
  }
  channels_[0]->send(from, dtype, to, tag, timeout_s, work);
  return work;
}

std::shared_ptr<Work> Group::receive(Part to, DType dtype, std::int32_t source, std::uint32_t tag, double timeout_s) {
  auto work = std::make_shared<Work>(notifier_);
  {
    const std::lock_guard guard(mutex_);
    if (is_refused(*work)) return work;
  }
  channels_[0]->receive(to, dtype, source, tag, timeout_s, work);
  return work;
}

// Ends -------------------------------------------------------------------------------------------------------------

bool Group::is_device_closed() const {
  return std::any_of(channels_.begin(), channels_.end(),
                     [](const auto& channel) { return channel->driver().is_closed(); });
}

// A device that is closed sends nothing: what is begun on it must not look as if it had gone well.
bool Group::is_refused(Work& work) {
  if (error_.empty() && is_device_closed()) error_ = "the device is closed";
  if (error_.empty() && is_closed_) error_ = closed_message;
  if (!error_.empty()) work.fail(error_);
  return !error_.empty();
}

GroupFailure Group::on_failure(std::uint32_t channel, const std::string& why, bool is_ours) {
  return end_all(why, is_ours, ChannelMask{1} << channel);
}

// What has started ends where its stripes are; the first error counts, whichever channel has it.
GroupFailure Group::end_all(const std::string& why, bool is_ours, ChannelMask but) {
  GroupFailure ending;
  Queue waiting;
  ChannelMask to_wake = 0;
  {
    const std::lock_guard guard(mutex_);
    if (!has_ended_) {
      has_ended_ = true;
      ending_ = {why, is_ours};
      if (error_.empty()) error_ = why;
      for (std::size_t k = 0; k < channels_.size(); ++k) {
        if (but >> k & 1) continue;
        work_queues_[k].work.ending = ending_;
        work_queues_[k].is_full.store(true, std::memory_order_release);
        to_wake |= ChannelMask{1} << k;
      }
      for (auto at = issued_.begin(); at != issued_.end();) {
        const auto next = std::next(at);
        if (!(*at)->has_started) waiting.splice(waiting.end(), issued_, at);
        at = next;
      }
      watch_waiting();
    }
    ending = ending_;
  }
  for (const auto& issued : waiting) issued->work->fail(ending.why);
  if (waiting_threads_.fetch_add(0, std::memory_order_acq_rel)) to_wake |= 1;
  request_progress(to_wake);
  return ending;
}

void Group::abort(const std::string& why) {
  end_all("rank " + std::to_string(place_.rank) + " aborted: " + why, true, 0);
  for (const auto& channel : channels_) channel->catch_up();
}

void Group::close(Duration linger) {
  bool is_busy = false;
  {
    const std::lock_guard guard(mutex_);
    if (is_closed_) return;
    is_closed_ = true;
    is_busy = !issued_.empty();
  }
  if (is_busy || channels_[0]->is_busy()) {
    end_all("rank " + std::to_string(place_.rank) + " left the group in the middle of an operation", true, 0);
    for (const auto& channel : channels_) channel->catch_up();
  }
  for (const auto& channel : channels_) channel->say_goodbye();
  const proto::Driver& clock = channels_[0]->driver();
  const Time until = clock.now() + linger;
  for (const auto& channel : channels_) channel->linger(until - clock.now());
  for (const auto& channel : channels_) channel->leave();
  const std::lock_guard guard(mutex_);
  if (error_.empty()) error_ = closed_message;
}

std::string Group::error() {
  const std::lock_guard guard(mutex_);
  return error_;
}

std::vector<std::pair<std::uint32_t, std::uint32_t>> Group::pairs(std::uint32_t peer) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> found;
  for (const auto& channel : channels_)
    if (const auto pair = channel->pair(peer)) found.push_back(*pair);
  return found;
}

GroupStats Group::stats() {
  GroupStats stats;
  {
    const std::lock_guard guard(mutex_);
    stats.operations = operations_;
    stats.operations_small = operations_small_;
    stats.operations_striped = operations_striped_;
  }
  for (const auto& channel : channels_) {
    const ChannelStats part = channel->stats();
#define X(name) stats.name += part.name;
    SOFTMRC_CHANNEL_COUNTERS(X)
#undef X
  }
  return stats;
}

}  // namespace softmrc::collectives
