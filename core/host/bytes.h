// The messages of a handshake over TCP, as bytes: whole numbers, big-endian. The reader checks every length.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "host/host_error.h"

namespace softmrc::host {

using Bytes = std::vector<std::uint8_t>;

class ByteWriter {
 public:
  template <typename T>
  void number(T value) {
    for (int shift = 8 * (static_cast<int>(sizeof value) - 1); shift >= 0; shift -= 8)
      bytes_.push_back(static_cast<std::uint8_t>(value >> shift));
  }
  void raw(std::span<const std::uint8_t> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  Bytes take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  template <typename T>
  T number() {
    T value = 0;
    for (const std::uint8_t byte : raw(sizeof(T))) value = static_cast<T>(value << 8 | byte);
    return value;
  }
  std::span<const std::uint8_t> raw(std::size_t size) {
    if (size > bytes_.size()) throw HostError("said less than it should have");
    const auto taken = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    return taken;
  }
  std::span<const std::uint8_t> rest() { return raw(bytes_.size()); }
  void end() const {
    if (!bytes_.empty()) throw HostError("said more than it should have");
  }

 private:
  std::span<const std::uint8_t> bytes_;
};

}  // namespace softmrc::host
