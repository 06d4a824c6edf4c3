// The driver of one node: its planes, its engine, the thread that moves packets between them.
//
// One thread at a time drives: it receives, lets the engine work, sends, and sleeps when there is nothing to do. That
// is the device's own thread, unless a caller waits for a completion: then the waiting thread drives, because waking a
// second one for every message would cost more than the message. A caller that posts sends by itself, too. The engine
// is under one mutex, held for a batch at a time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "proto/endpoint.h"
#include "udp/capture.h"
#include "udp/clock.h"
#include "udp/link_watch.h"
#include "udp/peer_book.h"
#include "udp/plane.h"
#include "udp/receiver.h"
#include "udp/sender.h"

namespace softmrc::udp {

// Native code that lives on completions and gives the engine new work. It is called by whoever drives, with the engine
// to itself, after every batch that came in.
class Attendant {
 public:
  virtual ~Attendant() = default;
  // True when it has more to do at once, whether or not anything comes in.
  virtual bool attend(proto::Endpoint& engine, Time now) = 0;
  // When it wants to be called even if nothing happens.
  virtual Time deadline() const = 0;
};

struct DevicePlan {
  std::vector<PlanePlan> planes;
  proto::EndpointConfig engine;
  SenderPlan sender;
  std::uint32_t port_burst = 0;          // packets offered to a plane before it is asked again whether it has room; 0: any
  Duration spin = microseconds(50);      // how long to look at idle sockets before sleeping
  bool watches_links = true;
};

class Device {
 public:
  // Opens all sockets and starts the thread. Throws DeviceFailure.
  explicit Device(DevicePlan plan);
  ~Device();

  // Lets callers go, and their memory: nothing is read from it or lands in it afterwards. What is owed is sent, and the
  // device's own thread stays a little to answer peers that missed it.
  void close();
  bool is_closed() const { return closed_; }
  // Whether that is over, too, and the sockets are closed.
  bool is_over() const { return is_over_; }
  // False when the time is up.
  bool wait_until_over(Duration timeout);
  // Answers nobody any longer.
  void cut_short();
  // In a forked child: lets go of its copies of the sockets, or the parent's ports would outlive the parent.
  void abandon();

  // Runs `f(engine, now)` while nothing else touches the engine. It must not wait for anything that a caller may hold.
  template <typename F>
  auto with_engine(F f) {
    const Visit visit(*this);
    return f(engine_, clock_.now());
  }
  // The same for calls that give the engine something to send: it leaves before this returns.
  template <typename F>
  auto with_engine_and_send(F f) {
    const Visit visit(*this);
    auto result = f(engine_, clock_.now());
    if (!closed_) {
      transmit();
      wake_sleeper_if_late();
      notify();
    }
    return result;
  }

  // Waits until the queue holds something, and takes it. Zero when the time is up or the device closed.
  std::size_t wait(std::uint32_t cq, std::span<proto::Completion> out, Duration timeout);
  std::size_t poll(std::uint32_t cq, std::span<proto::Completion> out);
  // Waits, and drives, until `is_done`, which is asked with the engine to itself. False when the time is up or the
  // device closed.
  bool wait_until(const std::function<bool()>& is_done, Duration timeout);
  void add_attendant(Attendant* attendant);
  void remove_attendant(Attendant* attendant);
  // A descriptor that is readable while the queue may hold something.
  int completion_fd(std::uint32_t cq);
  int event_fd();

  // A port is up when its administrator and its link both say so.
  void set_port(std::uint32_t plane, bool is_up);
  // One bit a plane.
  std::uint32_t admin_up() const { return admin_up_; }
  std::uint32_t link_up() const { return link_up_; }

  // The same planes are the same peer, which then has to be removed as often as it was added.
  proto::Verdict add_peer(std::vector<PeerPlane> planes, std::uint32_t& peer);
  bool remove_peer(std::uint32_t peer);
  proto::Verdict destroy_cq(std::uint32_t cq);
  const PeerBook& peers() const { return peers_; }

  // Events for poll_event, oldest first.
  void take_events(std::vector<proto::Event>& out, std::size_t most);
  const proto::Endpoint& engine() const { return engine_; }
  // What stopped the driver, if one of our own promises broke; else empty.
  std::string failure() {
    const Visit visit(*this);
    return failure_;
  }

  Clock& clock() { return clock_; }
  std::vector<Plane>& planes() { return planes_; }
  const DevicePlan& plan() const { return plan_; }
  void set_spin(Duration spin) {
    const Visit visit(*this);
    plan_.spin = spin;
  }
  bool has_gso() {
    const Visit visit(*this);
    return sender_.has_gso();
  }
  const DeviceStats& stats() const { return stats_; }

