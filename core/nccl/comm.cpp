// What both ends of a connection have in common: queue pairs, failures, memory that comes and goes.
#include "nccl/comm.h"

#include <bit>

namespace softmrc::nccl {
namespace {

// A peer that something is awaited of, and that has sent nothing for so long, is probed.
constexpr Duration probe_after = seconds(1);
constexpr std::uint64_t probe_id = ~std::uint64_t{0};

// Those that are up on this side; the first few by number.
std::string describe_silence(std::uint32_t planes) {
  constexpr int max_named = 3;
  const int count = std::popcount(planes), named = count > max_named ? max_named : count;
  if (count == 0) return "no plane of this side is up";
  std::string text = count == 1 ? "plane" : "planes";
  for (int i = 0; i < named; ++i, planes &= planes - 1)
    text += (i ? ", " : " ") + std::to_string(std::countr_zero(planes));
  if (count > named) text += " and " + std::to_string(count - named) + " more";
  return "nothing came back over " + text;
}

std::string reason_of(proto::CompletionStatus status, std::uint32_t planes) {
  using enum proto::CompletionStatus;
  switch (status) {
    case retry_exceeded:
      return "stopped answering (retry_exponential in SOFTMRC_CONFIG: how long silence is borne): " +
             describe_silence(planes);
    case remote_access: return "refused a write: its memory is no longer registered";
    case remote_invalid: return "could not make sense of a write";
    case remote_operation: return "had no receive posted";
    case peer_error:
      return "closed or broke off the connection; if something went wrong there, its own last error says what";
    case local_protocol: return "wrote where it may not";
    case success:
    case flushed: break;
  }
  return "lost its connection";
}

}  // namespace

Comm::Comm(std::shared_ptr<PluginDevice> device)
    : device_(std::move(device)), node_(device_->node()), domain_(node_.device().create_domain()) {
  for (std::uint32_t i = 0; i < slots; ++i) requests_[i] = {this, i};
  for (std::uint32_t i = 0; i < max_parts; ++i) {
    error_orders_[i].comm = this;
    error_orders_[i].end = i;
    error_orders_[i].is_error = true;
  }
}

Comm::~Comm() {
  for (MemoryHandle* memory : memories_) delete memory;
}

// Set-up -----------------------------------------------------------------------------------------------------------

void Comm::create_qps(std::size_t count, std::uint32_t home) {
  const std::uint32_t lanes = device_->lanes();
  for (std::uint32_t i = 0; i < std::min<std::size_t>({count, lanes, max_parts}); ++i) {
    qps_.push_back(node_.open((home + i) % lanes, domain_));
    SubmitQueue& submit_queue = device_->submit_queue(qps_[i].lane);
    submit_queue.lane().with_engine([&](proto::Endpoint&, Time) {
      submit_queue.add(qps_[i].qpn, *this, i);
      return 0;
    });
  }
}

void Comm::connect_qps(const host::Offer& theirs, const host::Handshake& handshake) {
  node_.check(theirs);
  const std::vector<udp::PeerPlane>& planes = theirs.qps[0].planes;
  peer_ = udp::text_of(planes[0].address);
  if (planes.size() > 1) peer_ += " (and " + host::counted(planes.size() - 1, "more plane") + ")";
  for (std::size_t i = 0; i < qps_.size(); ++i)
    node_.connect(qps_[i], theirs, i, receives_posted, handshake.exporter(),
                  handshake.role() == host::Handshake::Role::connector);
  last_heard_ps_ = node_.device().clock().now().ps;
}

void Comm::close() {
  if (is_closed_) return;
  is_closed_ = true;
  mark(Result::internal_error, "the connection is closed");
  std::uint64_t sent = 0, again = 0, left = 0, trusted = 0;
  for (const host::LocalQp& end : qps_) {
    SubmitQueue& submit_queue = device_->submit_queue(end.lane);
    submit_queue.lane().with_engine([&](proto::Endpoint&, Time) {
      submit_queue.remove(end.qpn);
      return 0;
    });
  }
  for (const host::LocalQp& end : qps_) {
    SubmitQueue& submit_queue = device_->submit_queue(end.lane);
    submit_queue.lane().with_engine([&](proto::Endpoint& engine, Time now) {
      submit_queue.drain(engine, now);
      if (const proto::QueuePair* pair = engine.qp(end.qpn)) {
        sent += pair->stats().packets_sent;
        again += pair->stats().packets_retransmitted;
        left += pair->stats().evs_demoted;
        trusted += pair->stats().evs_revived;
      }
      return 0;
    });
  }
  for (host::LocalQp& end : qps_) node_.close(end);
  if (last_heard_ps_ != 0)  // it had come about
    device_->logger().info(log_net, "connection with " + peer_ + " over: " + std::to_string(sent) +
                                        " data packets sent, " + std::to_string(again) + " of them again; paths left " +
                                        std::to_string(left) + " times, trusted again " + std::to_string(trusted) +
                                        " times");
  for (const MemoryHandle* memory : memories_)
    if (memory->is_offered) node_.device().remove_region(memory->rkey);
}

// Memory -----------------------------------------------------------------------------------------------------------

MemoryHandle* Comm::keep(std::unique_ptr<MemoryHandle> memory) {
  const std::lock_guard lock(mutex_);
  memories_.insert(memory.get());
  return memory.release();
}

void Comm::deregister(MemoryHandle* memory) {
  {
    const std::lock_guard lock(mutex_);
    if (memories_.erase(memory) == 0)
      throw host::HostError("memory was deregistered that is not registered with this comm");
  }
  const std::unique_ptr<MemoryHandle> taken(memory);
  if (uses(*taken)) set_all_to_error();
  if (taken->is_offered) node_.device().remove_region(taken->rkey);
}

// First no lane begins anything, then what has begun is dropped.
void Comm::set_all_to_error() {
  mark(Result::internal_error, "memory was deregistered while requests were under way");
  for (const host::LocalQp& end : qps_)
    node_.device().lane_of(end.qpn).with_engine_and_send(
        [&](proto::Endpoint& engine, Time now) { return engine.modify_error(now, end.qpn); });
}

// Failures ---------------------------------------------------------------------------------------------------------

// The first one counts.
bool Comm::mark(Result result, const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (has_failed()) return false;
  error_text_ = why;
  failure_.store(result, std::memory_order_release);
  return true;
}

void Comm::fail(Result result, const std::string& why) {
  if (!mark(result, why)) return;
  for (std::size_t i = 0; i < qps_.size(); ++i) submit(error_orders_[i]);
}

// Who logs may take its time, and lanes want the mutex.
Result Comm::report() {
  const Result failure = failure_.load(std::memory_order_acquire);
  if (is_logged_.exchange(true)) return failure;
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    text = error_text_;
  }
  device_->logger().warn(text);
  return failure;
}

