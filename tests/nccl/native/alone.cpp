#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>
#include <thread>

#include "stories.h"

namespace harness {
namespace {

int entries(const char* folder) {
  int count = 0;
  DIR* const opened = opendir(folder);
  while (readdir(opened)) ++count;
  closedir(opened);
  return count;
}

long resident_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmRSS:")) return std::atol(line.c_str() + 6);
  return 0;
}

void* begin(Net& net) {
  void* context = nullptr;
  must(net.init(&context), "init");
  return context;
}

// A listener, and both ends of one connection to it, in this thread.
struct Loop {
  Loop(Net& n, void* c) : net(n), context(c) { must(net.listen(context, handle.data(), &listener), "listen"); }
  void connect() { must(net.connect(context, handle.data(), &send), "connect"); }
  void accept() { must(net.middle.accept(listener, &receive, nullptr), "accept"); }
  void set_up(const std::string& what) {
    for (const Deadline deadline(20); !send || !receive; deadline.check(what)) {
      if (!send) connect();
      if (!receive) accept();
    }
  }
  void close() {
    must(net.tail.close_listen(listener), "closeListen");
    must(net.tail.close_send(send), "closeSend");
    must(net.tail.close_receive(receive), "closeRecv");
  }

  Net& net;
  void* const context;
  Handle handle{};
  void *listener = nullptr, *send = nullptr, *receive = nullptr;
};

void one_message(Net& net, void* send, void* receive) {
  const Deadline deadline(20);
  Pages out(4096), in(4096);
  void *from = nullptr, *to = nullptr, *sent = nullptr, *got = nullptr;
  must(net.middle.register_memory(send, out.data(), out.size(), 1, &from), "regMr");
  must(net.middle.register_memory(receive, in.data(), in.size(), 1, &to), "regMr");
  out.data()[17] = 99;
  must(net.receive(receive, in.data(), 4096, to, &got), "irecv");
  while (!sent) must(net.send(send, out.data(), 4096, &sent), "isend");
  for (void* request : {sent, got})
    for (int is_done = 0; !is_done; deadline.check("a message"))
      must(net.tail.test(request, &is_done, nullptr), "test");
  require(in.data()[17] == 99, "a message has its bytes");
  must(net.middle.deregister_memory(send, from), "deregMr");
  must(net.middle.deregister_memory(receive, to), "deregMr");
}

void one_message(Net& net, void* context) {
  Loop loop(net, context);
  loop.set_up("setting up");
  one_message(net, loop.send, loop.receive);
  loop.close();
}

// Again and again from the start, every so often with a message: nothing grows.
void cycle(const std::string& path, int version, const std::vector<int>& numbers) {
  int threads = 0, descriptors = 0;
  long kib = 0;
  for (int i = 0; i < numbers.at(0); ++i) {
    Net net = load(path, version);
    void* const context = begin(net);
    if (i % numbers.at(1) == 0) one_message(net, context);
    must(net.finalize(context), "finalize");
    if (version >= 11) must(net.finalize(nullptr), "finalize of an init that failed");
    dlclose(net.library);
    if (i != 3 * numbers.at(1)) continue;
    threads = entries("/proc/self/task");
    descriptors = entries("/proc/self/fd");
    kib = resident_kib();
  }
  require(entries("/proc/self/task") <= threads, "threads do not grow");
  require(entries("/proc/self/fd") <= descriptors, "descriptors do not grow");
  require(std::getenv("SOFTMRC_SANITIZER") || resident_kib() <= kib + 4096,
          "memory does not grow: " + std::to_string(kib) + " to " + std::to_string(resident_kib()) + " KiB");
}

sockaddr_in place(std::uint32_t address, std::uint16_t port) {
  sockaddr_in found{};
  found.sin_family = AF_INET;
  found.sin_port = htons(port);
  found.sin_addr.s_addr = htonl(address);
  return found;
}

std::uint16_t port_of(const Handle& handle) {
  std::uint16_t port = 0;
  std::memcpy(&port, handle.data() + 4, 2);
  return port;
}

int knock(const Handle& handle, const std::string& says, std::uint32_t from = INADDR_LOOPBACK) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in to = place(INADDR_LOOPBACK, port_of(handle)), here = place(from, 0);
  require(bind(fd, reinterpret_cast<const sockaddr*>(&here), sizeof here) == 0, "there is such an address");
  require(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0, "there is a listener");
  if (!says.empty()) require(write(fd, says.data(), says.size()) > 0, "an unauthenticated client sends");
  return fd;
}

