#include "collectives/shm_ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <new>
#include <string>

namespace softmrc::collectives {
namespace {

constexpr std::size_t head_bytes = 4096;
constexpr std::size_t all_bytes = head_bytes + ShmRing::capacity;

void* mapped(int descriptor) {
  void* const memory = mmap(nullptr, all_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

std::string path_of(const std::string& process, int descriptor) {
  return "/proc/" + process + "/fd/" + std::to_string(descriptor);
}

}  // namespace

ShmRing::ShmRing(int descriptor, void* memory)
    : descriptor_(descriptor),
      memory_(memory),
      head_(static_cast<Head*>(memory)),
      data_(static_cast<std::uint8_t*>(memory) + head_bytes) {}

ShmRing::~ShmRing() {
  munmap(memory_, all_bytes);
  close_descriptor();
}

// Descriptors are few, and the application's: a pipe in use is held by its memory.
void ShmRing::close_descriptor() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

std::unique_ptr<ShmRing> ShmRing::make(std::uint64_t token) {
  const int descriptor = memfd_create("softmrc", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) return nullptr;
  constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  // All of it now: memory that cannot be had later, when it is touched, ends the process.
  const bool is_there = fallocate(descriptor, 0, 0, all_bytes) == 0 && fcntl(descriptor, F_ADD_SEALS, seals) == 0;
  void* const memory = is_there ? mapped(descriptor) : nullptr;
  if (!memory) {
    ::close(descriptor);
    return nullptr;
  }
  new (memory) Head{token, {}, {}, {}};
  return std::unique_ptr<ShmRing>(new ShmRing(descriptor, memory));
}

// It is looked at before it is opened: another says what it is, and to open what is no memory may do something by
// itself. Its memory cannot shrink: else it would be a way to end this process.
std::unique_ptr<ShmRing> ShmRing::open(const ShmKey& key) {
  const int seen = ::open(path_of(std::to_string(key.process), key.descriptor).c_str(), O_PATH | O_CLOEXEC);
  struct stat what{};
  const bool is_memory = seen >= 0 && fstat(seen, &what) == 0 && S_ISREG(what.st_mode) &&
                         what.st_size == static_cast<off_t>(all_bytes);
  const int descriptor = is_memory ? ::open(path_of("self", seen).c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK) : -1;
  if (seen >= 0) ::close(seen);
  if (descriptor < 0) return nullptr;
  const int seals = fcntl(descriptor, F_GET_SEALS);
  const bool is_one = seals >= 0 && (seals & F_SEAL_SHRINK);
  void* const memory = is_one ? mapped(descriptor) : nullptr;
  ::close(descriptor);
  if (!memory) return nullptr;
  std::unique_ptr<ShmRing> pipe(new ShmRing(-1, memory));
  return pipe->head_->token == key.token ? std::move(pipe) : nullptr;
}

ShmKey ShmRing::key() const { return {head_->token, getpid(), descriptor_}; }

bool ShmRing::has_room(std::uint64_t bytes) const {
  const std::uint64_t held = at_ - head_->taken.load(std::memory_order_seq_cst);
  return held <= capacity && padded(bytes) <= capacity - held;
}

// Asked for first and then looked again: the other end looks whether it is awaited after it has made room.
bool ShmRing::put(const std::uint8_t* from, std::uint64_t bytes) {
  if (!has_room(bytes)) {
    head_->waits.store(1, std::memory_order_seq_cst);
    if (!has_room(bytes)) return false;
  }
  const std::uint64_t begin = at_ % capacity, first = std::min(bytes, capacity - begin);
  std::memcpy(data_ + begin, from, first);
  if (first < bytes) std::memcpy(data_, from + first, bytes - first);
  at_ += padded(bytes);
  head_->put.store(at_, std::memory_order_release);
  return true;
}

void ShmRing::take_back(std::uint64_t bytes) {
  at_ -= padded(bytes);
  head_->put.store(at_, std::memory_order_release);
}

}  // namespace softmrc::collectives
