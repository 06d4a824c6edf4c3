// Asking for memory before it is needed, where more is touched than caches hold.
#pragma once

#include <cstddef>

namespace softmrc {

// The empty statement keeps the call alive: compilers take a function that only prefetches for one that does nothing.
inline void prefetch(const void* at) {
  __builtin_prefetch(at);
  asm volatile("" : : "r"(at));
}

inline void prefetch_bytes(const void* at, std::size_t bytes) {
  const char* line = static_cast<const char*>(at);
  for (std::size_t offset = 0; offset < bytes; offset += 64) prefetch(line + offset);
}

}  // namespace softmrc
