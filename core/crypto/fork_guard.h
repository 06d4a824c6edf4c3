// Whether this is the process that made it. A forked child has the parent's keys and numbers: were it to encrypt a
// packet, a number would be used twice. The kernel empties this page in the child, so that the check costs a load and
// not a call.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <new>

namespace softmrc::crypto {

class ForkGuard {
 public:
  ForkGuard() {
    void* p = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    is_ours_ = static_cast<volatile bool*>(p);
    *is_ours_ = true;
    constexpr int wipe_on_fork = 18;  // MADV_WIPEONFORK, which older C libraries do not name
    is_wiped_ = madvise(p, page, wipe_on_fork) == 0;
  }
  ~ForkGuard() { munmap(const_cast<bool*>(is_ours_), page); }
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  bool is_ours() const { return is_wiped_ ? *is_ours_ : getpid() == pid_; }

 private:
  static constexpr std::size_t page = 4096;
  volatile bool* is_ours_;
  bool is_wiped_;
  pid_t pid_ = getpid();
};

}  // namespace softmrc::crypto
