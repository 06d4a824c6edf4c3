// The tables that NCCL looks up by name. All are the same calls; what a version adds to their arguments is dropped
// here.
#include <cstring>
#include <exception>

#include "base/check.h"
#include "host/host_error.h"
#include "nccl/plugin.h"
#include "udp/device_error.h"

namespace softmrc::nccl {
namespace {

// Nothing that is thrown may reach NCCL, and every failure is logged.
template <typename F>
Result guarded(F f) {
  Logger& logger = Plugin::of_process().logger();
  try {
    return f();
  } catch (const host::HostError& why) {
    logger.warn(why.what());
    return Result::system_error;
  } catch (const udp::DeviceError& why) {
    logger.warn(why.what());
    return Result::system_error;
  } catch (const std::exception& why) {
    logger.warn(why.what());
    return Result::internal_error;
  }
}

Result refuse(const std::string& why) {
  Plugin::of_process().logger().warn(why);
  return Result::invalid_argument;
}

// Life -------------------------------------------------------------------------------------------------------------

Result begin(LogFunction log) {
  return guarded([&] {
    Plugin::of_process().begin(log);
    return Result::success;
  });
}

Result begin_with_profiler(LogFunction log, void*) { return begin(log); }

// A context is a communicator that has begun; nothing is kept by it.
Result begin_context(void** context, std::uint64_t, void*, LogFunction log, void*) {
  *context = nullptr;
  const Result begun = begin(log);
  if (begun != Result::success) return begun;
  Plugin::of_process().add_communicator();
  *context = &Plugin::of_process();
  return Result::success;
}

Result finalize(void* context) {
  if (!context) return Result::success;  // of an init that failed
  return guarded([] {
    Plugin::of_process().remove_communicator();
    return Result::success;
  });
}

Result devices(int* count) {
  *count = 1;
  return Result::success;
}

template <typename P>
Result properties(int device, P* out) {
  if (device != 0)
    return refuse(host::message("device", "must be 0, which is all planes together", std::to_string(device)));
  const Properties& known = Plugin::of_process().properties();
  *out = P{};
  out->name = const_cast<char*>(known.name);
  out->pci_path = const_cast<char*>(known.pci_path);
  out->pointers = host_pointers;
  out->speed_mbps = known.speed_mbps;
  out->latency_us = known.latency_us;
  out->max_comms = 1 << 16;
  out->max_receives = 1;
  if constexpr (requires { out->max_p2p_bytes; }) {
    out->made_of.count = 1;
    out->max_p2p_bytes = out->max_collective_bytes = max_message;
  }
  if constexpr (requires { out->max_multi_request; }) out->max_multi_request = 1;
  if constexpr (requires { out->rail; }) out->rail = out->plane = -1;
  return Result::success;
}

// Connections ------------------------------------------------------------------------------------------------------

Result listen(int device, void* handle, void** comm) {
  *comm = nullptr;
  if (device != 0) return refuse(host::message("device", "must be 0", std::to_string(device)));
  return guarded([&] {
    Handle local;
    *comm = Plugin::of_process().listen(local);
    std::memset(handle, 0, handle_bytes);
    std::memcpy(handle, &local, sizeof local);
    return Result::success;
  });
}

Result listen_in_context(void*, int device, void* handle, void** comm) { return listen(device, handle, comm); }

// NCCL keeps the handle between two calls, aligned or not.
Result connect(int device, void* handle, void** comm, void** device_comm) {
  *comm = nullptr;
  if (device_comm) *device_comm = nullptr;
  if (device != 0) return refuse(host::message("device", "must be 0", std::to_string(device)));
  return guarded([&] {
    Handle known;
    std::memcpy(&known, handle, sizeof known);
    *comm = static_cast<Comm*>(Plugin::of_process().connect(known));
    std::memcpy(handle, &known, sizeof known);
    return Result::success;
  });
}

Result connect_with_config(int device, void*, void* handle, void** comm, void** device_comm) {
  return connect(device, handle, comm, device_comm);
}
Result connect_in_context(void*, int device, void* handle, void** comm, void** device_comm) {
  return connect(device, handle, comm, device_comm);
}

Result accept(void* listen_comm, void** comm, void** device_comm) {
  *comm = nullptr;
  if (device_comm) *device_comm = nullptr;
  return guarded([&] {
    *comm = static_cast<Comm*>(Plugin::of_process().accept(*static_cast<ListenComm*>(listen_comm)));
    return Result::success;
  });
}

Result close_comm(void* comm) {
  return guarded([&] {
    delete static_cast<Comm*>(comm);
    return Result::success;
  });
}

Result close_listen(void* comm) {
  return guarded([&] {
    delete static_cast<ListenComm*>(comm);
    return Result::success;
  });
}

// Memory -----------------------------------------------------------------------------------------------------------

Result register_memory(void* comm, void* data, std::size_t size, int type, void** memory) {
  *memory = nullptr;
  if (type != host_pointers)
    return refuse(host::message("type", "must be 1, memory of the host", std::to_string(type)));
  return guarded([&] {
    *memory = static_cast<Comm*>(comm)->register_memory(data, size);
    return Result::success;
  });
}

Result deregister_memory(void* comm, void* memory) {
  return guarded([&] {
    if (memory) static_cast<Comm*>(comm)->deregister(static_cast<MemoryHandle*>(memory));
    return Result::success;
  });
}

// Messages ---------------------------------------------------------------------------------------------------------

// What NCCL calls isend and irecv.
Result send_any(void* comm, void* data, std::size_t size, void** request) {
  *request = nullptr;
  if (size > max_message)
    return refuse(
        host::message("size", "must be at most " + std::to_string(max_message) + " bytes", std::to_string(size)));
  return guarded([&] {
    Request* made = nullptr;
    const Result result = static_cast<SendComm*>(static_cast<Comm*>(comm))->send(data, size, &made);
    *request = made;
    return result;
  });
}

Result receive_any(void* comm, int count, void** data, std::size_t size, void** memories, void** request) {
  *request = nullptr;
  if (count != 1 || !memories || !memories[0])
    return refuse(host::message("buffers", "must be 1, of registered memory", std::to_string(count)));
  return guarded([&] {
    Request* made = nullptr;
    const Result result = static_cast<ReceiveComm*>(static_cast<Comm*>(comm))
                              ->receive(data[0], size, *static_cast<const MemoryHandle*>(memories[0]), &made);
    *request = made;
    return result;
  });
}

Result send_v8(void* comm, void* data, int size, int, void*, void** request) {
  return send_any(comm, data, static_cast<std::size_t>(std::max(size, 0)), request);
}
Result send_v9(void* comm, void* data, std::size_t size, int, void*, void** request) {
  return send_any(comm, data, size, request);
}
Result send_v10(void* comm, void* data, std::size_t size, int, void*, void*, void** request) {
  return send_any(comm, data, size, request);
}

Result receive_v8(void* comm, int count, void** data, int* sizes, int*, void** memories, void** request) {
  return receive_any(comm, count, data, static_cast<std::size_t>(std::max(sizes[0], 0)), memories, request);
}
Result receive_v9(void* comm, int count, void** data, std::size_t* sizes, int*, void** memories, void** request) {
  return receive_any(comm, count, data, sizes[0], memories, request);
}
Result receive_v10(void* comm, int count, void** data, std::size_t* sizes, int*, void** memories, void**,
                   void** request) {
  return receive_any(comm, count, data, sizes[0], memories, request);
}

// What is in host memory is there for all.
Result flush(void*, int, void**, int*, void**, void** request) {
  *request = nullptr;
  return Result::success;
}

Result test(void* request, int* is_done, int* sizes) {
  *is_done = 0;
  return guarded([&] {
    const auto& known = *static_cast<Request*>(request);
    return known.comm->test(known.slot, is_done, sizes);
  });
}

constexpr const char* name = "SoftMRC";
constexpr Middle middle{accept, register_memory, nullptr, deregister_memory};
constexpr Tail tail{flush, test, close_comm, close_comm, close_listen, nullptr, nullptr};

}  // namespace
}  // namespace softmrc::nccl

