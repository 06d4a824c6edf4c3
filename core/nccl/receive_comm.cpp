#include <sys/mman.h>

#include <cstring>

#include "nccl/comm.h"
#include "nccl/connect_layout.h"

namespace softmrc::nccl {

constexpr std::size_t eager_size = std::size_t{eager_slots} * eager_bytes;

// Of the eager_buffer, only what is used is ever real memory.
ReceiveComm::ReceiveComm(std::shared_ptr<PluginDevice> device) : Comm(std::move(device)) {
  void* const memory = mmap(nullptr, eager_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw host::HostError("no memory for " + std::to_string(eager_size) + " bytes");
  eager_buffer_ = static_cast<std::uint8_t*>(memory);
  for (Slot& slot : slots_) slot.order.comm = this;
}

ReceiveComm::~ReceiveComm() {
  close();
  if (eager_rkey_) node_.device().remove_region(eager_rkey_);
  munmap(eager_buffer_, eager_size);
}

void ReceiveComm::accept(std::span<const std::uint8_t> said, const host::Handshake& handshake) {
  const host::Offer theirs = host::decode_offer(said);
  const ConnectLayout shape = decode_layout(theirs.more);
  node_.check(theirs);
  ring_va_ = shape.va;
  ring_rkey_ = shape.rkey;
  create_qps(theirs.qps.size(), device_->next_primary_lane(false));
  connect_qps(theirs, handshake);
}

host::Bytes ReceiveComm::offer() {
  eager_rkey_ = node_.register_memory(eager_buffer_, eager_size, domain_);
  return host::encode(node_.offer(qps_, encode_layout(eager_buffer_, eager_rkey_)));
}

MemoryHandle* ReceiveComm::register_memory(void* data, std::size_t size) {
  auto memory = std::make_unique<MemoryHandle>(MemoryHandle{static_cast<std::uint8_t*>(data), size, 0, true});
  memory->rkey = node_.register_memory(data, size, domain_);
  return keep(std::move(memory));
}

// NCCL's progress thread -------------------------------------------------------------------------------------------

Result ReceiveComm::receive(void* data, std::size_t size, const MemoryHandle& memory, Request** request) {
  if (has_failed()) return report();
  const std::uint64_t number = next_.load(std::memory_order_relaxed);
  const std::uint32_t at = number % slots;
  Slot& slot = slots_[at];
  if (slot.is_busy || slot.is_granting.load(std::memory_order_acquire)) return Result::success;
  slot.is_busy = true;
  slot.data = static_cast<std::uint8_t*>(data);
  slot.size = size;
  slot.memory = &memory;
  next_.store(number + 1, std::memory_order_relaxed);
  if (slot.state.fetch_or(posted, std::memory_order_acq_rel) & eager) copy_from_eager(at);
  else grant(at, number);
  *request = &requests_[at];
  return Result::success;
}

void ReceiveComm::grant(std::uint32_t at, std::uint64_t number) {
  Slot& slot = slots_[at];
  outgoing_[at] = {number, reinterpret_cast<std::uintptr_t>(slot.data), freed_.load(std::memory_order_relaxed),
                   slot.memory->rkey, static_cast<std::uint32_t>(std::min(slot.size, max_message))};
  slot.is_granting.store(true, std::memory_order_relaxed);
  slot.order.request.wr_id = at;
  slot.order.request.data = reinterpret_cast<const std::uint8_t*>(&outgoing_[at]);
  slot.order.request.length = sizeof(Grant);
  slot.order.request.remote_va = ring_va_ + at * sizeof(Grant);
  slot.order.request.rkey = ring_rkey_;
  slot.order.request.imm = static_cast<std::uint32_t>(number & 0xFFFF);
  slot.order.request.has_imm = true;
  submit(slot.order);
}

Result ReceiveComm::test(std::uint32_t at, int* is_done, int* size) {
  Slot& slot = slots_[at];
  if (!(slot.state.load(std::memory_order_acquire) & done)) {
    if (!has_failed() && device_->submit_queue(qps_[0].lane).lane().is_closed())
      fail(Result::internal_error, "the device is closed " + node_.device().failure());
    return has_failed() ? report() : Result::success;
  }
  *is_done = 1;
  if (size) *size = static_cast<int>(slot.bytes.load(std::memory_order_relaxed));
  slot.parts.store(0, std::memory_order_relaxed);
  slot.bytes.store(0, std::memory_order_relaxed);
  slot.state.store(0, std::memory_order_relaxed);
  slot.is_busy = false;
  // The peer reuses the eager_buffer by this number, so it counts no further than all before it.
  std::uint64_t freed = freed_.load(std::memory_order_relaxed);
  while (freed < next_.load(std::memory_order_relaxed) && !slots_[freed % slots].is_busy) ++freed;
  freed_.store(freed, std::memory_order_release);
  return Result::success;
}

bool ReceiveComm::uses(const MemoryHandle& memory) const {
  for (const Slot& slot : slots_)
    if (slot.is_busy && slot.memory == &memory && !(slot.state.load(std::memory_order_acquire) & done)) return true;
  return false;
}

// By the second of two threads: the one that posts the receive, or the lane that brings the bytes.
void ReceiveComm::copy_from_eager(std::uint32_t at) {
  Slot& slot = slots_[at];
  const std::uint64_t length = slot.bytes.load(std::memory_order_relaxed);
  if (has_failed()) return;
  if (length > slot.size)
    return fail(Result::invalid_usage, "peer " + peer_ + " sent " + std::to_string(length) + " bytes to a receive of " +
                                           std::to_string(slot.size));
  if (length) std::memcpy(slot.data, eager_buffer_ + std::size_t{at % eager_slots} * eager_bytes, length);
  slot.state.fetch_or(done, std::memory_order_release);
}

// The lane ---------------------------------------------------------------------------------------------------------

void ReceiveComm::on_message(std::uint32_t end, std::uint32_t imm, std::uint32_t length) {
  const auto nonsense = [this] { fail(Result::remote_error, "peer " + peer_ + " sent what makes no sense"); };
  const ImmData note = ImmData::of(imm);
  const std::uint32_t at = note.number % slots;
  Slot& slot = slots_[at];
  const std::uint64_t ahead = (note.number - freed_.load(std::memory_order_acquire)) & 0xFFFF;
  if (ahead >= slots) return nonsense();
  if (note.sent == SendKind::too_long)
    return fail(Result::invalid_usage, "peer " + peer_ + " sends more than the receive holds");
  if (note.sent == SendKind::eager) {
    if (end != 0 || note.parts != 1 || length > eager_bytes || ahead >= eager_slots) return nonsense();
    if (slot.state.load(std::memory_order_acquire) & (eager | done)) return nonsense();
    slot.bytes.store(length, std::memory_order_relaxed);
    if (slot.state.fetch_or(eager, std::memory_order_acq_rel) & posted) copy_from_eager(at);
    return;
  }
  if (note.sent != SendKind::granted ||
      (slot.state.load(std::memory_order_acquire) & (posted | eager | done)) != posted)
    return nonsense();
  slot.bytes.fetch_add(length, std::memory_order_relaxed);
  if (slot.parts.fetch_add(1, std::memory_order_acq_rel) + 1 != note.parts) return;
  if (slot.bytes.load(std::memory_order_relaxed) > slot.size) return nonsense();
  slot.state.fetch_or(done, std::memory_order_release);
}

void ReceiveComm::on_written(std::uint64_t wr_id) {
  slots_[wr_id % slots].is_granting.store(false, std::memory_order_release);
}

}  // namespace softmrc::nccl
