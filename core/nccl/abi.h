// What NCCL and a network plugin say to each other, by names and layouts that NCCL has given versions. Version 8 is the
// base; what later ones change is in their own structures. Written from the documented layout, which is checked below.
#pragma once

#include <cstddef>
#include <cstdint>

namespace softmrc::nccl {

enum class Result : int {
  success = 0,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6
};

enum class LogLevel : int { warn = 2, info = 3 };
constexpr unsigned long log_init = 0x1, log_net = 0x10;
using LogFunction = void (*)(LogLevel level, unsigned long subsystems, const char* file, int line, const char* format,
                             ...);

constexpr std::size_t handle_bytes = 128;
constexpr int host_pointers = 1;

struct PropertiesV8 {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int pointers;
  int registers_globally;
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_receives;
  int device_type;
  int device_version;
};
static_assert(sizeof(PropertiesV8) == 64);

template <int Devices>
struct VirtualDevice {
  int count;
  int devices[Devices];
};

// Versions 9 and 10.
struct PropertiesV9 {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int pointers;
  int registers_globally;
  int forces_flush;
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_receives;
  int device_type;
  int device_version;
  VirtualDevice<4> made_of;
  std::size_t max_p2p_bytes;
  std::size_t max_collective_bytes;
};
static_assert(offsetof(PropertiesV9, made_of) == 64 && offsetof(PropertiesV9, max_p2p_bytes) == 88 &&
              sizeof(PropertiesV9) == 104);

struct PropertiesV11 : PropertiesV9 {
  int max_multi_request;
};
static_assert(sizeof(PropertiesV11) == 112);

struct PropertiesV12 {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int pointers;
  int registers_globally;
  int forces_flush;
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_receives;
  int device_type;
  int device_version;
  VirtualDevice<8> made_of;
  std::size_t max_p2p_bytes;
  std::size_t max_collective_bytes;
  int max_multi_request;
  std::int16_t rail;
  std::int16_t plane;
};
static_assert(offsetof(PropertiesV12, max_p2p_bytes) == 104 && offsetof(PropertiesV12, rail) == 124 &&
              sizeof(PropertiesV12) == 128);

// The tables. What all versions have alike stands in the middle of each, and at its end.
struct Middle {
  Result (*accept)(void* listen_comm, void** receive_comm, void** device_comm);
  Result (*register_memory)(void* comm, void* data, std::size_t size, int type, void** memory);
  Result (*register_dma_buffer)(void* comm, void* data, std::size_t size, int type, std::uint64_t offset, int fd,
                                void** memory);
  Result (*deregister_memory)(void* comm, void* memory);
};

struct Tail {
  Result (*flush)(void* comm, int count, void** data, int* sizes, void** memories, void** request);
  Result (*test)(void* request, int* is_done, int* sizes);
  Result (*close_send)(void* comm);
  Result (*close_receive)(void* comm);
  Result (*close_listen)(void* comm);
  Result (*device_memory)(void* comm, void* memory, void** device_memory);
  Result (*consumed)(void* comm, int count, void* request);
};

struct TableV8 {
  const char* name;
  Result (*init)(LogFunction log);
  Result (*devices)(int* count);
  Result (*properties)(int device, PropertiesV8* properties);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, void* handle, void** send_comm, void** device_comm);
  Middle middle;
  Result (*send)(void* comm, void* data, int size, int tag, void* memory, void** request);
  Result (*receive)(void* comm, int count, void** data, int* sizes, int* tags, void** memories, void** request);
  Tail tail;
};
static_assert(sizeof(TableV8) == 19 * sizeof(void*));

struct TableV9 {
  const char* name;
  Result (*init)(LogFunction log);
  Result (*devices)(int* count);
  Result (*properties)(int device, PropertiesV9* properties);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, void* handle, void** send_comm, void** device_comm);
  Middle middle;
  Result (*send)(void* comm, void* data, std::size_t size, int tag, void* memory, void** request);
  Result (*receive)(void* comm, int count, void** data, std::size_t* sizes, int* tags, void** memories, void** request);
  Tail tail;
  Result (*make_virtual_device)(int* device, void* made_of);
};
static_assert(sizeof(TableV9) == 20 * sizeof(void*));

struct TableV10 {
  const char* name;
  Result (*init)(LogFunction log, void* profiler);
  Result (*devices)(int* count);
  Result (*properties)(int device, PropertiesV9* properties);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, void* config, void* handle, void** send_comm, void** device_comm);
  Middle middle;
  Result (*send)(void* comm, void* data, std::size_t size, int tag, void* memory, void* profile, void** request);
  Result (*receive)(void* comm, int count, void** data, std::size_t* sizes, int* tags, void** memories, void** profiles,
                    void** request);
  Tail tail;
  Result (*make_virtual_device)(int* device, void* made_of);
};
static_assert(sizeof(TableV10) == 20 * sizeof(void*));

// Versions 11 and 12.
template <typename Properties>
struct TableOfContexts {
  const char* name;
  Result (*init)(void** context, std::uint64_t communicator, void* config, LogFunction log, void* profiler);
  Result (*devices)(int* count);
  Result (*properties)(int device, Properties* properties);
  Result (*listen)(void* context, int device, void* handle, void** listen_comm);
  Result (*connect)(void* context, int device, void* handle, void** send_comm, void** device_comm);
  Middle middle;
  Result (*send)(void* comm, void* data, std::size_t size, int tag, void* memory, void* profile, void** request);
  Result (*receive)(void* comm, int count, void** data, std::size_t* sizes, int* tags, void** memories, void** profiles,
                    void** request);
  Tail tail;
  Result (*make_virtual_device)(int* device, void* made_of);
  Result (*finalize)(void* context);
  Result (*set_attributes)(void* context, void* attributes);
};
using TableV11 = TableOfContexts<PropertiesV11>;
using TableV12 = TableOfContexts<PropertiesV12>;
static_assert(sizeof(TableV11) == 22 * sizeof(void*));

}  // namespace softmrc::nccl
