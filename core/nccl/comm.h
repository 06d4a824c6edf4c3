// A connection as NCCL knows it, in one direction: the sender's end and the receiver's. Underneath it is a queue pair
// in each of several lanes. The first of them, the home, carries what is small; connections of the two directions have
// their homes in pairs, so that a lane is awake for the answer to what it has just brought.
//
// - A receive is posted: a grant, which says where its bytes may land, is written into the sender's ring (WRITE_IMM).
// - A send finds its grant: the bytes are written right where they belong, in parts, by all lanes (WRITE_IMM).
// - A small send has no grant yet: its bytes go into the receiver's eager_buffer, from which they are copied.
//
// The k-th send belongs to the k-th receive. NCCL's progress thread sets up slots, links orders and reads atomics;
// lanes do the rest. A failure is final.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "nccl/abi.h"
#include "nccl/party.h"
#include "nccl/plugin_device.h"
#include "nccl/submit_queue.h"

namespace softmrc::nccl {

constexpr std::uint32_t slots = 64;              // requests of a comm that may be under way
constexpr std::uint32_t max_parts = 8;           // of a message, each at another end
constexpr std::uint32_t max_posted = slots + 1;  // at one end: as many, and a probe
constexpr std::uint32_t eager_slots = 32;
constexpr std::uint32_t eager_bytes = 8 << 10;  // of each
constexpr std::uint32_t receives_posted = 256;
constexpr std::size_t max_message = std::size_t{1} << 30;

// What the receiver writes into the sender's ring. Both ends are of one make, and of one byte order.
struct Grant {
  std::uint64_t sequence = 0;
  std::uint64_t address = 0;
  std::uint64_t freed = 0;  // so many receives have ended, all that came before them as well
  std::uint32_t rkey = 0;
  std::uint32_t size = 0;
};
static_assert(sizeof(Grant) == 32);

// What an immediate says of a message: 16 bits of its number, how many parts it has, and how it was sent.
enum class SendKind : std::uint32_t { granted, eager, too_long };
struct ImmData {
  std::uint32_t number = 0;
  std::uint32_t parts = 1;
  SendKind sent = SendKind::granted;

  std::uint32_t packed() const {
    return (number & 0xFFFF) | (parts - 1) << 16 | static_cast<std::uint32_t>(sent) << 24;
  }
  static ImmData of(std::uint32_t imm) {
    return {imm & 0xFFFF, (imm >> 16 & 0xFF) + 1, static_cast<SendKind>(imm >> 24)};
  }
};

// Memory that NCCL registered with a comm.
struct MemoryHandle {
  std::uint8_t* data = nullptr;
  std::size_t size = 0;
  std::uint32_t rkey = 0;
  bool is_offered = false;  // to the peer, to write to
};

struct Request {
  Comm* comm = nullptr;
  std::uint32_t slot = 0;
};

class Comm : public Party {
 public:
  explicit Comm(std::shared_ptr<PluginDevice> device);
  ~Comm() override;

  // NCCL's service thread.
  virtual MemoryHandle* register_memory(void* data, std::size_t size) = 0;
  // When it returns, nothing touches this memory any more.
  void deregister(MemoryHandle* memory);

  // NCCL's progress thread. Zero: not done yet.
  virtual Result test(std::uint32_t slot, int* is_done, int* size) = 0;
  // What went wrong, said once to NCCL's log.
  Result report();
  // Packets so far, as of the last write that was acknowledged at each end.
  std::uint64_t resent() const;
  bool has_failed() const { return failure_.load(std::memory_order_acquire) != Result::success; }

  // The lane, which has its engine to itself.
  void post(proto::Endpoint& engine, Time now, SendOrder& order);
  void on_completion(proto::Endpoint& engine, Time now, std::uint32_t end, const proto::Completion& completion);
  void check_peer(proto::Endpoint& engine, Time now, std::uint32_t end);

 protected:
  virtual void on_message(std::uint32_t end, std::uint32_t imm, std::uint32_t length) = 0;
  virtual void on_written(std::uint64_t wr_id) = 0;
  // Whether something has to come from the peer.
  virtual bool is_waiting() const = 0;
  virtual bool uses(const MemoryHandle& memory) const = 0;

  void create_qps(std::size_t count, std::uint32_t home);
  void connect_qps(const host::Offer& theirs, const host::Handshake& handshake);
  void submit(SendOrder& order) { device_->submit_queue(qps_[order.end].lane).submit(order); }
  // What goes wrong at one end is over at both: the queue pairs go to error, and the peer learns that when it next
  // asks.
  void fail(Result result, const std::string& why);
  MemoryHandle* keep(std::unique_ptr<MemoryHandle> memory);
  // Takes its queue pairs away. Must be called before what lanes may touch goes.
  void close();

