// A node on real sockets: so many lanes, and what they have in common, which is names for things and no thing that a
// packet needs. Lanes open when the first queue pair comes to live there.
//
// Queue pairs:        number % lanes is the lane.
// Completion queues:  one by name, with a part in every lane that has a queue pair which uses it.
// Peers:              one by name, known to a lane as soon as a queue pair there is connected to it.
// Memory, domains:    the same in every lane.
#pragma once

#include <array>
#include <map>
#include <mutex>
#include <optional>

#include "udp/lane.h"
#include "udp/profiles.h"

namespace softmrc::udp {

constexpr std::uint32_t max_lanes = 64;

struct DeviceConfig : LaneConfig {
  std::uint32_t lanes = 1;
  bool watches_links = true;
};
proto::MaybeError validate(const DeviceConfig& plan);

// What lives with a device, and is to end before it does.
class DeviceService {
 public:
  virtual ~DeviceService() = default;
  // The device is being closed: once this returns, it is no longer asked for anything.
  virtual void close() = 0;
  // In a forked child.
  virtual void close_after_fork() = 0;
};

struct CaptureView {
  std::string path;
  std::uint64_t packets = 0;
};

class Device final : private LaneOwner {
 public:
  // Opens the first lane. The plan must have passed validate(). Throws DeviceError.
  explicit Device(DeviceConfig plan);
  ~Device() override;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // See Lane. Closed is a device of which any lane is.
  void close();
  bool is_closed() const;
  bool is_over() const;
  bool wait_until_over(Duration timeout);
  void stop_lingering();
  void close_after_fork();
  std::string failure();
  // It is told when the device is closed, and goes with it. Before others know of the device.
  void attach(std::unique_ptr<DeviceService> service);

  std::uint32_t lanes() const { return plan_.lanes; }
  std::uint32_t open_lanes() const { return open_; }
  std::uint32_t planes() const { return static_cast<std::uint32_t>(plan_.planes.size()); }
  const DeviceConfig& plan() const { return plan_; }
  Clock& clock() { return clock_; }
  // Opens it if need be.
  Lane& lane(std::uint32_t number);
  // Where this queue pair is, if there is one of that number.
  Lane& lane_of(std::uint32_t qpn) { return *lanes_[qpn % plan_.lanes < open_ ? qpn % plan_.lanes : 0]; }
  // The one with the fewest queue pairs, now or to come, which is opened; if that fails, of those that are open.
  std::uint32_t least_loaded_lane();
  template <typename F>
  void for_each_lane(F f) {
    for (std::uint32_t i = 0; i < open_; ++i) f(*lanes_[i]);
  }

  proto::MaybeError create_qp(std::uint32_t qpn);
  // These name queues and peers by the device's numbers.
  proto::MaybeError modify_init(std::uint32_t qpn, proto::InitAttributes attributes, const ProfileChoice& choice = {});
  proto::MaybeError modify_rtr(std::uint32_t qpn, proto::RtrAttributes attributes, SealKeys* keys = nullptr);
  bool destroy_qp(std::uint32_t qpn);
  proto::MaybeError reduce_mtu(std::uint32_t qpn, std::uint32_t mtu) { return lane_of(qpn).reduce_mtu(qpn, mtu); }
  std::size_t queue_pairs();
  // See Lane.
  void watch_bootstrap(std::uint32_t qpn, int fd, std::string goodbye, std::string received,
                       std::vector<std::uint32_t> cqs) {
    for (std::uint32_t& cq : cqs) cq = part_of_cq(cq, lane_number(qpn));
    lane_of(qpn).watch_bootstrap(qpn, fd, std::move(goodbye), std::move(received), std::move(cqs));
  }
  std::pair<bool, bool> end_gone();

  // What controllers laid down, and which queue pairs use it.
  Profiles& profiles() { return profiles_; }

  // So many, with numbers in a row; the first.
  proto::Domain create_domains(std::uint32_t count);
  proto::Domain create_domain() { return create_domains(1); }
  // False when the key is in use.
  bool add_region(const proto::MemoryRegion& region);
  bool remove_region(std::uint32_t rkey);
  bool reads_from(const std::uint8_t* begin, const std::uint8_t* end);
  std::size_t regions();

  // Numbers of queues and peers are not given twice.
  std::uint32_t create_cq();
  proto::MaybeError destroy_cq(std::uint32_t cq);
  bool has_cq(std::uint32_t cq);
  std::size_t completion_queues();
  // In this lane's engine.
  std::uint32_t part_of_cq(std::uint32_t cq, std::uint32_t lane);
  // Waits until the queue holds something, and takes it. Zero when the time is up, the queue gone or the device closed.
  std::size_t wait(std::uint32_t cq, std::span<proto::Completion> out, Duration timeout);
  std::size_t poll(std::uint32_t cq, std::span<proto::Completion> out);
  // A descriptor that is readable while the queue may hold something.
  int completion_fd(std::uint32_t cq);

  // Refused where a lane knows somebody else there. To be removed as often as it was added.
  proto::MaybeError add_peer(std::vector<PeerPlane> planes, std::uint32_t& peer);
  bool remove_peer(std::uint32_t peer);
  // See Lane: whoever is there becomes a peer of that lane when the first packet comes or goes.
  proto::MaybeError expect_peer(std::uint32_t lane, std::vector<PeerPlane> planes, std::uint32_t& place);
  void expect_seal(std::uint32_t lane, std::uint32_t place, std::uint32_t qpn, std::uint32_t dest_qpn, SealKeys& keys) {
    lanes_[lane]->expect_seal(place, qpn, dest_qpn, keys);
  }
  void forget_peer(std::uint32_t lane, std::uint32_t place) { lanes_[lane]->forget(place); }
  std::size_t expected_seals();
  std::size_t peers();
  // The device's number for whom a lane calls by that number. Who was expected is its lane's peer alone, and has a
  // number that says so.
  std::uint32_t name_of_peer(std::uint32_t lane, std::uint32_t known_as);
  // Empty where there is no such peer.
  std::vector<PeerPlane> planes_of_peer(std::uint32_t peer);
  // One after the other, with tokens that count up; how many of them will be sent, the first that will not ends it.
  std::size_t probe(std::uint32_t peer, std::uint8_t plane, std::span<const std::uint32_t> entropies,
                    std::uint32_t token, proto::TrafficClass traffic_class = proto::TrafficClass::data_no_trim);

