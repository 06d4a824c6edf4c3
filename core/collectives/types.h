// What elements are, how they are reduced, and which operations there are. The numbers cross to Python and the wire.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace softmrc::collectives {

enum class DType : std::uint8_t {
  float32,
  float64,
  float16,
  bfloat16,
  int8,
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
  boolean
};
constexpr std::array<std::size_t, 13> element_bytes = {4, 8, 2, 2, 1, 2, 4, 8, 1, 2, 4, 8, 1};
constexpr std::array<const char*, 13> dtype_names = {"float32", "float64", "float16", "bfloat16", "int8",
                                                     "int16",   "int32",   "int64",   "uint8",    "uint16",
                                                     "uint32",  "uint64",  "bool"};
constexpr std::size_t size_of(DType dtype) { return element_bytes[static_cast<std::size_t>(dtype)]; }
constexpr bool is_floating(DType dtype) { return dtype <= DType::bfloat16; }

enum class ReduceOp : std::uint8_t { sum, product, min, max, avg, band, bor, bxor, premul_sum };
constexpr std::array<const char*, 9> op_names = {"sum",  "product", "min",  "max",       "avg",
                                                 "band", "bor",     "bxor", "premul_sum"};

enum class Kind : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  reduce,
  gather,
  scatter,
  all_to_all,
  barrier
};
constexpr std::array<const char*, 9> kind_names = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce",
                                                   "gather",     "scatter",        "all_to_all", "barrier"};
// Ways to carry them out: see plan.h for which suits what, and cost.h for which is taken.
enum class Algorithm : std::uint8_t { direct, gathered, doubling, rounds, ring, binomial, binary, chain, grid };
constexpr std::array<const char*, 9> algorithm_names = {"direct",   "gathered", "doubling", "rounds", "ring",
                                                        "binomial", "binary",   "chain",    "grid"};

constexpr bool reduces(Kind kind) { return kind <= Kind::reduce_scatter || kind == Kind::reduce; }

}  // namespace softmrc::collectives
