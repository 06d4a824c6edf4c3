// One of two ranks: a way to tell the other something before there is a network, connections each way, and memory that
// is gone when it is given back.
#pragma once

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "net.h"

namespace harness {

using Clock = std::chrono::steady_clock;
using Handle = std::array<char, handle_bytes>;

class Deadline {
 public:
  explicit Deadline(double seconds)
      : until_(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}
  void check(const std::string& what) const { require(Clock::now() < until_, what + " took too long; " + warning()); }

 private:
  Clock::time_point until_;
};

// NCCL's bootstrap: plain bytes between the two.
class Bootstrap {
 public:
  explicit Bootstrap(int fd) : fd_(fd) {}
  void tell(const void* data, std::size_t size) {
    require(::write(fd_, data, size) == static_cast<ssize_t>(size), "the other side is there");
  }
  void hear(void* data, std::size_t size) {
    auto* at = static_cast<char*>(data);
    while (size) {
      const ssize_t got = ::read(fd_, at, size);
      require(got > 0, "the other side goes on");
      at += got;
      size -= static_cast<std::size_t>(got);
    }
  }
  void meet() {
    char word = 'm';
    tell(&word, 1);
    hear(&word, 1);
  }

 private:
  int fd_;
};

// Registered, and unmapped when it is given back: who touches it then dies of it.
class Pages {
 public:
  explicit Pages(std::size_t size) : size_((size + 4095) / 4096 * 4096) {
    void* const memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                              0);
    require(memory != MAP_FAILED, "there is memory");
    data_ = static_cast<std::uint8_t*>(memory);
  }
  Pages(Pages&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  ~Pages() { give_back(); }
  void give_back() {
    // Kept as an inaccessible mapping, so that nothing else is mapped there.
    if (data_)
      require(mprotect(data_, size_, PROT_NONE) == 0 && madvise(data_, size_, MADV_DONTNEED) == 0,
              "memory is given back");
    data_ = nullptr;
  }
  std::uint8_t* data() { return data_; }
  std::size_t size() const { return size_; }

 private:
  std::uint8_t* data_;
  std::size_t size_;
};

struct Connection {
  void* comm = nullptr;
  void* memory = nullptr;
};

class Side {
 public:
  Side(Net& net, int fd) : net(net), bootstrap(fd) {
    must(net.init(&context), "init");
    int count = 0;
    must(net.devices(&count), "devices");
    const Seen device = net.properties();
    require(count == 1 && device.pointers == 1 && device.max_receives == 1 && device.speed > 0 && !device.name.empty(),
            "one device, of host memory");
  }

  // So many connections each way, set up in turns and with many a null, as NCCL's service thread does.
  void connect(int count) {
    std::vector<Handle> ours(count), theirs(count);
    std::vector<void*> doors(count);
    for (int i = 0; i < count; ++i) {
      must(net.listen(context, ours[i].data(), &doors[i]), "listen");
      require(doors[i], "listen never gives null");
    }
    bootstrap.tell(ours.data(), ours.size() * handle_bytes);
    bootstrap.hear(theirs.data(), theirs.size() * handle_bytes);
    sends.resize(count);
    receives.resize(count);
    const Deadline deadline(30);
    for (int done = 0; done < 2 * count;) {
      deadline.check("setting up");
      for (int i = 0; i < count; ++i) {
        if (!sends[i].comm) {
          must(net.connect(context, theirs[i].data(), &sends[i].comm), "connect");
          done += sends[i].comm != nullptr;
        }
        if (!receives[i].comm) {
          must(net.middle.accept(doors[i], &receives[i].comm, nullptr), "accept");
          done += receives[i].comm != nullptr;
          if (receives[i].comm) must(net.tail.close_listen(doors[i]), "closeListen");
        }
      }
      std::this_thread::yield();
    }
  }

  void* registered(Connection& connection, Pages& pages) {
    void* memory = nullptr;
    must(net.middle.register_memory(connection.comm, pages.data(), pages.size(), 1, &memory), "regMr");
    require(memory, "regMr gives a handle");
    return memory;
  }

  void close() {
    for (Connection& c : sends) must(net.tail.close_send(c.comm), "closeSend");
    for (Connection& c : receives) must(net.tail.close_receive(c.comm), "closeRecv");
    sends.clear();
    receives.clear();
    must(net.finalize(context), "finalize");
  }

  // Until it is done; how many bytes.
  int finish(void* request, double seconds = 20) {
    const Deadline deadline(seconds);
    int is_done = 0, size = -1;
    while (true) {
      must(net.tail.test(request, &is_done, &size), "test");
      if (is_done) return size;
      deadline.check("a request");
      std::this_thread::yield();
    }
  }
  void* begin_send(Connection& c, void* data, std::size_t size) {
    const Deadline deadline(20);
    void* request = nullptr;
    while (true) {
      must(net.send(c.comm, data, size, &request), "isend");
      if (request) return request;
      deadline.check("isend");
      std::this_thread::yield();
    }
  }
  void* begin_receive(Connection& c, void* data, std::size_t size, void* memory) {
    const Deadline deadline(20);
    void* request = nullptr;
    while (true) {
      must(net.receive(c.comm, data, size, memory, &request), "irecv");
      if (request) return request;
      deadline.check("irecv");
      std::this_thread::yield();
    }
  }

  Net& net;
  Bootstrap bootstrap;
  void* context = nullptr;
  std::vector<Connection> sends, receives;
};

}  // namespace harness