// So many unauthenticated clients, from many addresses, at all listeners of a process that has few descriptors: none
// of them keeps a connector out.
void crowd(const std::string& path, int version, const std::vector<int>& numbers) {
  constexpr std::size_t listeners = 16;
  constexpr int from_each_address = 50;
  int told[2], came[2];
  require(pipe2(told, O_CLOEXEC) == 0 && pipe2(came, O_CLOEXEC) == 0, "pipes");
  rlimit limit{};
  require(getrlimit(RLIMIT_NOFILE, &limit) == 0, "there is a limit");
  const pid_t child = fork();
  if (child == 0) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    std::array<Handle, listeners> handles;
    for (Handle& handle : handles)
      require(read(told[0], handle.data(), handle.size()) == static_cast<ssize_t>(handle.size()), "handles");
    const std::string hello = std::string("\0\0\0\x3aHSMRC\0\4\0\1\1", 14) + std::string(48, 'n');
    for (int i = 0; i < numbers.at(0); ++i)
      knock(handles[i % listeners], i % 2 ? hello : "", INADDR_LOOPBACK + 0x10000 * (1 + i / from_each_address));
    require(write(came[1], "x", 1) == 1, "all came");
    for (;;) pause();
  }
  limit.rlim_cur = 1024;
  require(setrlimit(RLIMIT_NOFILE, &limit) == 0, "the limit is set");
  Net net = load(path, version);
  void* const context = begin(net);
  std::vector<Loop> loops;
  for (std::size_t i = 0; i < listeners; ++i) loops.emplace_back(net, context);
  for (const Loop& loop : loops)
    require(write(told[1], loop.handle.data(), loop.handle.size()) == static_cast<ssize_t>(loop.handle.size()),
            "handles are sent");
  pollfd all_came{came[0], POLLIN, 0};
  for (const Deadline deadline(60); poll(&all_came, 1, 0) == 0; deadline.check("a crowd"))
    for (Loop& loop : loops) loop.accept();
  for (int i = 0; i < 100; ++i)
    for (Loop& loop : loops) {
      loop.accept();
      require(!loop.receive, "no unauthenticated client gets through");
    }
  require(entries("/proc/self/fd") < 600, "descriptors are left");
  for (Loop& loop : loops) loop.set_up("being connected in a crowd");
  kill(child, SIGKILL);
  require(waitpid(child, nullptr, 0) == child, "the crowd leaves");
  for (Loop& loop : loops) loop.close();
  must(net.finalize(context), "finalize");
}

// A child that lives on has no copy of a listener that is closed, nor of a handshake.
void outlived(const std::string& path, int version, const std::vector<int>&) {
  Net net = load(path, version);
  Loop loop(net, begin(net));
  const int stranger = knock(loop.handle, "");
  for (int i = 0; i < 10; ++i) loop.accept();
  const pid_t child = fork();
  if (child == 0)
    for (;;) pause();
  must(net.tail.close_listen(loop.listener), "closeListen");
  char byte = 0;
  pollfd told{stranger, POLLIN, 0};
  const Deadline deadline(20);
  while (poll(&told, 1, 100) == 0 || read(stranger, &byte, 1) > 0) deadline.check("the end of a handshake");
  const sockaddr_in to = place(INADDR_LOOPBACK, port_of(loop.handle));
  for (bool is_refused = false; !is_refused; deadline.check("the end of a listener")) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    is_refused = connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0;
    close(fd);
  }
  close(stranger);
  kill(child, SIGKILL);
  require(waitpid(child, nullptr, 0) == child, "the child ends");
  one_message(net, loop.context);
  must(net.finalize(loop.context), "finalize");
}

// A server that speaks no protocol, and a handle that leads to it.
struct OtherServer {
  OtherServer(Net& net, void* context) {
    void* listener = nullptr;
    must(net.listen(context, handle.data(), &listener), "listen");
    must(net.tail.close_listen(listener), "closeListen");
    sockaddr_in at = place(INADDR_LOOPBACK, 0);
    socklen_t size = sizeof at;
    require(bind(fd, reinterpret_cast<const sockaddr*>(&at), size) == 0 && ::listen(fd, 8) == 0 &&
                getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) == 0,
            "a server that is something else");
    const std::uint16_t port = ntohs(at.sin_port);
    std::memcpy(handle.data() + 4, &port, sizeof port);
  }
  ~OtherServer() { close(fd); }

  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  Handle handle{};
};

