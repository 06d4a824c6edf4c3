// What must be the same on every processor, checked without Python. Each part checks itself against something simpler
// and returns a hash of all it computed; the hashes of two machines can then be compared.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>

namespace softmrc::native {

// FNV-1a.
class Hash {
 public:
  void add(std::span<const std::uint8_t> bytes) {
    for (const std::uint8_t byte : bytes) value_ = (value_ ^ byte) * 0x100000001B3u;
  }
  void add(std::uint64_t number) {
    for (int i = 0; i < 8; ++i) value_ = (value_ ^ (number >> 8 * i & 0xFF)) * 0x100000001B3u;
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xCBF29CE484222325u;
};

// For tests: what does not hold ends the program.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::exit(1);
}

// CRC-32 by every method, and ICRC, compared with a bit-by-bit division.
Hash checksums();
// Every operation on every type, by the best kernels here, compared with one element at a time.
Hash reductions();
// A congestion window after every fact of a long list, to its last digit: fused operations would show here first.
Hash windows();
// Seeds of two endpoints with faults: every byte arrives, and the hash is that of their traces.
Hash pairs();
// Golden packets and expansions of EVs, one a line, as tools/portable.py writes them.
Hash vectors(std::FILE* lines);
// Two devices on loopback, through this machine's kernel. What arrives is the same anywhere; how it gets there is not.
Hash sockets();

}  // namespace softmrc::native
