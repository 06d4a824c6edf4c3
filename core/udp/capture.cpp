#include "udp/capture.h"

#include <sys/stat.h>
#include <unistd.h>

#include "udp/clock.h"
#include "udp/device_error.h"
#include "udp/private_file.h"

namespace softmrc::udp {
namespace {

// Who writes a capture, which lanes do, must never wait for who reads it.
std::FILE* opened(const std::string& path) {
  const std::string what = "cannot write a capture to " + path;
  std::string why;
  const int descriptor = open_private_file(path, OpenMode::truncate, why);
  if (const int error = errno; descriptor < 0) throw DeviceError(error, what + ": " + why);
  struct stat found{};
  if (fstat(descriptor, &found) != 0 || !S_ISREG(found.st_mode)) {
    close(descriptor);
    throw DeviceError(EINVAL, what + ": it is no regular file, and what reads it could hold up packets");
  }
  std::FILE* const file = fdopen(descriptor, "wb");
  if (!file) {
    close(descriptor);
    fail_with_errno(what);
  }
  return file;
}

}  // namespace

Capture::Capture(const std::string& path, std::uint32_t planes, std::uint64_t max_bytes)
    : file_(opened(path)), max_bytes_(max_bytes) {
  for (std::uint32_t plane = 0; plane < planes; ++plane)
    writer_.add_interface("plane" + std::to_string(plane), wire::mrc_on_any_port, wire::linktype_raw);
  write_out();
}

Capture::~Capture() { write_out(); }

void Capture::write_out() {
  const std::vector<std::uint8_t> bytes = writer_.take();
  if (bytes.empty()) return;
  const bool is_whole = std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) == bytes.size() &&
                        std::fflush(file_.get()) == 0;
  written_ = is_whole ? written_ + bytes.size() : max_bytes_;  // where there is no room left it ends
  if (!is_whole && !error_) error_ = errno;
}

int Capture::finish() {
  const std::lock_guard lock(mutex_);
  write_out();
  return error_;
}

std::size_t Capture::emit_ip(const wire::Route& route, std::uint8_t tos, std::size_t udp_payload) {
  const auto udp_size = static_cast<std::uint32_t>(udp_payload + 8);
  const std::size_t address_size = route.destination.size();
  const std::size_t ip_size = route.is_v4() ? 20 : 40;
  frame_.assign(ip_size + 8, 0);
  std::uint8_t* p = frame_.data();
  if (route.is_v4()) {
    p[0] = 0x45;
    p[1] = tos;
    wire::store16(p + 2, udp_size + 20);
    wire::store32(p + 4, 0x00004000);
    p[8] = 64;
    p[9] = 17;
  } else {
    wire::store32(p, 6u << 28 | static_cast<std::uint32_t>(tos) << 20);
    wire::store16(p + 4, udp_size);
    p[6] = 17;
    p[7] = 64;
  }
  std::memcpy(p + ip_size - 2 * address_size, route.source.bytes.data(), address_size);
  std::memcpy(p + ip_size - address_size, route.destination.bytes.data(), address_size);
  if (route.is_v4()) {
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < ip_size; i += 2) sum += wire::load16(p + i);
    while (sum >> 16) sum = (sum & 0xFFFF) + (sum >> 16);
    wire::store16(p + 10, ~sum & 0xFFFF);
  }
  wire::store16(p + ip_size, route.source_port);
  wire::store16(p + ip_size + 2, route.destination_port);
  wire::store16(p + ip_size + 4, udp_size);
  return ip_size + 8;
}

void Capture::record(std::uint32_t plane, const wire::Route& route, std::uint8_t tos, std::span<const iovec> pieces) {
  const std::lock_guard lock(mutex_);
  if (written_ >= max_bytes_) return;
  std::size_t size = 0;
  for (const iovec& piece : pieces) size += piece.iov_len;
  emit_ip(route, tos, size);
  for (const iovec& piece : pieces) {
    const auto* p = static_cast<const std::uint8_t*>(piece.iov_base);
    frame_.insert(frame_.end(), p, p + piece.iov_len);
  }
  writer_.write(plane, wall_ns(), frame_);
  ++packets_;
  if (writer_.bytes().size() >= 1 << 20) write_out();
}

}  // namespace softmrc::udp
