// A pcapng file of what a device sends and receives. The kernel keeps the real IP and UDP headers to itself, so these
// are rebuilt from what the socket says; the payload is as it was on the wire.
#pragma once

#include <atomic>
#include <cstdio>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>

#include "udp/clock.h"
#include "wire/pcapng.h"
#include "wire/route.h"

namespace softmrc::udp {

class Capture {
 public:
  // Throws DeviceFailure when the file cannot be opened.
  Capture(const Clock& clock, const std::string& path, std::uint32_t planes, std::uint64_t most_bytes);
  ~Capture();

  void record(Time at, std::uint32_t plane, const wire::Route& route, std::uint8_t tos,
              std::initializer_list<wire::Bytes> pieces);
  std::uint64_t packets() const { return packets_; }

 private:
  void write_out();
  std::size_t emit_ip(const wire::Route& route, std::uint8_t tos, std::size_t udp_payload);

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  const Clock& clock_;
  std::mutex mutex_;           // several lanes may write
  std::unique_ptr<std::FILE, Close> file_;
  wire::PcapngWriter writer_;
  std::uint64_t written_ = 0;
  std::uint64_t most_bytes_;
  std::atomic<std::uint64_t> packets_ = 0;
  std::vector<std::uint8_t> frame_;
};

}  // namespace softmrc::udp
