#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "base/prng.h"
#include "collectives/reduce.h"
#include "portable.h"

namespace softmrc::native {
namespace {

using namespace collectives;

constexpr std::size_t most = 1500;  // elements: several blocks of the kernels, and a rest

// A 16-bit float's value, by arithmetic rather than by bits.
double half_value(std::uint16_t bits, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits;
  const int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = bits >> 15 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return fraction ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

// Whether `result` is the nearest 16-bit float to `exact`, which has more digits than any tie between two of them
// needs.
bool is_nearest(std::uint16_t result, float exact, int exponent_bits) {
  if (std::isnan(exact)) return std::isnan(half_value(result, exponent_bits));
  if ((result >> 15 == 1) != std::signbit(exact)) return false;
  const std::uint16_t infinity = static_cast<std::uint16_t>(((1 << exponent_bits) - 1) << (15 - exponent_bits));
  const std::uint16_t magnitude = result & 0x7FFF;
  const double wanted = std::fabs(static_cast<double>(exact));
  if (std::isinf(exact)) return magnitude == infinity;
  const auto value = [&](int bits) {  // one step beyond the largest stands for infinity, as rounding sees it
    if (bits < infinity) return half_value(static_cast<std::uint16_t>(bits), exponent_bits);
    return 2 * half_value(static_cast<std::uint16_t>(infinity - 1), exponent_bits) -
           half_value(static_cast<std::uint16_t>(infinity - 2), exponent_bits);
  };
  const double below = magnitude ? value(magnitude) - value(magnitude - 1) : 0;
  const double above = magnitude < infinity ? value(magnitude + 1) - value(magnitude) : INFINITY;
  const double error = wanted - value(magnitude);
  const bool is_even = magnitude % 2 == 0;
  return (error >= 0 || (is_even ? -error <= below / 2 : -error < below / 2)) &&
         (error <= 0 || (is_even ? error <= above / 2 : error < above / 2));
}

template <typename T>
T one(ReduceOp op, T a, T b) {
  using U = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;
  const U x = static_cast<U>(a), y = static_cast<U>(b);
  if (op == ReduceOp::min) return b < a ? b : a;
  if (op == ReduceOp::max) return a < b ? b : a;
  if (op == ReduceOp::product) {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<std::uint64_t>(x) * y);
    return static_cast<T>(x * y);
  }
  if constexpr (std::is_integral_v<T>) {
    if (op == ReduceOp::band) return static_cast<T>(x & y);
    if (op == ReduceOp::bor) return static_cast<T>(x | y);
    if (op == ReduceOp::bxor) return static_cast<T>(x ^ y);
  }
  return static_cast<T>(x + y);
}

int exponent_bits_of(DType dtype) { return dtype == DType::float16 ? 5 : dtype == DType::bfloat16 ? 8 : 0; }

// Which bits a NaN has is the processor's own affair, so all of them count as one.
template <typename T>
void hash_values(Hash& hash, const std::uint8_t* bytes, std::size_t count, DType dtype) {
  for (std::size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
    bool is_nan = value != value;
    if constexpr (sizeof(T) == 2)
      if (const int bits = exponent_bits_of(dtype))
        is_nan = std::isnan(half_value(static_cast<std::uint16_t>(value), bits));
    if (is_nan) hash.add(std::uint64_t{0xA});
    else hash.add({bytes + i * sizeof(T), sizeof(T)});
  }
}

template <typename T>
void check(DType dtype, ReduceOp op, Combine combine, std::span<const std::uint8_t> noise, Hash& hash) {
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{33}, most}) {
    std::vector<std::uint8_t> out(count * sizeof(T) + 1);
    const std::uint8_t* a = noise.data() + 1;  // nowhere aligned
    const std::uint8_t* b = noise.data() + noise.size() / 2 + 3;
    combine(out.data() + 1, a, b, count);
    for (std::size_t i = 0; i < count; ++i) {
      T x, y, got;
      std::memcpy(&x, a + i * sizeof(T), sizeof(T));
      std::memcpy(&y, b + i * sizeof(T), sizeof(T));
      std::memcpy(&got, out.data() + 1 + i * sizeof(T), sizeof(T));
      const T expected = one<T>(op, x, y);
      const bool both_nan = got != got && expected != expected;
      require(both_nan || std::memcmp(&got, &expected, sizeof(T)) == 0, dtype_names[static_cast<std::size_t>(dtype)]);
    }
    hash_values<T>(hash, out.data() + 1, count, dtype);
  }
}

