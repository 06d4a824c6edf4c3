// A node on real sockets: so many lanes, and what they have in common, each part in a separate class. Lanes open when
// the first queue pair comes to live there; number % lanes is the lane of a queue pair.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "udp/completion_queues.h"
#include "udp/device_diagnostics.h"
#include "udp/device_events.h"
#include "udp/device_memory.h"
#include "udp/device_peers.h"
#include "udp/lane_set.h"
#include "udp/profiles.h"

namespace softmrc::udp {

// What lives with a device, and is to end before it does.
class DeviceService {
 public:
  virtual ~DeviceService() = default;
  // The device is being closed: once this returns, it is no longer asked for anything.
  virtual void close() = 0;
  // In a forked child.
  virtual void close_after_fork() = 0;
};

class Device {
 public:
  // Opens the first lane. The plan must have passed validate(). Throws DeviceError.
  explicit Device(DeviceConfig plan);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // See Lane. Closed is a device of which any lane is.
  void close();
  bool is_closed() const { return lanes_.is_closed(); }
  bool is_over() const { return lanes_.is_over(); }
  bool wait_until_over(Duration timeout) { return lanes_.wait_until_over(timeout); }
  void stop_lingering() { lanes_.stop_lingering(); }
  void close_after_fork();
  std::string failure() { return lanes_.failure(); }
  // It is closed with the device, and destroyed with it. Before others know of the device.
  void attach(std::unique_ptr<DeviceService> service);

  std::uint32_t lanes() const { return lanes_.size(); }
  std::uint32_t open_lanes() const { return lanes_.open_lanes(); }
  std::uint32_t planes() const { return lanes_.planes(); }
  const DeviceConfig& plan() const { return lanes_.plan(); }
  Clock& clock() { return lanes_.clock(); }
  // Opens it if need be.
  Lane& lane(std::uint32_t number);
  Lane& lane_of(std::uint32_t qpn) { return lanes_.lane_of(qpn); }
  std::uint32_t least_loaded_lane() { return lanes_.least_loaded(); }
  template <typename F>
  void for_each_lane(F f) {
    lanes_.for_each(f);
  }

  proto::MaybeError create_qp(std::uint32_t qpn);
  // These name queues and peers by the device's numbers.
  proto::MaybeError modify_init(std::uint32_t qpn, proto::InitAttributes attributes, const ProfileChoice& choice = {});
  proto::MaybeError modify_rtr(std::uint32_t qpn, const proto::RtrAttributes& attributes, SealKeys* keys = nullptr) {
    return peers_.connect(qpn, attributes, keys);
  }
  bool destroy_qp(std::uint32_t qpn);
  proto::MaybeError reduce_mtu(std::uint32_t qpn, std::uint32_t mtu) { return lane_of(qpn).reduce_mtu(qpn, mtu); }
  std::size_t queue_pairs() {
    return lanes_.sum([](proto::Endpoint& e) { return e.queue_pairs(); });
  }
  // See Lane.
  void watch_bootstrap(std::uint32_t qpn, int fd, std::string goodbye, std::string received,
                       std::vector<std::uint32_t> cqs) {
    for (std::uint32_t& cq : cqs) cq = part_of_cq(cq, lanes_.number_of(qpn));
    lane_of(qpn).watch_bootstrap(qpn, fd, std::move(goodbye), std::move(received), std::move(cqs));
  }
  std::pair<bool, bool> end_gone();

  // What controllers laid down, and which queue pairs use it.
  Profiles& profiles() { return profiles_; }

  // See DeviceMemory.
  proto::Domain create_domains(std::uint32_t count) { return memory_.create_domains(count); }
  proto::Domain create_domain() { return create_domains(1); }
  bool add_region(const proto::MemoryRegion& region) { return memory_.add(region); }
  bool remove_region(std::uint32_t rkey) { return memory_.remove(rkey); }
  bool reads_from(const std::uint8_t* begin, const std::uint8_t* end) { return memory_.reads_from(begin, end); }
  std::size_t regions() { return memory_.regions(); }

