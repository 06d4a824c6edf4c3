// Counts what a loaded library allocates, so that a test can say "nothing per packet" and a bench "so many bytes per
// queue pair". The library itself knows nothing of it: where it calls operator new and delete, functions that count
// are put in their place on request. The rest of the process keeps its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace softmrc::benchmarks {

// From now on, what the library that was loaded from this file allocates and frees is counted. Returns how many of its
// references were replaced; none: it is not loaded, or brings its own operators.
std::size_t watch_allocations(const char* path);

struct AllocationCount {
  std::uint64_t count = 0;  // so far
  std::int64_t bytes = 0;   // held now, as far as they were allocated under watch
};
AllocationCount allocations();

}  // namespace softmrc::benchmarks