  std::shared_ptr<PluginDevice> device_;
  host::Node& node_;
  proto::Domain domain_;
  std::vector<host::LocalQp> qps_;
  std::string peer_ = "the peer";
  std::array<Request, slots> requests_;

 private:
  bool mark(Result result, const std::string& why);
  void set_all_to_error();

  std::set<MemoryHandle*> memories_;
  std::atomic<Result> failure_{Result::success};
  std::mutex mutex_;  // for the memories and the error's text
  std::string error_text_;
  std::atomic<bool> is_logged_{false};
  std::atomic<std::int64_t> last_heard_ps_{0};
  std::array<std::atomic<std::uint64_t>, max_parts> resent_{};
  bool is_probing_ = false;  // of the home's lane
  bool is_closed_ = false;
  std::array<SendOrder, max_parts> error_orders_;  // for each end
};

class SendComm final : public Comm {
 public:
  explicit SendComm(std::shared_ptr<PluginDevice> device);
  ~SendComm() override;

  MemoryHandle* register_memory(void* data, std::size_t size) override;
  // A null request: ask again.
  Result send(void* data, std::size_t size, Request** request);
  Result test(std::uint32_t slot, int* is_done, int* size) override;

  host::Bytes offer() override;
  void accept(std::span<const std::uint8_t> theirs, const host::Handshake& handshake) override;

 private:
  struct Slot {
    bool is_busy = false;
    std::size_t size = 0;
    std::atomic<std::uint32_t> left{0};  // parts that are not acknowledged
    std::array<SendOrder, max_parts> orders;
  };

  void on_message(std::uint32_t end, std::uint32_t imm, std::uint32_t length) override;
  void on_written(std::uint64_t wr_id) override;
  bool is_waiting() const override { return wants_grant_.load(std::memory_order_relaxed); }
  bool uses(const MemoryHandle& memory) const override;
  void submit_part(Slot& slot, std::uint32_t part, std::uint32_t end, const std::uint8_t* data, std::size_t size,
                   std::uint64_t va, std::uint32_t rkey, const ImmData& note);
  void send_granted(Slot& slot, std::uint8_t* data, std::size_t size, const Grant& grant);

  std::unique_ptr<std::array<Grant, slots>> ring_;  // the peer writes here
  std::uint32_t ring_rkey_ = 0;
  std::array<Grant, slots> grants_;        // those that came, in order
  std::atomic<std::uint64_t> granted_{0};  // all below this came, or are not needed
  std::atomic<std::uint64_t> freed_{0};    // at the peer
  std::atomic<std::uint64_t> next_{0};     // the number of the next send
  std::atomic<bool> wants_grant_{false};
  std::uint64_t eager_va_ = 0;
  std::uint32_t eager_rkey_ = 0;
  std::array<Slot, slots> slots_;
  control::BurstTracker burst_tracker_;  // of the progress thread
};

class ReceiveComm final : public Comm {
 public:
  explicit ReceiveComm(std::shared_ptr<PluginDevice> device);
  ~ReceiveComm() override;

  MemoryHandle* register_memory(void* data, std::size_t size) override;
  Result receive(void* data, std::size_t size, const MemoryHandle& memory, Request** request);
  Result test(std::uint32_t slot, int* is_done, int* size) override;

  host::Bytes offer() override;
  void accept(std::span<const std::uint8_t> theirs, const host::Handshake& handshake) override;

 private:
  // What has happened to a slot. Of two that must both have happened, the thread that is second does what follows.
  static constexpr std::uint32_t posted = 1, eager = 2, done = 4;
  struct Slot {
    bool is_busy = false;
    std::uint8_t* data = nullptr;
    std::size_t size = 0;
    const MemoryHandle* memory = nullptr;
    std::atomic<std::uint32_t> state{0};
    std::atomic<std::uint32_t> parts{0};
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<bool> is_granting{false};
    SendOrder order;
  };

  void on_message(std::uint32_t end, std::uint32_t imm, std::uint32_t length) override;
  void on_written(std::uint64_t wr_id) override;
  bool is_waiting() const override {
    return next_.load(std::memory_order_relaxed) != freed_.load(std::memory_order_relaxed);
  }
  bool uses(const MemoryHandle& memory) const override;
  void copy_from_eager(std::uint32_t slot);
  void grant(std::uint32_t slot, std::uint64_t number);

  std::uint8_t* eager_buffer_ = nullptr;  // the peer writes here
  std::uint32_t eager_rkey_ = 0;
  std::array<Grant, slots> outgoing_;
  std::uint64_t ring_va_ = 0;
  std::uint32_t ring_rkey_ = 0;
  std::atomic<std::uint64_t> next_{0};
  std::atomic<std::uint64_t> freed_{0};
  std::array<Slot, slots> slots_;
};

}  // namespace softmrc::nccl
