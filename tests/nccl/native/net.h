// The plugin as NCCL sees it: loaded by name, one of its tables, and every call in the shape of the newest.
#pragma once

#include <dlfcn.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>

#include "nccl/abi.h"

namespace harness {

using namespace softmrc::nccl;

inline void require(bool promise, const std::string& words) {
  if (promise) return;
  std::fprintf(stderr, "broken: %s\n", words.c_str());
  std::fflush(stderr);
  _Exit(1);
}

// The last warning, as NCCL keeps it.
inline std::mutex warning_mutex;
inline std::string last_warning, all_lines;  // the latter of any level, the last of them
inline std::function<void()> on_warning;     // who logs may take its time, and ask for more

inline void log(LogLevel level, unsigned long, const char*, int, const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (std::getenv("HARNESS_LOUD")) std::fprintf(stderr, "[%d] %d %s\n", getpid(), static_cast<int>(level), text);
  {
    const std::lock_guard lock(warning_mutex);
    if (all_lines.size() > 1 << 16) all_lines.erase(0, 1 << 15);
    all_lines += std::string(text) + "\n";
    if (level != LogLevel::warn) return;
    last_warning = text;
  }
  if (on_warning) on_warning();
}

inline std::string warning() {
  const std::lock_guard lock(warning_mutex);
  return last_warning;
}

inline std::string said() {
  const std::lock_guard lock(warning_mutex);
  return all_lines;
}

inline void must(Result result, const char* what) {
  require(result == Result::success,
          std::string(what) + " gave " + std::to_string(static_cast<int>(result)) + ": " + warning());
}

struct Seen {  // of the properties, what every version has
  std::string name;
  int pointers = 0;
  int max_receives = 0;
  int speed = 0;
};

struct Net {
  void* library = nullptr;
  int version = 0;
  std::function<Result(void**)> init;
  std::function<Result(int*)> devices;
  std::function<Seen()> properties;
  std::function<Result(void*, void*, void**)> listen;  // context, handle, comm
  std::function<Result(void*, void*, void**)> connect;
  std::function<Result(void*, void*, std::size_t, void**)> send;            // comm, data, size, request
  std::function<Result(void*, void*, std::size_t, void*, void**)> receive;  // comm, data, size, memory, request
  std::function<Result(void*)> finalize;
  Middle middle{};
  Tail tail{};
};

template <typename Properties>
Seen seen(Result (*ask)(int, Properties*)) {
  Properties p;
  must(ask(0, &p), "properties");
  if constexpr (requires { p.made_of; })
    require(p.made_of.count == 1 && p.made_of.devices[0] == 0 && p.max_p2p_bytes > 0 && p.max_collective_bytes > 0,
            "a device is made of itself");
  if constexpr (requires { p.rail; })
    require(p.rail == -1 && p.plane == -1 && p.max_multi_request == 1, "no rail and no plane");
  require(p.device_type == 0 && p.guid == 0 && p.registers_globally == 0, "a plain device");
  return {p.name, p.pointers, p.max_receives, p.speed_mbps};
}

template <typename Table>
void take_common(Net& net, const Table& table) {
  require(std::string(table.name) == "SoftMRC", "the name that NCCL_NET has");
  net.devices = table.devices;
  net.properties = [&table] { return seen(table.properties); };
  net.middle = table.middle;
  net.tail = table.tail;
}

// Sizes are an int once, and pointers may be odd: what was in `*request` before must not matter.
inline void* const garbage = reinterpret_cast<void*>(1);

template <typename Table>
void take_old(Net& net, const Table& table) {
  take_common(net, table);
  net.listen = [&table](void*, void* handle, void** comm) { return table.listen(0, handle, comm); };
  net.finalize = [](void*) { return Result::success; };
}

template <typename Table>
void take_new_messages(Net& net, const Table& table) {
  net.send = [&table](void* comm, void* data, std::size_t size, void** request) {
    *request = garbage;
    return table.send(comm, data, size, 7, nullptr, nullptr, request);
  };
  net.receive = [&table](void* comm, void* data, std::size_t size, void* memory, void** request) {
    int tag = 7;
    void* profile = nullptr;
    *request = garbage;
    return table.receive(comm, 1, &data, &size, &tag, &memory, &profile, request);
  };
}

template <typename Table>
void take_v8_or_v9(Net& net, const Table& table) {
  take_old(net, table);
  net.init = [&table](void**) { return table.init(log); };
  net.connect = [&table](void*, void* handle, void** comm) { return table.connect(0, handle, comm, nullptr); };
  using Size = std::conditional_t<std::is_same_v<Table, TableV8>, int, std::size_t>;
  net.send = [&table](void* comm, void* data, std::size_t size, void** request) {
    *request = garbage;
    return table.send(comm, data, static_cast<Size>(size), 7, nullptr, request);
  };
  net.receive = [&table](void* comm, void* data, std::size_t size, void* memory, void** request) {
    int tag = 7;
    Size room = static_cast<Size>(size);
    *request = garbage;
    return table.receive(comm, 1, &data, &room, &tag, &memory, request);
  };
}

template <typename Table>
void take_contexts(Net& net, const Table& table) {
  take_common(net, table);
  net.init = [&table](void** context) {
    int config = 0;
    return table.init(context, 42, &config, log, nullptr);
  };
  net.listen = [&table](void* context, void* handle, void** comm) { return table.listen(context, 0, handle, comm); };
  net.connect = [&table](void* context, void* handle, void** comm) {
    return table.connect(context, 0, handle, comm, nullptr);
  };
  net.finalize = table.finalize;
  take_new_messages(net, table);
}

inline Net load(const std::string& path, int version) {
  Net net;
  net.version = version;
  net.library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  require(net.library, std::string("dlopen: ") + (net.library ? "" : dlerror()));
  const void* const table = dlsym(net.library, ("ncclNetPlugin_v" + std::to_string(version)).c_str());
  require(table, "the table is there");
  switch (version) {
    case 8: take_v8_or_v9(net, *static_cast<const TableV8*>(table)); break;
    case 9: take_v8_or_v9(net, *static_cast<const TableV9*>(table)); break;
    case 10: {
      const auto& v10 = *static_cast<const TableV10*>(table);
      take_old(net, v10);
      net.init = [&v10](void**) { return v10.init(log, nullptr); };
      net.connect = [&v10](void*, void* handle, void** comm) {
        int config = 0;
        return v10.connect(0, &config, handle, comm, nullptr);
      };
      take_new_messages(net, v10);
      break;
    }
    case 11: take_contexts(net, *static_cast<const TableV11*>(table)); break;
    case 12: take_contexts(net, *static_cast<const TableV12*>(table)); break;
    default: require(false, "versions are 8 to 12");
  }
  return net;
}

}  // namespace harness
