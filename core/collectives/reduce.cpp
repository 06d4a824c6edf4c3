#include "collectives/reduce.h"

#include <algorithm>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace softmrc::collectives {
namespace {

#if defined(__x86_64__)
// Not every compiler lets one ask for this by name.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

}  // namespace

const Kernels& best_kernels() {
#if defined(__x86_64__)
  static const bool has_both = __builtin_cpu_supports("avx2") && has_f16c();
  if (has_both) return avx2::kernels;
#endif
  return plain::kernels;
}

Combine combine_for(DType dtype, ReduceOp op) { return best_kernels().combine(dtype, op); }
Scale scale_for(DType dtype) { return best_kernels().scale(dtype); }
Divide divide_for(DType dtype) { return best_kernels().divide(dtype); }

void Reduction::run(std::uint8_t* out, const std::uint8_t* incoming, const std::uint8_t* local,
                    std::size_t bytes) const {
  if (!scales_incoming && !scales_local) {
    combine(out, incoming, local, bytes / element);
    if (divide_by > 1) divide(out, bytes / element, divide_by);
    return;
  }
  constexpr std::size_t block = 4096;
  alignas(64) std::uint8_t a[block];
  alignas(64) std::uint8_t b[block];
  for (std::size_t at = 0; at < bytes; at += block) {
    const std::size_t n = std::min(block, bytes - at) / element;
    if (scales_incoming) scale(a, incoming + at, n, factor);
    if (scales_local) scale(b, local + at, n, factor);
    combine(out + at, scales_incoming ? a : incoming + at, scales_local ? b : local + at, n);
  }
}

}  // namespace softmrc::collectives