  // See CompletionQueues.
  std::uint32_t create_cq() { return cqs_.create(); }
  proto::MaybeError destroy_cq(std::uint32_t cq) { return cqs_.destroy(cq); }
  bool has_cq(std::uint32_t cq) { return cqs_.contains(cq); }
  std::size_t completion_queues() { return cqs_.size(); }
  // In this lane's engine.
  std::uint32_t part_of_cq(std::uint32_t cq, std::uint32_t lane) { return cqs_.part_of(cq, lane).value(); }
  std::size_t wait(std::uint32_t cq, std::span<proto::Completion> out, Duration timeout) {
    return cqs_.wait(cq, out, timeout);
  }
  std::size_t poll(std::uint32_t cq, std::span<proto::Completion> out) { return cqs_.poll(cq, out); }
  int completion_fd(std::uint32_t cq) { return cqs_.fd(cq); }

  // See DevicePeers.
  proto::MaybeError add_peer(std::vector<PeerPlane> planes, std::uint32_t& peer) {
    return peers_.add(std::move(planes), peer);
  }
  bool remove_peer(std::uint32_t peer) { return peers_.remove(peer); }
  proto::MaybeError expect_peer(std::uint32_t lane, std::vector<PeerPlane> planes, std::uint32_t& place) {
    return peers_.expect(lane, std::move(planes), place);
  }
  void expect_seal(std::uint32_t lane, std::uint32_t place, std::uint32_t qpn, std::uint32_t dest_qpn, SealKeys& keys) {
    lanes_[lane].expect_seal(place, qpn, dest_qpn, keys);
  }
  void forget_peer(std::uint32_t lane, std::uint32_t place) { lanes_[lane].forget(place); }
  std::size_t expected_seals();
  std::size_t peers() {
    return lanes_.sum([](proto::Endpoint& e) { return e.peers(); });
  }
  std::uint32_t name_of_peer(std::uint32_t lane, std::uint32_t known_as);
  std::vector<PeerPlane> planes_of_peer(std::uint32_t peer) { return peers_.planes_of(peer); }
  std::size_t probe(std::uint32_t peer, std::uint8_t plane, std::span<const std::uint32_t> entropies,
                    std::uint32_t token, proto::TrafficClass traffic_class = proto::TrafficClass::data_no_trim) {
    return peers_.probe(peer, plane, entropies, token, traffic_class);
  }

  // See DeviceEvents.
  void take_events(std::vector<proto::Event>& out, std::size_t most) { events_.take(out, most); }
  int event_fd() { return events_.fd(); }
  std::uint64_t recent_events(std::vector<std::uint64_t>& from, std::vector<proto::Event>& out) {
    return events_.recent(from, out);
  }

  void set_port(std::uint32_t plane, bool is_up) { lanes_.set_port(plane, is_up); }
  std::uint32_t admin_up() const { return lanes_.admin_up(); }
  std::uint32_t link_up() const { return lanes_.link_up(); }

  // See DeviceDiagnostics.
  void set_faults(std::uint32_t plane, const Faults& faults) { diagnostics_.set_faults(plane, faults); }
  Faults faults(std::uint32_t plane) { return diagnostics_.faults(plane); }
  void set_path_mtu(std::uint32_t plane, std::uint32_t bytes) { diagnostics_.set_path_mtu(plane, bytes); }
  std::uint32_t path_mtu(std::uint32_t plane) { return diagnostics_.path_mtu(plane); }
  void set_spin(Duration spin) { diagnostics_.set_spin(spin); }
  Duration spin() { return diagnostics_.spin(); }
  void start_capture(const std::string& path, std::uint64_t max_bytes) { diagnostics_.start_capture(path, max_bytes); }
  std::uint64_t stop_capture() { return diagnostics_.stop_capture(); }
  std::optional<CaptureView> capture() { return diagnostics_.capture(); }

 private:
  void set_up(Lane& lane);
  void on_failure();

  Profiles profiles_;
  LaneSet lanes_;
  CompletionQueues cqs_;
  DevicePeers peers_;
  DeviceMemory memory_;
  DeviceEvents events_;
  DeviceDiagnostics diagnostics_;
  std::vector<std::unique_ptr<DeviceService>> services_;
};

}  // namespace softmrc::udp
