// Element-wise arithmetic: two arrays become one. Vectorised, with a second build of the same code for AVX2 machines.
#pragma once

#include <cstddef>
#include <cstdint>

#include "collectives/types.h"

namespace softmrc::collectives {

// out[i] = a[i] op b[i]. `out` may be `a` or `b`; addresses need no alignment.
using Combine = void (*)(std::uint8_t* out, const std::uint8_t* a, const std::uint8_t* b, std::size_t count);
// out[i] = in[i] * factor, rounded to the type.
using Scale = void (*)(std::uint8_t* out, const std::uint8_t* in, std::size_t count, double factor);
// data[i] /= by; whole numbers lose their fraction.
using Divide = void (*)(std::uint8_t* data, std::size_t count, std::uint32_t by);

// A copy that goes past the caches: for results larger than they are, which are not read soon.
using Stream = void (*)(std::uint8_t* out, const std::uint8_t* in, std::size_t bytes);

// Null where the operation makes no sense for the type. avg and premul_sum combine as sum.
Combine combine_for(DType dtype, ReduceOp op);
Scale scale_for(DType dtype);
Divide divide_for(DType dtype);

// A whole reduction step: scales what comes in or what is here if asked, combines, divides if asked.
struct Reduction {
  Combine combine = nullptr;
  Scale scale = nullptr;
  Divide divide = nullptr;
  std::size_t element = 1;
  double factor = 1;
  bool scales_incoming = false;
  bool scales_local = false;
  std::uint32_t divide_by = 1;

  // `incoming` stands left of `local` where the order could matter.
  void run(std::uint8_t* out, const std::uint8_t* incoming, const std::uint8_t* local, std::size_t bytes) const;
};

// Tables of one build of the kernels.
struct Kernels {
  Combine (*combine)(DType, ReduceOp);
  Scale (*scale)(DType);
  Divide (*divide)(DType);
  Stream stream;
};
namespace plain {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}
// The best one for this processor.
const Kernels& best_kernels();

}  // namespace softmrc::collectives