void check_half(DType dtype, ReduceOp op, Combine combine, std::span<const std::uint8_t> noise, Hash& hash) {
  const int exponent_bits = exponent_bits_of(dtype);
  const std::uint8_t* a = noise.data() + 1;
  const std::uint8_t* b = noise.data() + noise.size() / 2 + 3;
  std::vector<std::uint8_t> out(2 * most);
  combine(out.data(), a, b, most);
  for (std::size_t i = 0; i < most; ++i) {
    std::uint16_t x, y, got;
    std::memcpy(&x, a + 2 * i, 2);
    std::memcpy(&y, b + 2 * i, 2);
    std::memcpy(&got, out.data() + 2 * i, 2);
    const auto wide = [&](std::uint16_t bits) { return static_cast<float>(half_value(bits, exponent_bits)); };
    require(is_nearest(got, one<float>(op, wide(x), wide(y)), exponent_bits),
            "16-bit floats are rounded once, to nearest");
  }
  hash_values<std::uint16_t>(hash, out.data(), most, dtype);
}

template <typename T>
void check_scaling(DType dtype, std::span<const std::uint8_t> noise, Hash& hash) {
  std::vector<std::uint8_t> out(most * sizeof(T));
  if (const Scale scale = scale_for(dtype)) {
    scale(out.data(), noise.data() + 1, most, 0.3);
    hash_values<T>(hash, out.data(), most, dtype);
  }
  if (const Divide divide = divide_for(dtype)) {
    std::memcpy(out.data(), noise.data(), out.size());
    divide(out.data(), most, 7);
    hash_values<T>(hash, out.data(), most, dtype);
  }
}

void check_stream(std::span<const std::uint8_t> noise, Hash& hash) {
  std::vector<std::uint8_t> out(noise.size() + 64);
  for (std::size_t bytes = 0; bytes < 1000; bytes += 7) {
    std::fill(out.begin(), out.end(), std::uint8_t{0xEE});
    best_kernels().stream(out.data() + bytes % 64, noise.data() + bytes % 5, bytes);
    require(std::memcmp(out.data() + bytes % 64, noise.data() + bytes % 5, bytes) == 0, "a stream is a copy");
    require(out[bytes % 64 + bytes] == 0xEE, "and ends where it should");
    hash.add(out);
  }
}

template <typename T>
void check_all(DType dtype, std::span<const std::uint8_t> noise, Hash& hash) {
  for (std::size_t op = 0; op < op_names.size(); ++op) {
    const auto wanted = static_cast<ReduceOp>(op);
    const Combine combine = combine_for(dtype, wanted);
    if (!combine) continue;
    if (exponent_bits_of(dtype)) check_half(dtype, wanted, combine, noise, hash);
    else check<T>(dtype, wanted, combine, noise, hash);
  }
  check_scaling<T>(dtype, noise, hash);
}

}  // namespace

Hash reductions() {
  Hash hash;
  Prng prng(1, "reductions");
  std::vector<std::uint8_t> noise(4 * 8 * most);
  for (auto& byte : noise) byte = static_cast<std::uint8_t>(prng.bits());
  check_all<float>(DType::float32, noise, hash);
  check_all<double>(DType::float64, noise, hash);
  check_all<std::uint16_t>(DType::float16, noise, hash);
  check_all<std::uint16_t>(DType::bfloat16, noise, hash);
  check_all<std::int8_t>(DType::int8, noise, hash);
  check_all<std::int16_t>(DType::int16, noise, hash);
  check_all<std::int32_t>(DType::int32, noise, hash);
  check_all<std::int64_t>(DType::int64, noise, hash);
  check_all<std::uint8_t>(DType::uint8, noise, hash);
  check_all<std::uint16_t>(DType::uint16, noise, hash);
  check_all<std::uint32_t>(DType::uint32, noise, hash);
  check_all<std::uint64_t>(DType::uint64, noise, hash);
  check_stream(noise, hash);
  return hash;
}

}  // namespace softmrc::native
