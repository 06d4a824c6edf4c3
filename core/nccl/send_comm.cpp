#include "nccl/comm.h"
#include "nccl/connect_layout.h"

namespace softmrc::nccl {
namespace {

constexpr std::size_t small_message = 16 << 10;  // goes by the home lane
constexpr std::size_t smallest_part = 128 << 10;

}  // namespace

SendComm::SendComm(std::shared_ptr<PluginDevice> device)
    : Comm(std::move(device)), ring_(std::make_unique<std::array<Grant, slots>>()) {
  for (Slot& slot : slots_)
    for (SendOrder& order : slot.orders) order.comm = this;
}

SendComm::~SendComm() {
  close();
  burst_tracker_.close(device_->bursts());
  if (ring_rkey_) node_.device().remove_region(ring_rkey_);
}

host::Bytes SendComm::offer() {
  create_qps(max_parts, device_->next_primary_lane(true));
  ring_rkey_ = node_.register_memory(ring_->data(), sizeof *ring_, domain_);
  return host::encode(node_.offer(qps_, encode_layout(ring_->data(), ring_rkey_)));
}

void SendComm::accept(std::span<const std::uint8_t> said, const host::Handshake& handshake) {
  const host::Offer theirs = host::decode_offer(said);
  const ConnectLayout shape = decode_layout(theirs.more);
  while (qps_.size() > theirs.qps.size()) {
    SubmitQueue& submit_queue = device_->submit_queue(qps_.back().lane);
    submit_queue.lane().with_engine([&](proto::Endpoint&, Time) {
      submit_queue.remove(qps_.back().qpn);
      return 0;
    });
    node_.close(qps_.back());
    qps_.pop_back();
  }
  eager_va_ = shape.va;
  eager_rkey_ = shape.rkey;
  connect_qps(theirs, handshake);
  burst_tracker_.set_peer(udp::text_of(theirs.qps[0].planes[0].address));
}

MemoryHandle* SendComm::register_memory(void* data, std::size_t size) {
  return keep(std::make_unique<MemoryHandle>(MemoryHandle{static_cast<std::uint8_t*>(data), size, 0, false}));
}

// NCCL's progress thread -------------------------------------------------------------------------------------------

Result SendComm::send(void* data, std::size_t size, Request** request) {
  if (has_failed()) return report();
  const std::uint64_t number = next_.load(std::memory_order_relaxed);
  Slot& slot = slots_[number % slots];
  if (slot.is_busy) return Result::success;
  const bool is_granted = granted_.load(std::memory_order_acquire) > number;
  if (!is_granted && (size > eager_bytes || number >= freed_.load(std::memory_order_acquire) + eager_slots)) {
    wants_grant_.store(true, std::memory_order_relaxed);
    if (!burst_tracker_.is_waiting()) {
      const Time now = node_.device().clock().now();
      burst_tracker_.on_request(device_->bursts(), now);
      burst_tracker_.on_wait(now);
    }
    if (!device_->submit_queue(qps_[0].lane).lane().is_closed()) return Result::success;
    fail(Result::internal_error, "the device is closed " + node_.device().failure());
    return report();
  }
  if (is_granted && grants_[number % slots].sequence != number) {
    fail(Result::remote_error, "peer " + peer_ + " left a grant out");
    return report();
  }
  wants_grant_.store(false, std::memory_order_relaxed);
  next_.store(number + 1, std::memory_order_relaxed);
  slot.is_busy = true;
  slot.size = size;
  const Time now = node_.device().clock().now();
  burst_tracker_.on_request(device_->bursts(), now);
  burst_tracker_.on_posted(now, size);
  auto* const bytes = static_cast<std::uint8_t*>(data);
  if (is_granted) {
    send_granted(slot, bytes, size, grants_[number % slots]);
  } else {
    slot.left.store(1, std::memory_order_relaxed);
    const ImmData note{static_cast<std::uint32_t>(number), 1, SendKind::eager};
    submit_part(slot, 0, 0, bytes, size, eager_va_ + number % eager_slots * eager_bytes, eager_rkey_, note);
  }
  *request = &requests_[number % slots];
  return Result::success;
}

// In multiples of what packets carry: no word of it is ever seen in part.
void SendComm::send_granted(Slot& slot, std::uint8_t* data, std::size_t size, const Grant& grant) {
  const auto number = static_cast<std::uint32_t>(grant.sequence);
  if (size > grant.size) {
    slot.left.store(1, std::memory_order_relaxed);
    return submit_part(slot, 0, 0, data, 0, 0, 0, {number, 1, SendKind::too_long});
  }
  const std::size_t wanted = std::clamp<std::size_t>(size / smallest_part, 1, qps_.size());
  const std::size_t share = std::max<std::size_t>((size + wanted - 1) / wanted, 1);
  const std::size_t step = (share + host::payload_unit - 1) / host::payload_unit * host::payload_unit;
  const auto parts = static_cast<std::uint32_t>(std::max<std::size_t>((size + step - 1) / step, 1));
  slot.left.store(parts, std::memory_order_relaxed);
  for (std::uint32_t part = 0; part < parts; ++part) {
    const std::size_t at = part * step;
    const auto end = static_cast<std::uint32_t>(size <= small_message ? 0 : (number + part) % qps_.size());
    submit_part(slot, part, end, data + at, std::min(step, size - at), grant.address + at, grant.rkey,
                {number, parts, SendKind::granted});
  }
}

void SendComm::submit_part(Slot& slot, std::uint32_t part, std::uint32_t end, const std::uint8_t* data,
                           std::size_t size, std::uint64_t va, std::uint32_t rkey, const ImmData& note) {
  SendOrder& order = slot.orders[part];
  order.end = end;
  order.request.wr_id = note.number % slots | (note.sent == SendKind::too_long ? too_long_mark : 0);
  order.request.data = data;
  order.request.length = static_cast<std::uint32_t>(size);
  order.request.remote_va = va;
  order.request.rkey = rkey;
  order.request.imm = note.packed();
  order.request.has_imm = true;
  submit(order);
}

Result SendComm::test(std::uint32_t number, int* is_done, int* size) {
  Slot& slot = slots_[number];
  if (slot.left.load(std::memory_order_acquire) != 0) {
    if (!has_failed() && device_->submit_queue(qps_[0].lane).lane().is_closed())
      fail(Result::internal_error, "the device is closed " + node_.device().failure());
    return has_failed() ? report() : Result::success;
  }
  *is_done = 1;
  if (size) *size = static_cast<int>(slot.size);
  slot.is_busy = false;
  burst_tracker_.on_completed(node_.device().clock().now(), resent());
  return Result::success;
}

bool SendComm::uses(const MemoryHandle& memory) const {
  for (const Slot& slot : slots_) {
    if (!slot.is_busy || slot.left.load(std::memory_order_acquire) == 0 || slot.size == 0) continue;
    const std::uint8_t* const data = slot.orders[0].request.data;
    if (data < memory.data + memory.size && data + slot.size > memory.data) return true;
  }
  return false;
}

// The lane ---------------------------------------------------------------------------------------------------------

// A grant has come. Those that are missing before it were for messages that had come by the eager_buffer.
void SendComm::on_message(std::uint32_t end, std::uint32_t imm, std::uint32_t length) {
  const Grant grant = (*ring_)[imm % slots];
  const std::uint64_t known = granted_.load(std::memory_order_relaxed);
  const bool makes_sense = end == 0 && length == sizeof(Grant) && (grant.sequence & 0xFFFF) == imm &&
                           grant.sequence >= known && grant.sequence < next_.load(std::memory_order_relaxed) + slots &&
                           grant.freed <= grant.sequence;
  if (!makes_sense) return fail(Result::remote_error, "peer " + peer_ + " granted what makes no sense");
  grants_[imm % slots] = grant;
  freed_.store(std::max(grant.freed, freed_.load(std::memory_order_relaxed)), std::memory_order_release);
  granted_.store(grant.sequence + 1, std::memory_order_release);
}

void SendComm::on_written(std::uint64_t wr_id) {
  if (wr_id & too_long_mark)
    return fail(Result::invalid_usage, "a send is longer than the receive that it belongs to, at peer " + peer_);
  slots_[wr_id % slots].left.fetch_sub(1, std::memory_order_release);
}

}  // namespace softmrc::nccl
