// Counts what the core allocates, so that a test can say "nothing per packet" and a bench "so many bytes per queue
// pair". The module is linked so that it binds these operators to itself; the rest of the process keeps its own.
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "bind/bind.h"

namespace {

constinit std::atomic<std::uint64_t> allocation_count{0};
constinit std::atomic<std::int64_t> allocated_bytes{0};

void* counted_or_null(std::size_t size) noexcept {
  void* p = std::malloc(size ? size : 1);
  if (!p) return nullptr;
  allocation_count.fetch_add(1, std::memory_order_relaxed);
  allocated_bytes.fetch_add(static_cast<std::int64_t>(malloc_usable_size(p)), std::memory_order_relaxed);
  return p;
}

void* counted(std::size_t size) {
  void* p = counted_or_null(size);
  if (!p) throw std::bad_alloc();
  return p;
}

void released(void* p) {
  if (!p) return;
  allocated_bytes.fetch_sub(static_cast<std::int64_t>(malloc_usable_size(p)), std::memory_order_relaxed);
  std::free(p);
}

}  // namespace

void* operator new(std::size_t size) { return counted(size); }
void* operator new[](std::size_t size) { return counted(size); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return counted_or_null(size); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return counted_or_null(size); }
void operator delete(void* p) noexcept { released(p); }
void operator delete[](void* p) noexcept { released(p); }
void operator delete(void* p, std::size_t) noexcept { released(p); }
void operator delete[](void* p, std::size_t) noexcept { released(p); }

namespace softmrc::bind {

void bind_allocations(nanobind::module_& m) {
  m.def("allocations", [] {
    return nanobind::make_tuple(allocation_count.load(std::memory_order_relaxed), allocated_bytes.load(std::memory_order_relaxed));
  }, "How often the core has allocated so far, and how many bytes it holds now.");
}

}  // namespace softmrc::bind
