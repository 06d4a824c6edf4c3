// The kernels themselves. Included once for each build, inside a separate namespace (SOFTMRC_KERNELS) and with
// internal linkage, so that the linker cannot swap code for one processor into the build for another.
#pragma once

#include <cstring>

#include "collectives/half.h"
#include "collectives/reduce.h"

#if defined(__clang__)
#define SOFTMRC_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define SOFTMRC_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace softmrc::collectives::SOFTMRC_KERNELS {
namespace {

// An element wherever it lies in memory.
template <typename T>
struct __attribute__((packed, may_alias)) Loose {
  T value;
};

struct Sum {
  template <typename T>
  static T of(T a, T b) {
    return static_cast<T>(a + b);
  }
};
struct Product {
  template <typename T>
  static T of(T a, T b) {
    if constexpr (sizeof(T) < sizeof(int)) return static_cast<T>(1u * a * b);  // as int the product could overflow
    else return a * b;
  }
};
struct Min {
  template <typename T>
  static T of(T a, T b) {
    return b < a ? b : a;
  }
};
struct Max {
  template <typename T>
  static T of(T a, T b) {
    return a < b ? b : a;
  }
};
struct Band {
  template <typename T>
  static T of(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct Bor {
  template <typename T>
  static T of(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct Bxor {
  template <typename T>
  static T of(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

template <typename T, typename Op>
void combine(std::uint8_t* out, const std::uint8_t* a, const std::uint8_t* b, std::size_t count) {
  auto* o = reinterpret_cast<Loose<T>*>(out);
  const auto* x = reinterpret_cast<const Loose<T>*>(a);
  const auto* y = reinterpret_cast<const Loose<T>*>(b);
  SOFTMRC_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i) o[i].value = Op::of(x[i].value, y[i].value);
}

// 16-bit floats: through float, a block at a time, each result rounded once.
constexpr std::size_t block = 512;

template <typename Half, typename Op>
void combine_half(std::uint8_t* out, const std::uint8_t* a, const std::uint8_t* b, std::size_t count) {
  float x[block], y[block];
  for (std::size_t at = 0; at < count; at += block) {
    const std::size_t n = count - at < block ? count - at : block;
    Half::widen(x, a + 2 * at, n);
    Half::widen(y, b + 2 * at, n);
    for (std::size_t i = 0; i < n; ++i) x[i] = Op::of(x[i], y[i]);
    Half::narrow(out + 2 * at, x, n);
  }
}

template <typename T>
Combine combine_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
    case ReduceOp::premul_sum: return combine<T, Sum>;
    case ReduceOp::product: return combine<T, Product>;
    case ReduceOp::min: return combine<T, Min>;
    case ReduceOp::max: return combine<T, Max>;
    case ReduceOp::band:
      if constexpr (T(0.5) == 0) return combine<T, Band>;
      break;
    case ReduceOp::bor:
      if constexpr (T(0.5) == 0) return combine<T, Bor>;
      break;
    case ReduceOp::bxor:
      if constexpr (T(0.5) == 0) return combine<T, Bxor>;
      break;
  }
  return nullptr;
}

// Sums wrap like the machine's, so signed types borrow the unsigned ones' arithmetic; only order tells them apart.
template <typename Signed, typename Unsigned>
Combine combine_signed(ReduceOp op) {
  return op == ReduceOp::min || op == ReduceOp::max ? combine_of<Signed>(op) : combine_of<Unsigned>(op);
}

template <typename Half>
Combine combine_half_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
    case ReduceOp::premul_sum: return combine_half<Half, Sum>;
    case ReduceOp::product: return combine_half<Half, Product>;
    case ReduceOp::min: return combine_half<Half, Min>;
    case ReduceOp::max: return combine_half<Half, Max>;
    case ReduceOp::band:
    case ReduceOp::bor:
    case ReduceOp::bxor: break;
  }
  return nullptr;
}

// Truth values are 0 or 1: a sum is "any", a product is "all".
Combine combine_boolean(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::max:
    case ReduceOp::bor: return combine<std::uint8_t, Bor>;
    case ReduceOp::product:
    case ReduceOp::min:
    case ReduceOp::band: return combine<std::uint8_t, Band>;
    case ReduceOp::bxor: return combine<std::uint8_t, Bxor>;
    case ReduceOp::avg:
    case ReduceOp::premul_sum: break;
  }
  return nullptr;
}

Combine combine_table(DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::float32: return combine_of<float>(op);
    case DType::float64: return combine_of<double>(op);
    case DType::float16: return combine_half_of<Float16>(op);
    case DType::bfloat16: return combine_half_of<Bfloat16>(op);
    case DType::int8: return combine_signed<std::int8_t, std::uint8_t>(op);
    case DType::int16: return combine_signed<std::int16_t, std::uint16_t>(op);
    case DType::int32: return combine_signed<std::int32_t, std::uint32_t>(op);
    case DType::int64: return combine_signed<std::int64_t, std::uint64_t>(op);
    case DType::uint8: return combine_of<std::uint8_t>(op);
    case DType::uint16: return combine_of<std::uint16_t>(op);
    case DType::uint32: return combine_of<std::uint32_t>(op);
    case DType::uint64: return combine_of<std::uint64_t>(op);
    case DType::boolean: return combine_boolean(op);
  }
  return nullptr;
}