// A connection that is being set up ends at the peer too when its process drops it, though a child lives on.
void outlived_connector(const std::string& path, int version, const std::vector<int>&) {
  Net net = load(path, version);
  void* const context = begin(net);
  OtherServer server(net, context);
  void* comm = nullptr;
  for (int i = 0; i < 3; ++i) must(net.connect(context, server.handle.data(), &comm), "connect");
  const int peer = accept(server.fd, nullptr, nullptr);
  const pid_t child = fork();
  if (child == 0)
    for (prctl(PR_SET_PDEATHSIG, SIGKILL);;) pause();
  must(net.finalize(context), "finalize");
  char bytes[512];
  pollfd ended{peer, POLLIN, 0};
  const Deadline deadline(20);
  while (poll(&ended, 1, 100) == 0 || read(peer, bytes, sizeof bytes) > 0) deadline.check("the end of a handshake");
  close(peer);
  kill(child, SIGKILL);
  require(waitpid(child, nullptr, 0) == child, "the child ends");
}

// Threads connect, each with a listener, while the process forks: neither waits for the other for long, and a listener
// that drops another's client for its own breaks nothing.
void forks_meanwhile(const std::string& path, int version, const std::vector<int>& numbers) {
  Net net = load(path, version);
  void* const context = begin(net);
  std::atomic<int> connected = 0;
  std::atomic<bool> is_over = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < numbers.at(0); ++i)
    threads.emplace_back([&] {
      while (!is_over) {
        Loop loop(net, context);
        loop.set_up("being connected as others are");
        loop.close();
        ++connected;
      }
    });
  int forks = 0;
  for (const Deadline deadline(60); forks < numbers.at(1) || connected < numbers.at(1); deadline.check("forks")) {
    const pid_t child = fork();
    require(child >= 0, "it can fork");
    if (child == 0) _exit(0);
    require(waitpid(child, nullptr, 0) == child, "the child ends");
    ++forks;
  }
  is_over = true;
  for (std::thread& thread : threads) thread.join();
  must(net.finalize(context), "finalize");
}

// What a handle says of a connection that has failed leads to no later one.
void stale_handle(const std::string& path, int version, const std::vector<int>&) {
  constexpr std::size_t number_at = 96, number_size = 8;
  Net net = load(path, version);
  void* const context = begin(net);
  std::set<std::string> numbers;
  constexpr std::size_t times = 8;
  for (std::size_t i = 0; i < times; ++i) {
    OtherServer server(net, context);
    void* comm = nullptr;
    must(net.connect(context, server.handle.data(), &comm), "connect");
    numbers.emplace(reinterpret_cast<const char*>(server.handle.data()) + number_at, number_size);
    const Deadline deadline(20);
    while (net.connect(context, server.handle.data(), &comm) == Result::success) {
      const int peer = accept4(server.fd, nullptr, nullptr, SOCK_NONBLOCK);
      if (peer >= 0) require(write(peer, "HTTP/1.1 400 Bad Request\r\n", 26) == 26, "an answer");
      deadline.check("a refusal");
      usleep(1000);
      if (peer >= 0) {
        while (net.connect(context, server.handle.data(), &comm) == Result::success) deadline.check("a refusal");
        close(peer);
        break;
      }
    }
  }
  require(numbers.size() == times, "two connections never have the same number");
  must(net.finalize(context), "finalize");
}

// The one plane is at 127.0.0.2: no client connects at another address.
void bound(const std::string& path, int version, const std::vector<int>&) {
  Net net = load(path, version);
  Loop loop(net, begin(net));
  const auto error_at = [&](std::uint32_t address) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in to = place(address, port_of(loop.handle));
    const int error = connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0 ? 0 : errno;
    close(fd);
    return error;
  };
  require(error_at(INADDR_LOOPBACK + 1) == 0, "it listens where its plane is");
  require(error_at(INADDR_LOOPBACK) == ECONNREFUSED, "and nowhere else");
  Handle nonsense{};
  void* comm = nullptr;
  require(net.connect(loop.context, nonsense.data(), &comm) == Result::system_error && !comm,
          "a handle that is none is refused");
  loop.set_up("being connected there");
  loop.close();
  must(net.finalize(loop.context), "finalize");
}

