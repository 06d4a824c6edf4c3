#include "udp/plane.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "udp/device_error.h"
#include "udp/kernel_compat.h"
#include "udp/link_watch.h"

namespace softmrc::udp {
namespace {

// To the kernel at once, and as much of the stack as they need.
constexpr std::size_t max_messages = 32;
constexpr std::size_t control_bytes = CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(std::uint16_t));
struct alignas(cmsghdr) Control {
  std::array<std::uint8_t, control_bytes> bytes;
};

template <typename T>
void add_control(msghdr& header, int level, int type, T value) {
  auto* c = reinterpret_cast<cmsghdr*>(static_cast<std::uint8_t*>(header.msg_control) + header.msg_controllen);
  c->cmsg_level = level;
  c->cmsg_type = type;
  c->cmsg_len = CMSG_LEN(sizeof value);
  std::memcpy(CMSG_DATA(c), &value, sizeof value);
  header.msg_controllen += CMSG_SPACE(sizeof value);
}

void describe(const GsoBatch& batch, bool v4, const Socket& socket, Control& control, msghdr& header) {
  header = msghdr{};
  header.msg_name = const_cast<sockaddr_storage*>(&batch.to->storage);
  header.msg_namelen = batch.to->size;
  header.msg_iov = batch.pieces;
  header.msg_iovlen = batch.piece_count;
  if (batch.packets == 1 && batch.tos == socket.tos()) return;
  header.msg_control = control.bytes.data();
  if (batch.tos != socket.tos())
    add_control<int>(header, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_TOS : IPV6_TCLASS, batch.tos);
  if (batch.packets > 1) add_control(header, SOL_UDP, UDP_SEGMENT, static_cast<std::uint16_t>(batch.segment));
}

bool is_long(const GsoBatch& batch) { return batch.packets > 1; }

constexpr Duration shortest_gso_pause = seconds(1), longest_gso_pause = seconds(64);

// A socket that hears of the network's errors reports them with the next call, which then does
// nothing.
bool may_be_earlier(int error) {
  return error == ECONNREFUSED || error == EHOSTUNREACH || error == ENETUNREACH || error == EPROTO || error == EACCES;
}

}  // namespace

void Plane::send(Time now, std::uint32_t socket, std::span<const GsoBatch> batches) {
  for (const GsoBatch& batch : batches) {
    stats.packets_sent += batch.packets;
    stats.bytes_sent += batch.bytes;
  }
  // Some may have been made before it was refused.
  const bool can_all = has_gso || std::ranges::none_of(batches, is_long);
  if (can_all && backlog_.empty() && !is_blocked()) batches = batches.subspan(send_batches(now, socket, batches));
  for (const GsoBatch& batch : batches) backlog_.emplace_back(socket, batch);
}

void Plane::send_delayed(Time now) {
  try_gso(now);
  std::vector<iovec> piece;
  while (!backlog_.empty() && !is_blocked()) {
    OwnedGsoBatch& first = backlog_.front();
    GsoBatch batch = first.batch();
    if (!has_gso) batch = batch.part(0, batch.segment, piece);
    if (send_batches_some(now, first.socket, {&batch, 1}) == 0) continue;
    if (batch.bytes == first.bytes.size()) backlog_.pop_front();
    else first.bytes.erase(first.bytes.begin(), first.bytes.begin() + batch.bytes);
  }
}

std::size_t Plane::send_batches(Time now, std::uint32_t socket, std::span<const GsoBatch> batches) {
  std::size_t settled = 0;
  while (settled < batches.size()) {
    const std::span<const GsoBatch> some = batches.subspan(settled, std::min(max_messages, batches.size() - settled));
    const std::size_t count = send_batches_some(now, socket, some);
    settled += count;
    if (count < some.size()) break;
  }
  return settled;
}

// Twice as long each time, since on a kernel or an interface that never can every attempt costs a copy.
void Plane::pause_gso(Time now) {
  has_gso = false;
  gso_pause_ = std::clamp(gso_pause_ * 2, shortest_gso_pause, longest_gso_pause);
  tries_gso_at_ = now + gso_pause_;
  ++stats.gso_refused;
}

void Plane::try_gso(Time now) {
  if (now < tries_gso_at_) return;
  has_gso = true;
  tries_gso_at_ = Time::never();
}

std::size_t Plane::send_batches_some(Time now, std::uint32_t number, std::span<const GsoBatch> batches) {
  std::array<mmsghdr, max_messages> messages;
  std::array<Control, max_messages> controls;
  const Socket& socket = sockets[number];
  for (std::size_t i = 0; i < batches.size(); ++i)
    describe(batches[i], plan.address.is_v4, socket, controls[i], messages[i].msg_hdr);
  std::size_t settled = 0;
  bool was_interrupted = false, had_earlier_error = false;
  while (settled < batches.size()) {
    const int sent = sendmmsg(socket.fd(), messages.data() + settled, static_cast<unsigned>(batches.size() - settled),
                              MSG_DONTWAIT);
    if (sent > 0) {
      const auto taken = batches.subspan(settled, static_cast<std::size_t>(sent));
      if (gso_pause_.ps && std::ranges::any_of(taken, is_long)) [[unlikely]]
        gso_pause_ = {};
      settled += static_cast<std::size_t>(sent);
      stats.sends += static_cast<std::uint64_t>(sent);
      was_interrupted = had_earlier_error = false;
      continue;
    }
    // Callers wait for the engine at that time, so each gets one more attempt. An interrupted call is made again when
    // the driver comes by; an error that is reported twice in a row is about this packet.
    if (errno == EINTR && !was_interrupted) {
      was_interrupted = true;
      continue;
    }
    if (may_be_earlier(errno) && !had_earlier_error) {
      had_earlier_error = true;
      continue;
    }
    was_interrupted = had_earlier_error = false;
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
      blocked_socket = static_cast<int>(number);
      ++stats.send_blocked;
      break;
    }
    if (is_long(batches[settled]) && (errno == EIO || errno == EINVAL || errno == EOPNOTSUPP)) {
      pause_gso(now);
      break;
    }
    ++stats.send_refused;
    ++settled;
  }
  return settled;
}

std::optional<bool> Plane::rebind_interface() {
  if (plan.interface.empty()) return true;
  const std::optional<std::uint32_t> index = link_of_name(plan.interface);
  if (!index) return std::nullopt;
  if (*index == 0 || *index == bound_index) return true;
  try {
    const bool is_bound = std::ranges::all_of(
        sockets, [&](const Socket& socket) { return socket.bind_interface(plan.interface, plan.address.is_v4); });
    if (is_bound) bound_index = *index;
    return is_bound;
  } catch (const DeviceError&) {
    return std::nullopt;
  }
}

void Plane::set_faults(Time now, const Faults& faults) {
  has_faults_ = faults.is_active();
  if (!has_faults_) fault_injector_.flush(now);
  fault_injector_.set(faults);
  rebuild_chain();
}

void Plane::set_capture(std::shared_ptr<Capture> capture) {
  capture_tap_.set(std::move(capture));
  rebuild_chain();
}

void Plane::rebuild_chain() {
  io_ = this;
  capture_tap_.wrap(*io_);
  if (capture_tap_.is_on()) io_ = &capture_tap_;
  fault_injector_.wrap(*io_);
  if (has_faults_) io_ = &fault_injector_;
}

}  // namespace softmrc::udp
