#include "allocations.h"

#include <dlfcn.h>
#include <link.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <new>
#include <string_view>

namespace softmrc::benchmarks {
namespace {

constinit std::atomic<std::uint64_t> allocation_count{0};
constinit std::atomic<std::int64_t> allocated_bytes{0};

void* counted(void* p) {
  if (!p) return p;
  allocation_count.fetch_add(1, std::memory_order_relaxed);
  allocated_bytes.fetch_add(static_cast<std::int64_t>(malloc_usable_size(p)), std::memory_order_relaxed);
  return p;
}

void* released(void* p) {
  if (p) allocated_bytes.fetch_sub(static_cast<std::int64_t>(malloc_usable_size(p)), std::memory_order_relaxed);
  return p;
}

// Each does what the operator does that is here called by its name, and counts.
void* one(std::size_t size) { return counted(::operator new(size)); }
void* many(std::size_t size) { return counted(::operator new[](size)); }
void* one_or_null(std::size_t size, const std::nothrow_t& tag) noexcept { return counted(::operator new(size, tag)); }
void* many_or_null(std::size_t size, const std::nothrow_t& tag) noexcept {
  return counted(::operator new[](size, tag));
}
void release_one(void* p) noexcept { ::operator delete(released(p)); }
void release_many(void* p) noexcept { ::operator delete[](released(p)); }
void release_sized(void* p, std::size_t) noexcept {
  release_one(p);
}  // clang offers no call with a size unless asked to
void release_sized_many(void* p, std::size_t) noexcept { release_many(p); }

// By the names that the C++ ABI gives the operators. std::size_t is `unsigned long` wherever we build.
void* replacement_of(std::string_view name) {
  if (name == "_Znwm") return reinterpret_cast<void*>(&one);
  if (name == "_Znam") return reinterpret_cast<void*>(&many);
  if (name == "_ZnwmRKSt9nothrow_t") return reinterpret_cast<void*>(&one_or_null);
  if (name == "_ZnamRKSt9nothrow_t") return reinterpret_cast<void*>(&many_or_null);
  if (name == "_ZdlPv") return reinterpret_cast<void*>(&release_one);
  if (name == "_ZdaPv") return reinterpret_cast<void*>(&release_many);
  if (name == "_ZdlPvm") return reinterpret_cast<void*>(&release_sized);
  if (name == "_ZdaPvm") return reinterpret_cast<void*>(&release_sized_many);
  return nullptr;
}

// What the loader keeps about a library: the names it refers to, and where it looks up their addresses.
struct Tables {
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
  const ElfW(Rela)* calls = nullptr;  // of functions that are only called
  std::size_t call_bytes = 0;
  const ElfW(Rela)* others = nullptr;  // of those whose address is taken, among much else
  std::size_t other_bytes = 0;

  explicit Tables(const ElfW(Dyn)* entry) {
    for (; entry->d_tag != DT_NULL; ++entry) {
      switch (entry->d_tag) {
        case DT_SYMTAB: symbols = reinterpret_cast<const ElfW(Sym)*>(entry->d_un.d_ptr); break;
        case DT_STRTAB: names = reinterpret_cast<const char*>(entry->d_un.d_ptr); break;
        case DT_JMPREL: calls = reinterpret_cast<const ElfW(Rela)*>(entry->d_un.d_ptr); break;
        case DT_PLTRELSZ: call_bytes = entry->d_un.d_val; break;
        case DT_RELA: others = reinterpret_cast<const ElfW(Rela)*>(entry->d_un.d_ptr); break;
        case DT_RELASZ: other_bytes = entry->d_un.d_val; break;
        default: break;
      }
    }
  }
};

// The slot may lie on a page that the loader has closed.
bool overwrite(void** slot, void* value) {
  const auto page_bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t page = reinterpret_cast<std::uintptr_t>(slot) & ~(page_bytes - 1);
  if (mprotect(reinterpret_cast<void*>(page), page_bytes, PROT_READ | PROT_WRITE) != 0) return false;
  std::atomic_ref<void*>(*slot).store(value, std::memory_order_release);
  return true;
}

std::size_t replace(const Tables& tables, const ElfW(Rela)* first, std::size_t bytes, ElfW(Addr) base) {
  std::size_t replaced = 0;
  for (const ElfW(Rela)* r = first; r != first + bytes / sizeof *r; ++r) {
    const auto symbol = static_cast<std::size_t>(ELF64_R_SYM(r->r_info));
    if (symbol == 0) continue;
    void* with = replacement_of(tables.names + tables.symbols[symbol].st_name);
    const bool is_its_own = tables.symbols[symbol].st_shndx != SHN_UNDEF;
    if (with && !is_its_own) replaced += overwrite(reinterpret_cast<void**>(base + r->r_offset), with);
  }
  return replaced;
}

}  // namespace

std::size_t watch_allocations(const char* path) {
  static_assert(sizeof(ElfW(Rela)) == sizeof(Elf64_Rela) && sizeof(std::size_t) == sizeof(unsigned long));
  void* library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (!library) return 0;
  link_map* map = nullptr;
  std::size_t replaced = 0;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0) {
    const Tables tables(map->l_ld);
    replaced = replace(tables, tables.calls, tables.call_bytes, map->l_addr) +
               replace(tables, tables.others, tables.other_bytes, map->l_addr);
  }
  dlclose(library);
  return replaced;
}

AllocationCount allocations() {
  return {allocation_count.load(std::memory_order_relaxed), allocated_bytes.load(std::memory_order_relaxed)};
}

}  // namespace softmrc::benchmarks