template <typename T>
void scale(std::uint8_t* out, const std::uint8_t* in, std::size_t count, double factor) {
  auto* o = reinterpret_cast<Loose<T>*>(out);
  const auto* x = reinterpret_cast<const Loose<T>*>(in);
  const T f = static_cast<T>(factor);
  SOFTMRC_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i) o[i].value = x[i].value * f;
}

template <typename Half>
void scale_half(std::uint8_t* out, const std::uint8_t* in, std::size_t count, double factor) {
  float x[block];
  const float f = static_cast<float>(factor);
  for (std::size_t at = 0; at < count; at += block) {
    const std::size_t n = count - at < block ? count - at : block;
    Half::widen(x, in + 2 * at, n);
    for (std::size_t i = 0; i < n; ++i) x[i] *= f;
    Half::narrow(out + 2 * at, x, n);
  }
}

Scale scale_table(DType dtype) {
  switch (dtype) {
    case DType::float32: return scale<float>;
    case DType::float64: return scale<double>;
    case DType::float16: return scale_half<Float16>;
    case DType::bfloat16: return scale_half<Bfloat16>;
    default: return nullptr;
  }
}

template <typename T>
void divide(std::uint8_t* data, std::size_t count, std::uint32_t by) {
  auto* x = reinterpret_cast<Loose<T>*>(data);
  // Small types cannot always hold the divisor.
  if constexpr (T(0.5) == 0 && sizeof(T) < 8) {
    for (std::size_t i = 0; i < count; ++i) x[i].value = static_cast<T>(static_cast<std::int64_t>(x[i].value) / by);
  } else {
    const T d = static_cast<T>(by);
    for (std::size_t i = 0; i < count; ++i) x[i].value = x[i].value / d;
  }
}

template <typename Half>
void divide_half(std::uint8_t* data, std::size_t count, std::uint32_t by) {
  float x[block];
  const float d = static_cast<float>(by);
  for (std::size_t at = 0; at < count; at += block) {
    const std::size_t n = count - at < block ? count - at : block;
    Half::widen(x, data + 2 * at, n);
    for (std::size_t i = 0; i < n; ++i) x[i] /= d;
    Half::narrow(data + 2 * at, x, n);
  }
}

Divide divide_table(DType dtype) {
  switch (dtype) {
    case DType::float32: return divide<float>;
    case DType::float64: return divide<double>;
    case DType::float16: return divide_half<Float16>;
    case DType::bfloat16: return divide_half<Bfloat16>;
    case DType::int8: return divide<std::int8_t>;
    case DType::int16: return divide<std::int16_t>;
    case DType::int32: return divide<std::int32_t>;
    case DType::int64: return divide<std::int64_t>;
    case DType::uint8: return divide<std::uint8_t>;
    case DType::uint16: return divide<std::uint16_t>;
    case DType::uint32: return divide<std::uint32_t>;
    case DType::uint64: return divide<std::uint64_t>;
    case DType::boolean: return nullptr;
  }
  return nullptr;
}

constexpr std::size_t line = 64;

// One line of the caches, to an address that is a multiple of it; the build knows a way past them, or does not.
#if defined(__AVX2__)
inline void stream_line(std::uint8_t* out, const std::uint8_t* in) {
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(in));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(in + 32));
  _mm256_stream_si256(reinterpret_cast<__m256i*>(out), a);
  _mm256_stream_si256(reinterpret_cast<__m256i*>(out + 32), b);
}
inline void end_stream() { _mm_sfence(); }
#elif defined(__aarch64__)
inline void stream_line(std::uint8_t* out, const std::uint8_t* in) {
  const uint8x16x4_t all = vld1q_u8_x4(in);
  asm volatile("stnp %q1, %q2, [%0]\n\tstnp %q3, %q4, [%0, #32]"
               :
               : "r"(out), "w"(all.val[0]), "w"(all.val[1]), "w"(all.val[2]), "w"(all.val[3])
               : "memory");
}
inline void end_stream() {}  // ordered as any other store
#else
inline void stream_line(std::uint8_t* out, const std::uint8_t* in) { std::memcpy(out, in, line); }
inline void end_stream() {}
#endif

void stream(std::uint8_t* out, const std::uint8_t* in, std::size_t bytes) {
  std::size_t at = (line - reinterpret_cast<std::uintptr_t>(out) % line) % line;
  if (bytes <= at + 4 * line) {
    std::memcpy(out, in, bytes);
    return;
  }
  std::memcpy(out, in, at);
  for (; at + line <= bytes; at += line) stream_line(out + at, in + at);
  std::memcpy(out + at, in + at, bytes - at);
  end_stream();
}

}  // namespace

extern const Kernels kernels = {combine_table, scale_table, divide_table, stream};

}  // namespace softmrc::collectives::SOFTMRC_KERNELS
