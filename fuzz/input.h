// The fuzzer's bytes, read as numbers; zeros when they run out.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "wire/bytes.h"

namespace softmrc::fuzz {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}
  bool empty() const { return left_ == 0; }
  std::uint8_t byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  std::uint32_t word() { return byte() | byte() << 8 | byte() << 16 | static_cast<std::uint32_t>(byte()) << 24; }
  std::uint64_t longword() { return word() | static_cast<std::uint64_t>(word()) << 32; }
  wire::Bytes bytes(std::size_t wanted) {
    const std::size_t count = std::min(wanted, left_);
    const wire::Bytes taken(data_, count);
    data_ += count;
    left_ -= count;
    return taken;
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

// Runs a program of steps, as far as its bytes go. Returns what libFuzzer wants.
template <typename Program>
int run_steps(Program& program, const Input& in) {
  for (int steps = 0; steps < 64 && !in.empty(); ++steps) program.step();
  return 0;
}

}  // namespace softmrc::fuzz
