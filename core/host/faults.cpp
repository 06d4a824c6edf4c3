#include "host/faults.h"

#include <atomic>
#include <charconv>
#include <chrono>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>

#include "host/host_error.h"
#include "udp/device.h"

namespace softmrc::host {
namespace {

constexpr const char* names =
    "drop, duplicate, reorder, corrupt, mark, trim, delay_us, reorder_delay_us or mtu with =NUMBER, or black_hole";
constexpr double longest_delay_us = 10e6;
constexpr std::uint32_t longest_packet = 65'535;

[[noreturn]] void refuse(std::string_view text, const std::string& expected) {
  throw HostError(proto::Error{proto::Error::Kind::config, "faults", std::string(text), expected});
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(at), text.size());
    if (end > 0) parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

// `word` is where the number stands; `what` is what it is of.
template <typename T>
T number(std::string_view text, T most, std::string_view word, std::string_view what) {
  T value{};
  const auto [to, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || to != text.data() + text.size() || !(value >= 0 && value <= most))
    refuse(word, "0 to " + std::to_string(static_cast<std::uint64_t>(most)) + " for " + std::string(what));
  return value;
}

void set(udp::Faults& faults, std::string_view word) {
  const std::size_t equals = word.find('=');
  const std::string_view name = word.substr(0, equals);
  if (name == "black_hole" && equals == std::string_view::npos) {
    faults.black_hole = true;
    return;
  }
  if (equals == std::string_view::npos) refuse(word, names);
  const std::string_view value = word.substr(equals + 1);
  const auto delay = [&] {
    return Duration{static_cast<std::int64_t>(number(value, longest_delay_us, word, name) * 1e6)};
  };
#define X(share) \
  if (name == #share) return void(faults.share = number(value, 1.0, word, name));
  SOFTMRC_FAULT_SHARES(X)
#undef X
  if (name == "delay_us") faults.delay = delay();
  else if (name == "reorder_delay_us") faults.reorder_delay = delay();
  else if (name == "mtu") faults.mtu = number<std::uint32_t>(value, longest_packet, word, name);
  else refuse(word, names);
}

}  // namespace

std::vector<udp::Faults> parse_faults(std::string_view text, std::size_t planes) {
  std::vector<udp::Faults> found(planes);
  std::string plain;
  for (const char c : text)
    if (c == '\n') plain += ';';
    else if (c != ' ' && c != '\t' && c != '\r') plain += c;
  for (std::string_view clause : split(plain, ';')) {
    const std::size_t colon = clause.find(':');
    std::size_t first = 0, end = planes;
    if (colon != std::string_view::npos) {
      if (planes == 0) refuse(clause, "without planes: this device has none");
      first = number<std::size_t>(clause.substr(0, colon), planes - 1, clause, "the plane before the colon");
      end = first + 1;
      clause.remove_prefix(colon + 1);
    }
    for (const std::string_view word : split(clause, ','))
      for (std::size_t plane = first; plane < end; ++plane) set(found[plane], word);
  }
  return found;
}

namespace {

void assign(udp::Device& device, const std::string& text) {
  const std::vector<udp::Faults> faults = parse_faults(text, device.planes());
  for (std::uint32_t plane = 0; plane < faults.size(); ++plane) device.set_faults(plane, faults[plane]);
}

// Reads a file again and again. People write such files by hand, or scripts do, in the middle of a run: what makes no
// sense changes nothing.
class FaultFileWatcher final : public udp::DeviceService {
 public:
  FaultFileWatcher(udp::Device& device, std::string file)
      : device_(device), file_(std::move(file)), thread_([this] { live(); }) {}
  ~FaultFileWatcher() override { close(); }

  void close() override {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    if (thread_.joinable()) thread_.join();
  }
  // The thread is the parent's.
  void close_after_fork() override {
    if (thread_.joinable()) thread_.detach();
  }

 private:
  void live() {
    for (std::string known; !is_over_; std::this_thread::sleep_for(std::chrono::milliseconds(10))) {
      std::ifstream stream(file_, std::ios::binary);
      std::ostringstream text;
      if (stream) text << stream.rdbuf();
      if (text.str() == known) continue;
      known = text.str();
      try {
        assign(device_, known);
      } catch (const HostError&) {}
    }
  }

  udp::Device& device_;
  std::string file_;
  std::atomic<bool> is_over_{false};
  std::mutex mutex_;    // of who closes
  std::thread thread_;  // the last, which uses the others
};

}  // namespace

std::string read_faults(const Environment& environment) { return environment("SOFTMRC_FAULTS"); }

proto::MaybeError check_faults(const std::string& said, std::size_t planes) {
  if (said.size() > 1 && said.starts_with("@")) return std::nullopt;
  try {
    parse_faults(said, planes);
    return std::nullopt;
  } catch (const HostError& error) {
    return proto::refused("SOFTMRC_FAULTS", error.refused->value, error.refused->expected);
  }
}

void set_faults(udp::Device& device, const std::string& said) {
  if (said.starts_with("@")) device.attach(std::make_unique<FaultFileWatcher>(device, said.substr(1)));
  else assign(device, said);
}

}  // namespace softmrc::host