#define SOFTMRC_EXPORTED extern "C" __attribute__((visibility("default")))
using namespace softmrc::nccl;

SOFTMRC_EXPORTED const TableV8 ncclNetPlugin_v8{
    name, begin, devices, properties<PropertiesV8>, listen, connect, middle, send_v8, receive_v8, tail};
SOFTMRC_EXPORTED const TableV9 ncclNetPlugin_v9{
    name, begin, devices, properties<PropertiesV9>, listen, connect, middle, send_v9, receive_v9, tail, nullptr};
SOFTMRC_EXPORTED const TableV10 ncclNetPlugin_v10{name,        begin_with_profiler,
                                                  devices,     properties<PropertiesV9>,
                                                  listen,      connect_with_config,
                                                  middle,      send_v10,
                                                  receive_v10, tail,
                                                  nullptr};
SOFTMRC_EXPORTED const TableV11 ncclNetPlugin_v11{name,
                                                  begin_context,
                                                  devices,
                                                  properties<PropertiesV11>,
                                                  listen_in_context,
                                                  connect_in_context,
                                                  middle,
                                                  send_v10,
                                                  receive_v10,
                                                  tail,
                                                  nullptr,
                                                  finalize,
                                                  nullptr};
SOFTMRC_EXPORTED const TableV12 ncclNetPlugin_v12{name,
                                                  begin_context,
                                                  devices,
                                                  properties<PropertiesV12>,
                                                  listen_in_context,
                                                  connect_in_context,
                                                  middle,
                                                  send_v10,
                                                  receive_v10,
                                                  tail,
                                                  nullptr,
                                                  finalize,
                                                  nullptr};