// The lane ---------------------------------------------------------------------------------------------------------

void Comm::post(proto::Endpoint& engine, Time now, SendOrder& order) {
  if (order.is_error) return void(engine.modify_error(now, qps_[order.end].qpn));
  if (has_failed()) return;
  if (engine.post_write(now, qps_[order.end].qpn, order.request) != proto::PostStatus::ok)
    fail(Result::remote_error, peer_ + " lost its connection");
}

void Comm::on_completion(proto::Endpoint& engine, Time now, std::uint32_t end, const proto::Completion& c) {
  if (c.status != proto::CompletionStatus::success) {
    if (c.kind != proto::CompletionKind::receive_imm || c.status != proto::CompletionStatus::flushed)
      fail(Result::remote_error, "peer " + peer_ + " " + reason_of(c.status, engine.up_ports()));
    return;
  }
  last_heard_ps_.store(now.ps, std::memory_order_relaxed);
  if (c.kind == proto::CompletionKind::receive_imm) {
    engine.post_receive(c.qpn, 0);
    if (!has_failed()) on_message(end, c.imm, c.length);
  } else if (c.wr_id == probe_id) {
    is_probing_ = false;
  } else {
    if (const proto::QueuePair* pair = engine.qp(c.qpn))
      resent_[end].store(pair->stats().packets_retransmitted, std::memory_order_relaxed);
    on_written(c.wr_id);
  }
}

std::uint64_t Comm::resent() const {
  std::uint64_t sum = 0;
  for (const auto& of_end : resent_) sum += of_end.load(std::memory_order_relaxed);
  return sum;
}

// A receiver sends nothing, and would not notice that its peer is gone: so it probes, with a message without bytes.
void Comm::check_peer(proto::Endpoint& engine, Time now, std::uint32_t end) {
  if (end != 0 || is_probing_ || has_failed() || !is_waiting()) return;
  if (now - Time{last_heard_ps_.load(std::memory_order_relaxed)} < probe_after) return;
  proto::WorkRequest probe;
  probe.wr_id = probe_id;
  is_probing_ = engine.post_write(now, qps_[0].qpn, probe) == proto::PostStatus::ok;
}

}  // namespace softmrc::nccl
