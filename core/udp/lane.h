// One thread of a device: its own sockets on every plane, an engine, and a thread that moves packets between
// them. It shares nothing with other lanes while packets move; a queue pair lives in one lane, and its peer knows that
// lane's ports only.
//
// One thread at a time drives (see leader_follower.h): it receives, lets the engine work, sends, and sleeps when there
// is nothing to do. A caller that posts sends by itself, too. The engine is under one mutex, held for a batch at a
// time.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "proto/driver.h"
#include "proto/endpoint.h"
#include "proto/qp_factory.h"
#include "udp/bootstrap_watch.h"
#include "udp/clock.h"
#include "udp/event_count.h"
#include "udp/flight_recorder.h"
#include "udp/leader_follower.h"
#include "udp/link_watch.h"
#include "udp/peer_book.h"
#include "udp/plane.h"
#include "udp/pmtu_probe.h"
#include "udp/profiles.h"
#include "udp/protector_table.h"
#include "udp/receiver.h"
#include "udp/sender.h"
#include "udp/spin.h"

namespace softmrc::udp {

struct LaneConfig {
  std::vector<PlaneConfig> planes;
  proto::EndpointConfig engine;
  SenderConfig sender;
  SealConfig seal;
  std::uint32_t port_burst = 0;      // packets offered to a plane before it is checked for room again; 0: any
  Duration spin = microseconds(50);  // how long to look at idle sockets before sleeping
};

// The device, as its lanes know it.
class LaneOwner {
 public:
  virtual ~LaneOwner() = default;
  // One bit a port, as its administrator and its link say at this moment.
  virtual std::uint32_t up_ports() const = 0;
  // From the lane that reads the link watch, which has itself to itself: nothing may be waited for.
  virtual void on_links(std::uint32_t up) = 0;
  // One of our own promises broke, and the lane has ended. Nothing is held.
  virtual void on_failure() = 0;
};

// Whether a queue's completions all come from one lane, so that who waits for them can drive it.
enum class QueueState : std::uint8_t { of_one_lane, of_several, gone };

class Lane final : public proto::Driver, public proto::QpFactory {
 public:
  // Opens all sockets. Throws DeviceError. Where there is a link watch, this lane reads it;
  // `links_up` is what was known before.
  Lane(LaneConfig plan, const Clock& clock, LaneOwner& owner, Profiles& profiles, std::uint32_t links_up,
       std::unique_ptr<LinkWatch> links = nullptr);
  ~Lane() override;
  // Starts the thread, when all is set: setting more would wait for it. Throws DeviceError.
  void begin();

  // Lets callers go, and their memory: nothing is read from it or lands in it afterwards. What is owed is sent, and the
  // lane's own thread stays a little to answer peers that missed it.
  void close();
  bool is_closed() const override { return closed_; }
  // Whether that is over, too, and the sockets are closed.
  bool is_over() const { return is_over_; }
  // False when the time is up.
  bool wait_until_over(Duration timeout);
  // Stops answering.
  void stop_lingering();
  // In a forked child: lets go of its copies of the sockets, or the parent's ports would outlive the parent.
  void close_after_fork();

  // Runs `f(engine, now)` while nothing else touches the engine. It must not wait for anything that a caller may hold.
  template <typename F>
  auto with_engine(F f) {
    const LeaderFollower::EngineLock engine_lock(leader_follower_);
    return f(engine_, clock_.now());
  }
  // The same for calls that give the engine something to send: it leaves before this returns, unless another thread
  // drives and is awake, which then sends it with whatever else there is.
  template <typename F>
  auto with_engine_and_send(F f) {
    const LeaderFollower::EngineLock engine_lock(leader_follower_);
    auto result = f(engine_, clock_.now());
    if (closed_) return result;
    if (leader_follower_.is_driven() && sleeps_until_ == Time::long_ago()) {
      has_posts_ = true;
      return result;
    }
    transmit();
    leader_follower_.on_post();
    wake_sleeper_if_late();
    notify();
    return result;
  }

  void run(proto::FunctionRef function) override;
  void run_and_send(proto::FunctionRef function) override;
  void send_pending() override;

  // Waits until the queue holds something, and takes it. Zero when the time is up, the queue is no longer of this lane
  // alone, or the lane is closed.
  std::size_t wait(std::uint32_t cq, const std::atomic<QueueState>& state, std::span<proto::Completion> out,
                   Duration timeout);
  bool wait_until(const std::function<bool()>& is_done, Duration timeout) override;
  void add_progress_handler(proto::ProgressHandler* progress_handler) override;
  void remove_progress_handler(proto::ProgressHandler* progress_handler) override;
  // No lock is taken unless the driver sleeps.
  void request_progress() override {
    progress_requested_ = true;
    if (is_asleep_) wake();
  }
  // Who is notified when this queue holds something; the descriptor becomes readable. Null: none.
  void set_comp_channel(std::uint32_t cq, EventCount* event_count, int fd);
  // The same for events.
  void set_event_fd(int fd);
  // Those that wait here look again.
  void wake_waiters();
  // With the engine to oneself: what waiters wait for may be there although the engine has nothing new; the descriptor
  // of a queue becomes readable, or is so no longer (whether it was).
  void look_again();
  void set_readable(std::uint32_t cq);
  bool clear_readable(std::uint32_t cq);
  bool is_peer_gone(std::uint32_t qpn) const { return bootstrap_watch_.state(qpn) == PeerState::gone; }

