// What an operator sets on a running device: path MTU, injected faults, polling time, captures.
#include <cerrno>
#include <cstring>

#include "udp/device.h"
#include "udp/device_error.h"

namespace softmrc::udp {

void Device::set_path_mtu(std::uint32_t plane, std::uint32_t bytes) {
  const std::lock_guard lock(mutex_);
  path_mtus_.resize(planes());
  path_mtus_[plane] = bytes;
}

std::uint32_t Device::path_mtu(std::uint32_t plane) {
  const std::lock_guard lock(mutex_);
  return plane < path_mtus_.size() ? path_mtus_[plane] : 0;
}

void Device::set_faults(std::uint32_t plane, const Faults& faults) {
  const std::lock_guard lock(mutex_);
  faults_[plane] = faults;
  for_each_lane([&](Lane& lane) { lane.set_faults(plane, faults); });
}

Faults Device::faults(std::uint32_t plane) {
  const std::lock_guard lock(mutex_);
  return faults_[plane];
}

void Device::set_spin(Duration spin) {
  const std::lock_guard lock(mutex_);
  spin_ = spin;
  for_each_lane([spin](Lane& lane) { lane.set_spin(spin); });
}

void Device::start_capture(const std::string& path, std::uint64_t max_bytes) {
  const std::lock_guard lock(mutex_);
  if (capture_) throw DeviceError(EBUSY, "a capture to " + capture_path_ + " runs already; stop it first");
  capture_ = std::make_shared<Capture>(path, planes(), max_bytes);
  capture_path_ = path;
  for_each_lane([this](Lane& lane) { lane.set_capture(capture_); });
}

std::optional<CaptureView> Device::capture() {
  const std::lock_guard lock(mutex_);
  if (!capture_) return std::nullopt;
  return CaptureView{capture_path_, capture_->packets()};
}

std::uint64_t Device::stop_capture() {
  const std::lock_guard lock(mutex_);
  for_each_lane([](Lane& lane) { lane.set_capture(nullptr); });
  const std::shared_ptr<Capture> ended = std::move(capture_);
  capture_.reset();
  if (!ended) return captured_;
  captured_ = ended->packets();
  if (const int error = ended->finish())
    throw DeviceError(error, "the capture to " + capture_path_ + " ends early: " + std::strerror(error));
  return captured_;
}

}  // namespace softmrc::udp
