// A connection as NCCL knows it, which goes one way: the sender's end and the receiver's. Underneath it is a queue pair in
// each of several lanes. The first of them, the home, carries what is small; connections of the two directions have their
// homes in pairs, so that a lane is awake for the answer to what it has just brought.
//
//   receiver: a receive is posted        -> a grant: where its bytes may land      WRITE with immediate, into the sender's ring
//   sender:   a send finds its grant     -> the bytes, right where they belong     WRITE with immediate, in parts, by all lanes
//   sender:   no grant yet, but little   -> the bytes, into the receiver's shelf, from which they are copied
//
// The k-th send belongs to the k-th receive. NCCL's progress thread sets up slots, links orders and reads atomics; lanes
// do the rest. A failure is final.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "face/door.h"
#include "nccl/abi.h"
#include "nccl/porter.h"
#include "nccl/station.h"

namespace softmrc::nccl {

constexpr std::uint32_t slots = 64;             // requests of a comm that may be under way
constexpr std::uint32_t most_parts = 8;         // of a message, each at another end
constexpr std::uint32_t most_posted = slots + 1;  // at one end: as many, and a question
constexpr std::uint32_t shelf_slots = 32;
constexpr std::uint32_t shelf_bytes = 8 << 10;  // of each
constexpr std::uint32_t receives_posted = 256;
constexpr std::size_t most_message = std::size_t{1} << 30;

// What the receiver writes into the sender's ring. Both ends are of one make, and of one byte order.
struct Grant {
  std::uint64_t sequence = 0;
  std::uint64_t address = 0;
  std::uint64_t freed = 0;      // so many receives have ended, all that came before them as well
  std::uint32_t rkey = 0;
  std::uint32_t size = 0;
};
static_assert(sizeof(Grant) == 32);

// What an immediate says of a message: 16 bits of its number, how many parts it has, and how it was sent.
enum class Sent : std::uint32_t { granted, shelved, too_long };
struct Note {
  std::uint32_t number = 0;
  std::uint32_t parts = 1;
  Sent sent = Sent::granted;

  std::uint32_t packed() const { return (number & 0xFFFF) | (parts - 1) << 16 | static_cast<std::uint32_t>(sent) << 24; }
  static Note of(std::uint32_t imm) { return {imm & 0xFFFF, (imm >> 16 & 0xFF) + 1, static_cast<Sent>(imm >> 24)}; }
};

// Memory that NCCL registered with a comm.
struct Memory {
  std::uint8_t* data = nullptr;
  std::size_t size = 0;
  std::uint32_t rkey = 0;
  bool is_offered = false;      // to the peer, to write to
};

struct Request {
  Comm* comm = nullptr;
  std::uint32_t slot = 0;
};

class Comm : public face::Party {
 public:
  explicit Comm(std::shared_ptr<Station> station);
  ~Comm() override;
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  // NCCL's service thread.
  virtual Memory* register_memory(void* data, std::size_t size) = 0;
  // When it returns, nothing touches this memory any more.
  void deregister(Memory* memory);

  // NCCL's progress thread. Zero: not done yet.
  virtual Result test(std::uint32_t slot, int* is_done, int* size) = 0;
  // What went wrong, said once to NCCL's log.
  Result report();
  // Packets so far, as of the last write that was acknowledged at each end.
  std::uint64_t resent() const;
  bool has_failed() const { return failure_.load(std::memory_order_acquire) != Result::success; }

  // The lane, which has its engine to itself.
  void post(proto::Endpoint& engine, Time now, Order& order);
  void on_completion(proto::Endpoint& engine, Time now, std::uint32_t end, const proto::Completion& completion);
  void look(proto::Endpoint& engine, Time now, std::uint32_t end);

 protected:
  virtual void on_message(std::uint32_t end, std::uint32_t imm, std::uint32_t length) = 0;
  virtual void on_written(std::uint64_t wr_id) = 0;
  // Whether something has to come from the peer.
  virtual bool is_waiting() const = 0;
  virtual bool uses(const Memory& memory) const = 0;

  void open_ends(std::size_t count, std::uint32_t home);
  void connect_ends(const face::Offer& theirs);
  void submit(Order& order) { station_->porter(ends_[order.end].lane).submit(order); }
  // What goes wrong at one end is over at both: the queue pairs go to error, and the peer hears of it when it next asks.
  void fail(Result result, const std::string& why);
  Memory* keep(std::unique_ptr<Memory> memory);
  // Takes its queue pairs away. Must be called before what lanes may touch goes.
  void close();