  // The owner's ports changed: apply that at once, or as soon as this lane drives next.
  void apply_port_state();
  void apply_port_state_soon();

  // INIT to RTR, encrypted from the first packet on where there are keys.
  // Keys are used up, unless it is refused.
  proto::MaybeError modify_rtr(std::uint32_t qpn, const proto::RtrAttributes& attributes, SealKeys* keys);
  // Whether a queue pair to the peer there may be encrypted, or not be: as its working ones are.
  proto::MaybeError check_sealed(const std::vector<PeerPlane>& planes, bool is_to_be);
  bool destroy_qp(std::uint32_t qpn);
  // See BootstrapWatch: the queue pair ends soon after its peer is known to be gone. Throws DeviceError.
  void watch_bootstrap(std::uint32_t qpn, int fd, std::string goodbye, std::string received,
                       std::vector<std::uint32_t> cqs);
  PeerState peer_state(std::uint32_t qpn);
  // Queue pairs whose peers are gone end now: whether there were any, and whether some peer is unconfirmed.
  std::pair<bool, bool> end_gone();
  // A smaller payload of full packets, before anything was sent either way.
  proto::MaybeError reduce_mtu(std::uint32_t qpn, std::uint32_t mtu);

  // The same planes are the same peer, which then has to be removed as often as it was added.
  proto::MaybeError check_peer(const std::vector<PeerPlane>& planes);
  proto::MaybeError add_peer(std::vector<PeerPlane> planes, std::uint32_t& peer);
  // Empty where no peer has that number.
  std::vector<PeerPlane> planes_of_peer(std::uint32_t peer);
  bool remove_peer(std::uint32_t peer);
  // A peer is expected there: it becomes one with its first packet, or the first to it, and is only listed until then.
  // The same planes are the same place, which then has to be forgotten as often as it was expected.
  proto::MaybeError expect(std::vector<PeerPlane> planes, std::uint32_t& place);
  void forget(std::uint32_t place);
  std::uint32_t admit(std::uint32_t place) override;
  std::uint32_t place_of(std::uint32_t peer) const override;
  // Which sizes of packets get through to who is there, plane by plane: asked as often as the caller likes, by
  // another socket each time. `answered` has the largest UDP payload that was answered on each plane.
  std::uint32_t start_pmtu_discovery(std::vector<PeerPlane> planes);
  void send_pmtu_probes(std::uint32_t discovery, std::span<const std::uint32_t> sizes);
  std::vector<std::uint32_t> pmtu_results(std::uint32_t discovery);
  void end_pmtu_discovery(std::uint32_t discovery);
  // The keys of a queue pair there that its progress handler connects, or the other end speaks to first; used up.
  void expect_seal(std::uint32_t place, std::uint32_t qpn, std::uint32_t dest_qpn, SealKeys& keys);
  // Of queue pairs that are not there yet.
  std::size_t expected_seals();
  proto::MaybeError init(proto::Endpoint& engine, Time now, std::uint32_t qpn, const proto::InitAttributes& attributes,
                         bool has_own_paths) override {
    return profiles_.init(engine, now, qpn, attributes, {has_own_paths ? std::nullopt : std::optional(0u), 0});
  }
  proto::MaybeError connect(proto::Endpoint& engine, Time now, std::uint32_t qpn,
                            const proto::RtrAttributes& attributes) override;
  void destroy(proto::Endpoint& engine, Time now, std::uint32_t qpn) override;

  // What stopped the driver, if one of our own promises broke; else empty.
  std::string failure();
  const proto::Endpoint& engine() const { return engine_; }
  Time now() const override { return clock_.now(); }
  // Only with the engine to oneself.
  std::vector<Plane>& planes() { return planes_; }
  const LaneStats& stats() const { return stats_; }
  const FlightRecorder& recorder() const { return recorder_; }
  const LaneConfig& plan() const { return plan_; }

  void set_spin(Duration spin);
  bool has_gso();
  void set_capture(const std::shared_ptr<Capture>& capture);
  void set_faults(std::uint32_t plane, const Faults& faults);

 private:
  using Lock = LeaderFollower::Lock;
  struct CompletionChannel {
    std::uint32_t cq = 0;
    EventCount* event_count = nullptr;
    int fd = -1;
  };