// A listener, and a connector whose environment differs: refused at the connector, in words, and no harm to the
// listener.
void unlike(const std::string& path, int version, const std::vector<int>&) {
  int ends[2];
  require(pipe(ends) == 0, "a pipe");
  const pid_t child = fork();
  if (child == 0) {
    const std::string differs = std::getenv("HARNESS_DIFFERS");
    const std::size_t equals = differs.find('=');
    setenv(differs.substr(0, equals).c_str(), differs.substr(equals + 1).c_str(), 1);
    Net net = load(path, version);
    void *const context = begin(net), *comm = nullptr;
    Handle handle;
    require(read(ends[0], handle.data(), handle.size()) == static_cast<ssize_t>(handle.size()), "a handle");
    const Deadline deadline(20);
    Result result = Result::success;
    while ((result = net.connect(context, handle.data(), &comm)) == Result::success) {
      require(!comm, "who is unlike is not connected");
      deadline.check("being refused");
    }
    require(result == Result::system_error && warning().find(std::getenv("HARNESS_WORD")) != std::string::npos,
            "in words: " + warning());
    must(net.finalize(context), "finalize");
    std::exit(0);
  }
  Net net = load(path, version);
  Loop loop(net, begin(net));
  const Handle& handle = loop.handle;
  require(write(ends[1], handle.data(), handle.size()) == static_cast<ssize_t>(handle.size()), "the handle is sent");
  int status = 0;
  const Deadline deadline(25);
  while (waitpid(child, &status, WNOHANG) == 0) {
    loop.accept();
    require(!loop.receive, "who is unlike does not come through");
    deadline.check("refusing");
  }
  require(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the other process is content");
  if (const char* const words = std::getenv("HARNESS_LOGGED"))
    require(said().find(words) != std::string::npos, "the listener's side logs it: " + said());
  one_message(net, loop.context);
  must(net.tail.close_listen(loop.listener), "closeListen");
  must(net.finalize(loop.context), "finalize");
}

// Settings that make no sense: the plugin declines, and logs why.
void refused(const std::string& path, int version, const std::vector<int>&) {
  Net net = load(path, version);
  void* context = nullptr;
  require(net.init(&context) == Result::system_error, "init refuses");
  require(warning().find(std::getenv("HARNESS_WORD")) != std::string::npos, "in words: " + warning());
  must(net.finalize(context), "finalize");
}

// A device that cannot be opened whole: refused at the first use, in words, as often as it is tried.
void unopened(const std::string& path, int version, const std::vector<int>&) {
  Net net = load(path, version);
  for (int i = 0; i < 5; ++i) {
    void *context = nullptr, *door = nullptr;
    must(net.init(&context), "init");
    Handle handle;
    require(net.listen(context, handle.data(), &door) == Result::system_error && !door, "listen refuses");
    require(warning().find(std::getenv("HARNESS_WORD")) != std::string::npos, "in words: " + warning());
    must(net.finalize(context), "finalize");
  }
}

// A call is refused a few times when NCCL first listens, or first connects: as refusals.so does it.
void short_of(const std::string& path, int version, const std::vector<int>& numbers) {
  constexpr int times = 3;
  const auto refuse = reinterpret_cast<int (*)(const char*, int, const char*, int, int)>(dlsym(RTLD_DEFAULT, "refuse"));
  const auto times_refused = reinterpret_cast<int (*)(const char*)>(dlsym(RTLD_DEFAULT, "times_refused"));
  const char* const call = std::getenv("HARNESS_CALL");
  require(refuse && times_refused && call, "refusals.so is there");
  const bool is_at_listen = numbers.at(1) == 0;
  Net net = load(path, version);
  void* const context = begin(net);
  if (is_at_listen) require(refuse(call, numbers.at(0), "", 0, times) == 0, "it can be refused");
  Loop loop(net, context);
  if (is_at_listen) require(times_refused(call) == times, "it was refused to the listener");
  else require(refuse(call, numbers.at(0), "", 0, times) == 0, "it can be refused");
  loop.set_up("being connected when it is no longer refused");
  require(times_refused(call) == times, "it was refused");
  loop.close();
  must(net.finalize(loop.context), "finalize");
}

// A listener that is attacked from outside: it is polled until standard input ends, and runs the commands that it reads
// there.
//   serve N PORT  N connections to itself with a message each, by another port of this host if that is not 0
//   call PORT     a connection to a port of this host, with the credentials of its own handle, and how that ends
//   log           what the plugin has logged, up to a line with a dot
//   held          descriptors, threads and KiB of memory of this process
//   starve, feed  take all descriptors that are left, and give them back
class Attacked {
 public:
  explicit Attacked(Net& net) : net_(net), loop_(net, begin(net)) {
    require(getrlimit(RLIMIT_NOFILE, &limit_) == 0, "there is a limit");
  }

  void run() {
    const char* const hex = "0123456789abcdef";
    std::string token;
    for (std::size_t i = 8; i < 24; ++i) {
      const auto byte = static_cast<std::uint8_t>(loop_.handle[i]);
      token += {hex[byte >> 4], hex[byte & 15]};
    }
    answer(std::to_string(port_of(loop_.handle)) + " " + token);
    pollfd command{0, POLLIN, 0};
    for (std::string line;;) {
      loop_.accept();
      require(!loop_.receive, "no attacker comes through");
      if (poll(&command, 1, 1) == 0) continue;
      if (!std::getline(std::cin, line)) break;
      std::istringstream words(line);
      std::string word;
      std::uint16_t port = 0;
      int count = 0;
      if (words >> word; word == "serve") answer((words >> count >> port, serve(count, port)));
      else if (word == "call") answer((words >> port, call(port)));
      else if (word == "log") answer(said() + ".");
      else if (word == "held") answer(held());
      else if (word == "starve") answer(starve());
      else answer(feed());
    }
    must(net_.tail.close_listen(loop_.listener), "closeListen");
    must(net_.finalize(loop_.context), "finalize");
  }

 private:
  static void answer(const std::string& words) {
    std::puts(words.c_str());
    std::fflush(stdout);
  }

  Handle handle_at(std::uint16_t port) const {
    Handle made = loop_.handle;
    if (port != 0) std::memcpy(made.data() + 4, &port, 2);
    return made;
  }

  std::string serve(int count, std::uint16_t port) {
    for (int i = 0; i < count; ++i) {
      Handle handle = handle_at(port);
      for (const Deadline deadline(20); !loop_.send || !loop_.receive; deadline.check("an honest connection")) {
        if (!loop_.send) must(net_.connect(loop_.context, handle.data(), &loop_.send), "connect");
        if (!loop_.receive) loop_.accept();
      }
      one_message(net_, loop_.send, loop_.receive);
      must(net_.tail.close_send(std::exchange(loop_.send, nullptr)), "closeSend");
      must(net_.tail.close_receive(std::exchange(loop_.receive, nullptr)), "closeRecv");
    }
    return "served";
  }

  std::string call(std::uint16_t port) {
    Handle handle = handle_at(port);
    void* comm = nullptr;
    for (const Deadline deadline(20); net_.connect(loop_.context, handle.data(), &comm) == Result::success;
         deadline.check("the end of a call"))
      if (comm) return must(net_.tail.close_send(comm), "closeSend"), "connected";
    return warning();
  }

  static std::string held() {
    return std::to_string(entries("/proc/self/fd")) + " " + std::to_string(entries("/proc/self/task")) + " " +
           std::to_string(resident_kib());
  }

  std::string starve() {
    rlimit limit = limit_;
    limit.rlim_cur = 1024;
    require(setrlimit(RLIMIT_NOFILE, &limit) == 0, "the limit is set");
    for (int fd = dup(0); fd >= 0; fd = dup(0)) taken_.push_back(fd);
    return "starved";
  }

  std::string feed() {
    for (const int fd : std::exchange(taken_, {})) close(fd);
    require(setrlimit(RLIMIT_NOFILE, &limit_) == 0, "the limit is set");
    return "fed";
  }

  Net& net_;
  Loop loop_;
  std::vector<int> taken_;
  rlimit limit_{};
};

void attacked(const std::string& path, int version, const std::vector<int>&) {
  Net net = load(path, version);
  Attacked(net).run();
}

// A connector is delayed after its offer for longer than an unauthenticated client may take.
void held_up(const std::string& path, int version, const std::vector<int>& numbers) {
  Net net = load(path, version);
  Loop loop(net, begin(net));
  const auto look = [&] {
    loop.accept();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  };
  for (int i = 0; i < numbers.at(0) && !loop.send; ++i) {
    loop.connect();
    for (int k = 0; k < 20 && !loop.receive; ++k) look();
  }
  const auto until = Clock::now() + std::chrono::milliseconds(10'500);
  while (Clock::now() < until && !loop.receive) look();
  loop.set_up("being connected after all");
  loop.close();
  must(net.finalize(loop.context), "finalize");
}

}  // namespace

const std::map<std::string, Alone> alone{{"crowd", crowd},
                                         {"bound", bound},
                                         {"outlived", outlived},
                                         {"outlived_connector", outlived_connector},
                                         {"forks_meanwhile", forks_meanwhile},
                                         {"stale_handle", stale_handle},
                                         {"cycle", cycle},
                                         {"unlike", unlike},
                                         {"refused", refused},
                                         {"unopened", unopened},
                                         {"held_up", held_up},
                                         {"short_of", short_of},
                                         {"attacked", attacked}};

}  // namespace harness