  void start_capture(const std::string& path, std::uint64_t most_bytes);
  // How many packets the last one holds, whether it is ended by this or was when the device closed.
  std::uint64_t stop_capture();

  // How many payload bytes of one queue pair were placed in each span of time, from now on.
  void start_series(std::uint32_t qpn, Duration bin, std::uint32_t bins);
  std::vector<std::uint64_t> series();
  Time series_started_at() const { return series_.started_at; }

 private:
  // A caller inside: the driving thread makes room between two batches.
  class Visit {
   public:
    explicit Visit(Device& device) : device_(device) {
      device_.knocking_.fetch_add(1, std::memory_order_relaxed);
      device_.mutex_.lock();
      device_.knocking_.fetch_sub(1, std::memory_order_relaxed);
    }
    ~Visit() { device_.mutex_.unlock(); }
    Visit(const Visit&) = delete;

   private:
    Device& device_;
  };
  struct Series {
    std::uint32_t qpn = 0;
    Duration bin{0};
    Time started_at{};
    std::uint64_t placed_before = 0;
    std::vector<std::uint64_t> bins;
  };
  using Lock = std::unique_lock<std::mutex>;

  static std::vector<Plane> open_planes(const DevicePlan& plan);
  void open_descriptors();
  void run();

  template <typename Done>
  void lead_until(Lock& lock, Time until, Done done);
  template <typename Done>
  void drive(Lock& lock, Time until, Done done);
  bool attend();
  void look(Duration timeout);
  bool take_in();
  void receive_ready();
  void receive_from(std::uint32_t plane);
  void hand_in(std::uint32_t plane, const Incoming& in, Time now);
  void transmit();
  void gather(Time now);
  std::uint32_t free_ports();
  void watch_room(std::uint32_t plane);
  void read_links();
  void set_link(Time now, std::uint32_t plane, bool is_up);
  void refresh_port(Time now, std::uint32_t plane);
  void read_errors();
  void forget_peers();
  void linger(Lock& lock);
  void notify();
  void let_visitors_in(Lock& lock);
  void wake_sleeper_if_late();
  void kick();
  void quieten(int fd);
  void wake_descriptors();
  void end_capture();
  Time next_deadline();
  void record_series(Time now);

  DevicePlan plan_;
  Clock clock_;
  proto::Endpoint engine_;
  std::vector<Plane> planes_;
  PeerBook peers_;
  LinkWatch links_;
  std::vector<LinkState> link_changes_;
  Receiver receiver_;
  Sender sender_;
  std::unique_ptr<Capture> capture_;
  std::uint64_t captured_ = 0;
  Series series_;
  DeviceStats stats_;
  std::vector<Attendant*> attendants_;

  int epoll_fd_ = -1;
  int kick_fd_ = -1;
  std::vector<int> cq_fds_;          // by queue; -1 where nobody asked
  int event_fd_ = -1;
  std::uint32_t ready_planes_ = 0;   // found readable by the last look
  std::uint32_t turns_in_batch_ = 0;
  std::uint64_t strangers_ = 0;      // packets of theirs so far, on all planes
  bool is_only_refusing_ = false;    // whatever came in this turn was refused
  std::uint32_t rewritable_ = 0;     // found to have room again
  std::uint32_t erring_ = 0;         // planes with a socket that has errors to report
  bool links_ready_ = false;
  std::uint64_t peers_forgotten_ = 0;
  std::uint32_t admin_up_ = ~0u;
  std::uint32_t link_up_ = ~0u;

  std::mutex mutex_;
  std::condition_variable turn_;     // for callers that wait while another drives
  std::condition_variable standby_;  // for the device's own thread
  std::atomic<int> knocking_{0};
  std::atomic<bool> closed_{false};
  std::atomic<bool> is_over_{false};
  bool is_cut_short_ = false;
  std::string failure_;
  bool is_driven_ = false;
  bool own_thread_drives_ = false;
  bool owes_ = false;                // the last driver left without sending
  bool is_parked_ = false;           // the own thread sleeps until told
  std::uint32_t followers_ = 0;      // callers that wait their turn to drive
  std::uint64_t leads_ = 0;          // how often callers have driven
  Time sleeps_until_ = Time::long_ago();
  Time busy_at_{};
  Time no_spin_until_{};             // the processor is wanted by others
  std::int64_t usual_gap_ps_ = 0;    // between two pieces of work, smoothed: is spinning worth it?
  std::thread thread_;
};

}  // namespace softmrc::udp
