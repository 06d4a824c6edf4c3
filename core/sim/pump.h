// Keeps a queue pair busy: posts `count` writes of `length` bytes, `depth` at a time, and runs the mesh until they have
// all completed or `limit` passes. The loop that measurements and the demo share, with nothing of Python inside it.
#pragma once

#include <cstdint>

#include "sim/mesh.h"

namespace softmrc::sim {

struct PumpPlan {
  std::uint32_t side = 0;
  std::uint32_t qpn = 0;
  std::uint32_t cq = 0;
  std::uint32_t rkey = 0;
  std::uint64_t remote_va = 0;
  std::uint64_t region_length = 0;       // writes go round this much memory
  const std::uint8_t* source = nullptr;  // null: messages without bytes
  std::uint32_t length = 1 << 20;
  std::uint64_t count = 1;
  std::uint32_t depth = 16;
};

struct PumpResult {
  std::uint64_t completed = 0;
  std::uint64_t failed = 0;
  std::uint64_t out_of_order = 0;
};

PumpResult pump(Mesh& mesh, const PumpPlan& plan, Time limit);

}  // namespace softmrc::sim
