#include "udp/plane.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "udp/failure.h"
#include "udp/kernel.h"
#include "udp/link_watch.h"

namespace softmrc::udp {
namespace {

// To the kernel at once, and as much of the stack as they need.
constexpr std::size_t most_messages = 32;
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

void describe(const Train& train, bool v4, const Socket& socket, Control& control, msghdr& header) {
  header = msghdr{};
  header.msg_name = const_cast<sockaddr_storage*>(&train.to->storage);
  header.msg_namelen = train.to->size;
  header.msg_iov = train.pieces;
  header.msg_iovlen = train.piece_count;
  if (train.packets == 1 && train.tos == socket.tos()) return;
  header.msg_control = control.bytes.data();
  if (train.tos != socket.tos()) add_control<int>(header, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_TOS : IPV6_TCLASS, train.tos);
  if (train.packets > 1) add_control(header, SOL_UDP, UDP_SEGMENT, static_cast<std::uint16_t>(train.segment));
}

bool is_long(const Train& train) { return train.packets > 1; }

constexpr Duration shortest_gso_pause = seconds(1), longest_gso_pause = seconds(64);

// A socket that hears of the network's errors reports them with the next thing it is asked to do, which is then not done.
bool may_be_earlier(int error) {
  return error == ECONNREFUSED || error == EHOSTUNREACH || error == ENETUNREACH || error == EPROTO || error == EACCES;
}

}  // namespace

void Plane::send(Time now, std::uint32_t socket, std::span<const Train> trains) {
  for (const Train& train : trains) {
    stats.packets_sent += train.packets;
    stats.bytes_sent += train.bytes;
  }
  // Some may have been made before it was refused.
  const bool can_all = has_gso || std::ranges::none_of(trains, is_long);
  if (can_all && stash_.empty() && !is_blocked()) trains = trains.subspan(hand_over(now, socket, trains));
  for (const Train& train : trains) stash_.emplace_back(socket, train);
}

void Plane::send_held(Time now) {
  try_gso(now);
  std::vector<iovec> piece;
  while (!stash_.empty() && !is_blocked()) {
    KeptTrain& first = stash_.front();
    Train train = first.train();
    if (!has_gso) train = train.part(0, train.segment, piece);
    if (hand_over_some(now, first.socket, {&train, 1}) == 0) continue;
    if (train.bytes == first.bytes.size()) stash_.pop_front();
    else first.bytes.erase(first.bytes.begin(), first.bytes.begin() + train.bytes);
  }
}

std::size_t Plane::hand_over(Time now, std::uint32_t socket, std::span<const Train> trains) {
  std::size_t settled = 0;
  while (settled < trains.size()) {
    const std::span<const Train> some = trains.subspan(settled, std::min(most_messages, trains.size() - settled));
    const std::size_t count = hand_over_some(now, socket, some);
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

std::size_t Plane::hand_over_some(Time now, std::uint32_t number, std::span<const Train> trains) {
  std::array<mmsghdr, most_messages> messages;
  std::array<Control, most_messages> controls;
  const Socket& socket = sockets[number];
  for (std::size_t i = 0; i < trains.size(); ++i)
    describe(trains[i], plan.address.is_v4, socket, controls[i], messages[i].msg_hdr);
  std::size_t settled = 0;
  bool was_interrupted = false, had_earlier_error = false;
  while (settled < trains.size()) {
    const int sent = sendmmsg(socket.fd(), messages.data() + settled, static_cast<unsigned>(trains.size() - settled), MSG_DONTWAIT);
    if (sent > 0) {
      const auto taken = trains.subspan(settled, static_cast<std::size_t>(sent));
      if (gso_pause_.ps && std::ranges::any_of(taken, is_long)) [[unlikely]] gso_pause_ = {};
      settled += static_cast<std::size_t>(sent);
      stats.sends += static_cast<std::uint64_t>(sent);
      was_interrupted = had_earlier_error = false;
      continue;
    }
    // Callers wait for the engine meanwhile, so each gets one more attempt. An interrupted call is made again when the
    // driver comes by; an error that is reported twice in a row is about this packet.
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
    if (is_long(trains[settled]) && (errno == EIO || errno == EINVAL || errno == EOPNOTSUPP)) {
      pause_gso(now);
      break;
    }
    ++stats.send_refused;
    ++settled;
  }
  return settled;
}

std::optional<bool> Plane::follow_interface() {
  if (plan.interface.empty()) return true;
  const std::optional<std::uint32_t> index = link_of_name(plan.interface);
  if (!index) return std::nullopt;
  if (*index == 0 || *index == bound_index) return true;
  try {
    const bool is_bound = std::ranges::all_of(sockets, [&](const Socket& socket) { return socket.bind_interface(plan.interface, plan.address.is_v4); });
    if (is_bound) bound_index = *index;
    return is_bound;
  } catch (const DeviceFailure&) {
    return std::nullopt;
  }
}

void Plane::set_faults(Time now, const Faults& faults) {
  is_foul_ = faults.is_active();
  if (!is_foul_) foul_.let_go(now);
  foul_.set(faults);
  arrange();
}

void Plane::set_capture(std::shared_ptr<Capture> capture) {
  tapped_.set(std::move(capture));
  arrange();
}

void Plane::arrange() {
  line_ = this;
  tapped_.wrap(*line_);
  if (tapped_.is_on()) line_ = &tapped_;
  foul_.wrap(*line_);
  if (is_foul_) line_ = &foul_;
}

}  // namespace softmrc::udp
