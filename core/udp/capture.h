// A pcapng file of what a device sends and receives. The kernel keeps the real IP and UDP headers to itself, so these
// are rebuilt from what the socket says; the payload is as it was on the wire.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "wire/pcapng.h"
#include "wire/route.h"

namespace softmrc::udp {

class Capture {
 public:
  // Throws DeviceError when the file cannot be opened.
  Capture(const std::string& path, std::uint32_t planes, std::uint64_t max_bytes);
  ~Capture();

  // As of now.
  void record(std::uint32_t plane, const wire::Route& route, std::uint8_t tos, std::span<const iovec> pieces);
  std::uint64_t packets() const { return packets_; }
  // Nothing more comes. Why it holds less than it should, as an error number; 0 where it is whole.
  int finish();

 private:
  void write_out();
  std::size_t emit_ip(const wire::Route& route, std::uint8_t tos, std::size_t udp_payload);

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  std::mutex mutex_;  // several lanes may write
  std::unique_ptr<std::FILE, Close> file_;
  wire::PcapngWriter writer_;
  std::uint64_t written_ = 0;
  int error_ = 0;
  std::uint64_t max_bytes_;
  std::atomic<std::uint64_t> packets_ = 0;
  std::vector<std::uint8_t> frame_;
};

}  // namespace softmrc::udp