  static std::vector<Plane> open_planes(const LaneConfig& plan);
  void open_descriptors();
  void close_descriptors();
  void live();

  template <typename Done>
  void lead_until(Lock& lock, Time until, Done done);
  template <typename Done>
  void drive_safely(Lock& lock, Time until, Done done);
  template <typename Done>
  void drive(Lock& lock, Time until, Done done);
  bool progress();
  void poll_sockets(Duration timeout);
  bool process_input();
  void receive_ready();
  void receive_from(std::uint32_t plane);
  void deliver(std::uint32_t plane, const GroBatch& in, Time now);
  void handle_pmtu_probe(std::uint32_t plane, std::uint32_t peer, wire::Bytes packet, Time now);
  void send_pmtu_probe(std::uint32_t plane, std::uint32_t socket, const PeerPlane& to, const PmtuProbe& probe,
                       std::size_t bytes, Time now);
  void transmit();
  void gather(Time now);
  std::uint32_t free_ports();
  void watch_room(std::uint32_t plane);
  void read_links();
  void ask_again_for_links();
  void read_bootstraps(Time now);
  void end_bootstrap_watch();
  void apply_ports(Time now);
  void read_errors();
  proto::MaybeError introduce(std::vector<PeerPlane> planes, std::uint32_t& peer);
  std::uint32_t peer_at(const sockaddr_storage& from);
  proto::MaybeError connect_as(Time now, std::uint32_t qpn, const proto::RtrAttributes& attributes, bool is_sealed);
  proto::MaybeError check_sealed(std::uint32_t peer, bool is_to_be);
  proto::MaybeError check_new(const std::vector<PeerPlane>& planes, std::uint32_t same);
  void forget_peers();
  void linger(Lock& lock);
  void notify();
  void wake_sleeper_if_late();
  void wake();
  void wake_comp_channels();
  Time next_deadline();

  LaneConfig plan_;
  Clock clock_;
  LaneOwner& owner_;
  Profiles& profiles_;  // of queue pairs
  proto::Endpoint engine_;
  std::vector<Plane> planes_;
  PeerBook peers_;
  // Places that are expected: how often, and as whom the engine knows them, if it does.
  struct Expected {
    std::uint32_t times = 0;
    std::uint32_t peer = proto::no_peer;
  };
  PeerBook places_;
  std::vector<Expected> expected_;
  std::unique_ptr<LinkWatch> links_;  // null: another lane reads it
  std::uint32_t links_up_;            // as far as it knows
  std::vector<LinkState> link_changes_;
  bool links_unknown_ = false;  // the system could not answer all queries, which are repeated
  bool links_missed_ = false;   // messages of the kernel's were lost, and the state of every link is yet to be queried
  Time asks_for_links_at_ = Time::never();
  Receiver receiver_;
  ProtectorTable protectors_;
  Sender sender_;
  BootstrapWatch bootstrap_watch_;
  LaneStats stats_;
  FlightRecorder recorder_;
  std::vector<PmtuDiscovery> discoveries_;
  std::uint32_t last_discovery_ = 0;
  std::vector<proto::ProgressHandler*> progress_handlers_;

  int epoll_fd_ = -1;
  int wake_fd_ = -1;
  std::mutex wake_mutex_;  // others wake without the engine's lock, and its number may be another's once it is closed
  std::vector<CompletionChannel> comp_channels_;
  int event_fd_ = -1;
  std::uint32_t ready_planes_ = 0;  // found readable by the last look
  std::uint32_t turns_in_batch_ = 0;
  std::uint64_t strangers_ = 0;    // packets of theirs so far, on all planes
  bool is_only_refusing_ = false;  // whatever came in this turn was refused
  std::uint32_t rewritable_ = 0;   // found to have room again
  std::uint32_t erring_ = 0;       // planes with a socket that has errors to report
  bool links_ready_ = false;
  bool bootstraps_ready_ = false;
  std::uint64_t peers_forgotten_ = 0;
  std::atomic<bool> has_new_ports_{false};
  std::uint32_t ports_ = ~0u;  // as the engine has them

  LeaderFollower leader_follower_;
  Spin spin_;
  std::atomic<bool> closed_{false};
  std::atomic<bool> lets_sockets_go_{false};  // or has
  std::atomic<bool> is_over_{false};
  bool lingering_stopped_ = false;
  bool tx_pending_ = false;  // the last driver left without sending
  bool has_posts_ = false;   // other threads left something for the driver to send
  std::atomic<bool> progress_requested_{false};
  std::atomic<bool> is_asleep_{false};  // request_progress must wake the driver
  std::string failure_;
  Time sleeps_until_ = Time::long_ago();
  std::thread thread_;
};

}  // namespace softmrc::udp