  // Events of all lanes, oldest first.
  void take_events(std::vector<proto::Event>& out, std::size_t most);
  int event_fd();
  // The last events again, whether they were taken or not, oldest first. `from` has a number for each lane, from which
  // on they are wanted, and then from which on they will be news. How many there were besides that are forgotten.
  std::uint64_t recent_events(std::vector<std::uint64_t>& from, std::vector<proto::Event>& out);

  // A port is up when its administrator and its link both say so.
  void set_port(std::uint32_t plane, bool is_up);
  // One bit a plane.
  std::uint32_t admin_up() const { return admin_up_; }
  std::uint32_t link_up() const { return link_up_; }

  void set_faults(std::uint32_t plane, const Faults& faults);
  Faults faults(std::uint32_t plane);
  // The largest IP packets that get through where full ones do not, to the peer to which the least does; 0: full ones
  // do, as far as is known. Who asks the peers says so, and when it is true no longer; it is only shown.
  void set_path_mtu(std::uint32_t plane, std::uint32_t bytes);
  std::uint32_t path_mtu(std::uint32_t plane);
  void set_spin(Duration spin);
  Duration spin() {
    const std::lock_guard lock(mutex_);
    return spin_;
  }
  // One at a time.
  void start_capture(const std::string& path, std::uint64_t max_bytes);
  // How many packets the last one holds, whether it is ended by this or was when the device closed. Throws DeviceError
  // where it ended before, for want of room.
  std::uint64_t stop_capture();
  std::optional<CaptureView> capture();

 private:
  struct Queue {
    struct Part {
      std::uint32_t lane = 0;
      std::uint32_t cq = 0;
    };
    std::vector<Part> parts;
    EventCount event_count;
    int fd = -1;
    std::atomic<QueueState> state{QueueState::of_one_lane};
    std::uint32_t turn = 0;  // which part is asked first
    ~Queue();
  };
  struct Peer {
    std::vector<PeerPlane> planes;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> parts;  // lane, and its number there
  };

  std::uint32_t up_ports() const override { return admin_up_ & link_up_; }
  void on_links(std::uint32_t up) override;
  void on_failure() override;
  proto::MaybeError init(proto::Endpoint& engine, Time now, std::uint32_t qpn, const proto::InitAttributes& attributes,
                         bool has_own_paths) override;
  void on_destroyed(std::uint32_t qpn) override { profiles_.release(qpn); }

  proto::MaybeError init_with(proto::Endpoint& engine, Time now, std::uint32_t qpn,
                              const proto::InitAttributes& attributes, const ProfileChoice& choice);
  static proto::MaybeError init_with(proto::Endpoint& engine, Time now, std::uint32_t qpn,
                                     proto::InitAttributes attributes, const Profiles::Assignment& assignment);
  Lane& open_to(std::uint32_t number);
  proto::MaybeError check_peer(const std::vector<PeerPlane>& planes);
  std::uint32_t lane_number(std::uint32_t qpn) const { return qpn % plan_.lanes; }
  std::shared_ptr<Queue> queue(std::uint32_t cq);
  std::uint32_t part_in(Queue& queue, std::uint32_t lane);
  proto::MaybeError part_in(std::uint32_t peer, std::uint32_t lane, std::uint32_t& known_as);
  // From here on, numbers of peers of one lane alone: which one, and what it calls them.
  static constexpr std::uint32_t first_of_lanes = 1u << 24;
  std::optional<std::pair<std::uint32_t, std::uint32_t>> of_lane(std::uint32_t peer) const;
  std::size_t take(Queue& queue, std::span<proto::Completion> out);
  std::uint32_t named(std::uint32_t lane, std::uint32_t known_as) const;

  DeviceConfig plan_;
  Profiles profiles_;
  Clock clock_;
  std::atomic<std::uint32_t> admin_up_{~0u};
  std::atomic<std::uint32_t> link_up_{~0u};
  std::atomic<std::uint32_t> open_{0};
  std::array<std::unique_ptr<Lane>, max_lanes> lanes_;

  std::mutex mutex_;  // for what follows. Whoever has a lane to himself must not ask for it
  bool is_closed_ = false;
  std::map<std::uint32_t, std::shared_ptr<Queue>> queues_;
  std::uint32_t next_queue_ = 0;
  std::map<std::uint32_t, Peer> peers_;
  std::uint32_t next_peer_ = 0;
  std::map<std::uint32_t, proto::MemoryRegion> regions_;
  proto::Domain last_domain_ = 0;
  std::vector<Faults> faults_;
  std::vector<std::uint32_t> path_mtus_;
  std::shared_ptr<Capture> capture_;
  std::string capture_path_;
  std::uint64_t captured_ = 0;
  Duration spin_;
  int event_fd_ = -1;
  std::uint32_t event_turn_ = 0;      // whose events are taken first
  std::unique_ptr<LinkWatch> links_;  // until the first lane reads it
  std::vector<std::unique_ptr<DeviceService>> services_;
};

}  // namespace softmrc::udp
