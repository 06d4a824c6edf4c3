#include "udp/device_events.h"

#include <algorithm>

#include "udp/event_fd.h"

namespace softmrc::udp {
namespace {

void sort_by_time(std::vector<proto::Event>& events) {
  std::stable_sort(events.begin(), events.end(),
                   [](const proto::Event& a, const proto::Event& b) { return a.at_ps < b.at_ps; });
}

}  // namespace

DeviceEvents::~DeviceEvents() {
  if (fd_ >= 0) ::close(fd_);
}

void DeviceEvents::wake_all() { make_readable(fd_); }

// Every lane has the same ports; it is reported once.
void DeviceEvents::add(std::uint32_t lane, proto::Event event, std::vector<proto::Event>& out) const {
  if (event.type == proto::EventType::port_state && lane > 0) return;
  if (event.type == proto::EventType::peer_ports) event.code = peers_.name_of(lane, event.code);
  out.push_back(event);
}

void DeviceEvents::take(std::vector<proto::Event>& out, std::size_t most) {
  const std::lock_guard lock(lanes_.mutex());
  make_unreadable(fd_);
  bool has_more = false;
  const std::uint32_t first = turn_++;
  for (std::uint32_t k = 0; k < lanes_.open_lanes(); ++k) {
    const std::uint32_t i = (first + k) % lanes_.open_lanes();
    lanes_[i].with_engine([&](proto::Endpoint& e, Time) {
      proto::Event event;
      while (out.size() < most && e.poll_event(event)) add(i, event, out);
      has_more |= e.events_waiting() > 0;
    });
  }
  if (lanes_.is_closed() || has_more) make_readable(fd_);
  sort_by_time(out);
}

std::uint64_t DeviceEvents::recent(std::vector<std::uint64_t>& from, std::vector<proto::Event>& out) {
  const std::lock_guard lock(lanes_.mutex());
  std::uint64_t lost = 0;
  from.resize(lanes_.open_lanes(), 0);
  for (std::uint32_t i = 0; i < from.size(); ++i) {
    std::vector<proto::Event> found;
    lanes_[i].with_engine([&](proto::Endpoint&, Time) {
      lost += lanes_[i].recorder().copy(from[i], found);
      from[i] = lanes_[i].recorder().next();
    });
    for (const proto::Event& event : found) add(i, event, out);
  }
  sort_by_time(out);
  return lost;
}

int DeviceEvents::fd() {
  const std::lock_guard lock(lanes_.mutex());
  if (fd_ < 0) {
    fd_ = new_event_fd(lanes_.is_closed());
    lanes_.for_each([this](Lane& lane) { lane.set_event_fd(fd_); });
  }
  return fd_;
}

}  // namespace softmrc::udp