  std::shared_ptr<Station> station_;
  face::Node& node_;
  proto::Domain domain_;
  std::vector<face::End> ends_;
  std::string peer_ = "the peer";
  std::array<Request, slots> requests_;

 private:
  bool mark(Result result, const std::string& why);
  void break_off();

  std::set<Memory*> memories_;
  std::atomic<Result> failure_{Result::success};
  std::mutex mutex_;                      // for the words
  std::string words_;
  std::atomic<bool> is_told_{false};
  std::atomic<std::int64_t> heard_at_ps_{0};
  std::array<std::atomic<std::uint64_t>, most_parts> resent_{};
  bool is_asking_ = false;                // of the home's lane
  bool is_closed_ = false;
  std::array<Order, most_parts> breaks_;  // for each end
};

class SendComm final : public Comm {
 public:
  explicit SendComm(std::shared_ptr<Station> station);
  ~SendComm() override;

  Memory* register_memory(void* data, std::size_t size) override;
  // A null request: ask again.
  Result send(void* data, std::size_t size, Request** request);
  Result test(std::uint32_t slot, int* is_done, int* size) override;

  face::Bytes offer() override;
  void accept(std::span<const std::uint8_t> theirs) override;

 private:
  struct Slot {
    bool is_busy = false;
    std::size_t size = 0;
    std::atomic<std::uint32_t> left{0};   // parts that are not acknowledged
    std::array<Order, most_parts> orders;
  };

  void on_message(std::uint32_t end, std::uint32_t imm, std::uint32_t length) override;
  void on_written(std::uint64_t wr_id) override;
  bool is_waiting() const override { return wants_grant_.load(std::memory_order_relaxed); }
  bool uses(const Memory& memory) const override;
  void submit_part(Slot& slot, std::uint32_t part, std::uint32_t end, const std::uint8_t* data, std::size_t size, std::uint64_t va,
                   std::uint32_t rkey, const Note& note);
  void send_granted(Slot& slot, std::uint8_t* data, std::size_t size, const Grant& grant);

  std::unique_ptr<std::array<Grant, slots>> ring_;  // the peer writes here
  std::uint32_t ring_rkey_ = 0;
  std::array<Grant, slots> grants_;                 // those that came, in order
  std::atomic<std::uint64_t> granted_{0};           // all below this came, or are not needed
  std::atomic<std::uint64_t> freed_{0};             // at the peer
  std::atomic<std::uint64_t> next_{0};              // the number of the next send
  std::atomic<bool> wants_grant_{false};
  std::uint64_t shelf_va_ = 0;
  std::uint32_t shelf_rkey_ = 0;
  std::array<Slot, slots> slots_;
  face::BurstMark mark_;                            // of the progress thread
};

class ReceiveComm final : public Comm {
 public:
  explicit ReceiveComm(std::shared_ptr<Station> station);
  ~ReceiveComm() override;

  Memory* register_memory(void* data, std::size_t size) override;
  Result receive(void* data, std::size_t size, const Memory& memory, Request** request);
  Result test(std::uint32_t slot, int* is_done, int* size) override;

  face::Bytes offer() override;
  void accept(std::span<const std::uint8_t> theirs) override;

 private:
  // What has happened to a slot. Of two that must both have happened, whoever is second does what follows.
  static constexpr std::uint32_t posted = 1, shelved = 2, done = 4;
  struct Slot {
    bool is_busy = false;
    std::uint8_t* data = nullptr;
    std::size_t size = 0;
    const Memory* memory = nullptr;
    std::atomic<std::uint32_t> state{0};
    std::atomic<std::uint32_t> parts{0};
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<bool> is_granting{false};
    Order order;
  };

  void on_message(std::uint32_t end, std::uint32_t imm, std::uint32_t length) override;
  void on_written(std::uint64_t wr_id) override;
  bool is_waiting() const override { return next_.load(std::memory_order_relaxed) != freed_.load(std::memory_order_relaxed); }
  bool uses(const Memory& memory) const override;
  void take_from_shelf(std::uint32_t slot);
  void grant(std::uint32_t slot, std::uint64_t number);

  std::uint8_t* shelf_ = nullptr;                   // the peer writes here
  std::uint32_t shelf_rkey_ = 0;
  std::array<Grant, slots> outgoing_;
  std::uint64_t ring_va_ = 0;
  std::uint32_t ring_rkey_ = 0;
  std::atomic<std::uint64_t> next_{0};
  std::atomic<std::uint64_t> freed_{0};
  std::array<Slot, slots> slots_;
};

}  // namespace softmrc::nccl
