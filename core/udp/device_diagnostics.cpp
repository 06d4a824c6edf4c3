#include "udp/device_diagnostics.h"

#include <cerrno>
#include <cstring>

#include "udp/device_error.h"

namespace softmrc::udp {

void DeviceDiagnostics::set_up(Lane& lane) {
  lane.set_spin(spin_);
  for (std::uint32_t p = 0; p < faults_.size(); ++p) lane.set_faults(p, faults_[p]);
  lane.set_capture(capture_);
}

void DeviceDiagnostics::close() {
  if (capture_) captured_ = capture_->packets();
  capture_.reset();
}

void DeviceDiagnostics::set_path_mtu(std::uint32_t plane, std::uint32_t bytes) {
  const std::lock_guard lock(lanes_.mutex());
  path_mtus_[plane] = bytes;
}

std::uint32_t DeviceDiagnostics::path_mtu(std::uint32_t plane) {
  const std::lock_guard lock(lanes_.mutex());
  return plane < path_mtus_.size() ? path_mtus_[plane] : 0;
}

void DeviceDiagnostics::set_faults(std::uint32_t plane, const Faults& faults) {
  const std::lock_guard lock(lanes_.mutex());
  faults_[plane] = faults;
  lanes_.for_each([&](Lane& lane) { lane.set_faults(plane, faults); });
}

Faults DeviceDiagnostics::faults(std::uint32_t plane) {
  const std::lock_guard lock(lanes_.mutex());
  return faults_[plane];
}

void DeviceDiagnostics::set_spin(Duration spin) {
  const std::lock_guard lock(lanes_.mutex());
  spin_ = spin;
  lanes_.for_each([spin](Lane& lane) { lane.set_spin(spin); });
}

Duration DeviceDiagnostics::spin() {
  const std::lock_guard lock(lanes_.mutex());
  return spin_;
}

void DeviceDiagnostics::start_capture(const std::string& path, std::uint64_t max_bytes) {
  const std::lock_guard lock(lanes_.mutex());
  if (capture_) throw DeviceError(EBUSY, "a capture to " + capture_path_ + " runs already; stop it first");
  capture_ = std::make_shared<Capture>(path, lanes_.planes(), max_bytes);
  capture_path_ = path;
  lanes_.for_each([this](Lane& lane) { lane.set_capture(capture_); });
}

std::optional<CaptureView> DeviceDiagnostics::capture() {
  const std::lock_guard lock(lanes_.mutex());
  if (!capture_) return std::nullopt;
  return CaptureView{capture_path_, capture_->packets()};
}

std::uint64_t DeviceDiagnostics::stop_capture() {
  const std::lock_guard lock(lanes_.mutex());
  lanes_.for_each([](Lane& lane) { lane.set_capture(nullptr); });
  const std::shared_ptr<Capture> ended = std::move(capture_);
  capture_.reset();
  if (!ended) return captured_;
  captured_ = ended->packets();
  if (const int error = ended->finish())
    throw DeviceError(error, "the capture to " + capture_path_ + " ends early: " + std::strerror(error));
  return captured_;
}

}  // namespace softmrc::udp
