#include "udp/sender.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "udp/capture.h"
#include "udp/kernel.h"
#include "wire/icrc.h"

namespace softmrc::udp {
namespace {

constexpr unsigned padding(std::uint32_t size) { return (4 - size % 4) % 4; }

// Room for a header, the padding and ICRC of the packet before it.
constexpr std::size_t scratch_per_packet = wire::max_header_size + 8;

template <typename T>
void add_control(msghdr& header, int level, int type, T value) {
  auto* c = reinterpret_cast<cmsghdr*>(static_cast<std::uint8_t*>(header.msg_control) + header.msg_controllen);
  c->cmsg_level = level;
  c->cmsg_type = type;
  c->cmsg_len = CMSG_LEN(sizeof value);
  std::memcpy(CMSG_DATA(c), &value, sizeof value);
  header.msg_controllen += CMSG_SPACE(sizeof value);
}

void add_tos(msghdr& header, bool v4, std::uint8_t tos) {
  add_control<int>(header, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_TOS : IPV6_TCLASS, tos);
}

// A socket that hears of the network's errors reports them with the next thing it is asked to do, which is then not done.
bool may_be_earlier(int error) {
  return error == ECONNREFUSED || error == EHOSTUNREACH || error == ENETUNREACH || error == EPROTO || error == EACCES;
}

}  // namespace

Sender::Sender(const SenderPlan& plan, std::vector<Plane>& planes, const PeerBook& peers)
    : plan_(plan), planes_(planes), peers_(peers), has_gso_(plan.gso), packets_(std::make_unique<Pending[]>(batch_packets)) {
  for (std::uint32_t p = 0; p < planes_.size(); ++p) {
    first_queue_.push_back(static_cast<std::uint32_t>(queues_.size()));
    for (std::uint32_t s = 0; s < planes_[p].sockets.size(); ++s) {
      SocketQueue queue;
      queue.plane = static_cast<std::uint8_t>(p);
      queue.socket = static_cast<std::uint8_t>(s);
      queues_.push_back(queue);
    }
  }
  active_.reserve(queues_.size());
  messages_.resize(batch_packets);
  trains_.reserve(batch_packets);
  pieces_.resize(batch_packets * 3);
  scratch_.resize(batch_packets * scratch_per_packet);
  controls_.resize(batch_packets);
  along_.resize(batch_packets);
  stashes_.resize(planes_.size());
}

std::uint8_t Sender::tos_of(proto::TrafficClass traffic_class) const {
  const std::uint8_t ecn = plan_.ecn ? 2 : 0;
  switch (traffic_class) {
    case proto::TrafficClass::data: return static_cast<std::uint8_t>(plan_.dscp.trimmable << 2 | ecn);
    case proto::TrafficClass::data_no_trim: return static_cast<std::uint8_t>(plan_.dscp.no_trim << 2 | ecn);
    case proto::TrafficClass::data_retransmit: return static_cast<std::uint8_t>(plan_.dscp.trimmable_retx << 2 | ecn);
    case proto::TrafficClass::control: return static_cast<std::uint8_t>(plan_.dscp.control << 2);
  }
  return 0;
}

Destination Sender::destination(const PeerPlane& peer, const wire::EvBytes* wide) const {
  return wide ? destination_of(wire::path_of(*wide).destination, peer.port, 0) : peer.to;
}

void Sender::take(Time now) {
  Pending& pending = packets_[count_];
  Plane& plane = planes_[pending.transmit.port];
  if (plane.weather.faults.is_active()) [[unlikely]] {
    if (plane.weather.swallows()) return;
    if (plane.weather.faults.needs_copy()) return disturb(now, plane, pending.transmit);
  }
  const std::uint32_t at = first_queue_[pending.transmit.port] + plane.socket_of(pending.transmit.entropy);
  SocketQueue& queue = queues_[at];
  pending.next = none;
  if (queue.first == none) {
    queue.first = count_;
    active_.push_back(at);
  } else {
    packets_[queue.last].next = count_;
  }
  queue.last = count_++;
}

std::uint32_t Sender::icrc_seed(const Plane& plane, std::uint16_t source_port, const PeerPlane& peer, std::size_t size) const {
  Seed& seed = seeds_[(source_port ^ size >> 2) % seeds_.size()];
  if (seed.peer != &peer || seed.source_port != source_port || seed.size != size) {
    const wire::Route route{plane.plan.address, peer.address, source_port, peer.port};
    seed = {&peer, source_port, size, wire::icrc_seed(route, size)};
  }
  return seed.state;
}

// Writes padding and ICRC behind the payload; returns how many bytes that was.
std::uint32_t Sender::seal(const Plane& plane, std::uint16_t source_port, const proto::Transmit& transmit,
                           std::uint8_t* header, std::size_t header_size, std::uint8_t* tail) const {
  const auto* write = std::get_if<wire::Write>(&transmit.packet.body);
  const std::uint32_t payload = write ? write->payload_size : 0;
  const unsigned pad = padding(payload);
  std::memset(tail, 0, 8);
  if (plan_.icrc) {
    const std::size_t size = header_size + payload + pad + wire::icrc_size;
    std::uint32_t state = icrc_seed(plane, source_port, peers_.plane(transmit.peer, transmit.port), size);
    header[wire::icrc_masked_byte] = 0xFF;
    state = wire::crc32_update(state, {header, header_size});
    header[wire::icrc_masked_byte] = 0;
    if (payload) state = wire::crc32_update(state, {write->payload, payload});
    if (pad) state = wire::crc32_update(state, {tail, pad});
    state = ~state;
    std::memcpy(tail + pad, &state, wire::icrc_size);
  }
  return pad + static_cast<std::uint32_t>(wire::icrc_size);
}

std::vector<std::uint8_t> Sender::to_bytes(const Plane& plane, const proto::Transmit& transmit, bool trimmed) const {
  std::vector<std::uint8_t> bytes(wire::max_header_size);
  if (trimmed) {
    bytes.resize(wire::emit_trimmed(transmit.packet, bytes.data()));
    return bytes;
  }
  const std::size_t header_size = wire::emit_headers(transmit.packet, bytes.data());
  const std::uint16_t source_port = plane.sockets[plane.socket_of(transmit.entropy)].port();
  std::uint8_t tail[8];
  const std::uint32_t tail_size = seal(plane, source_port, transmit, bytes.data(), header_size, tail);
  bytes.resize(header_size);
  if (const auto* write = std::get_if<wire::Write>(&transmit.packet.body))
    bytes.insert(bytes.end(), write->payload, write->payload + write->payload_size);
  bytes.insert(bytes.end(), tail, tail + tail_size);
  return bytes;
}

void Sender::disturb(Time now, Plane& plane, const proto::Transmit& transmit) {
  OwnedDatagram packet;
  packet.to = destination(peers_.plane(transmit.peer, transmit.port), transmit.wide);
  packet.entropy = transmit.entropy;
  packet.tos = tos_of(transmit.traffic_class);
  const bool is_trimmed = wire::is_write(transmit.packet.bth.opcode) && plane.weather.trims();
  if (is_trimmed) packet.tos = static_cast<std::uint8_t>(plan_.dscp.trimmed << 2);
  packet.bytes = to_bytes(plane, transmit, is_trimmed);
  plane.weather.hold(now, std::move(packet));
}

bool Sender::joins(const Train& train, const proto::Transmit& transmit, std::uint32_t size, std::uint8_t tos) const {
  return has_gso_ && !train.is_closed && train.peer == transmit.peer && train.tos == tos && size <= train.segment &&
         train.packets < most_train_packets && train.bytes + size <= most_train_bytes &&
         train.wide == transmit.wide;
}

std::uint32_t Sender::append(SocketQueue& queue, const proto::Transmit& transmit, Time now) {
  Plane& plane = planes_[queue.plane];
  const auto* write = std::get_if<wire::Write>(&transmit.packet.body);
  std::uint8_t* header = scratch_.data() + scratch_used_;
  const std::size_t header_size = wire::emit_headers(transmit.packet, header);
  std::uint8_t* tail = header + header_size;
  const std::uint32_t tail_size = seal(plane, plane.sockets[queue.socket].port(), transmit, header, header_size, tail);
  scratch_used_ += header_size + tail_size;
  const std::uint32_t payload = write ? write->payload_size : 0;
  const std::uint32_t size = static_cast<std::uint32_t>(header_size) + payload + tail_size;
  const std::uint8_t tos = tos_of(transmit.traffic_class);

  const bool joined = !trains_.empty() && joins(trains_.back(), transmit, size, tos);
  if (!joined) {
    Train train;
    train.peer = transmit.peer;
    train.wide = transmit.wide;
    train.segment = size;
    train.tos = tos;
    msghdr& message = messages_[trains_.size()].msg_hdr;
    message = msghdr{};
    const PeerPlane& peer = peers_.plane(transmit.peer, queue.plane);
    if (transmit.wide) along_[trains_.size()] = destination(peer, transmit.wide);
    const Destination& to = transmit.wide ? along_[trains_.size()] : peer.to;
    message.msg_name = const_cast<sockaddr_storage*>(&to.storage);
    message.msg_namelen = to.size;
    // Pieces of one message lie side by side, and so do messages.
    message.msg_iov = trains_.empty() ? pieces_.data()
                                      : messages_[trains_.size() - 1].msg_hdr.msg_iov + messages_[trains_.size() - 1].msg_hdr.msg_iovlen;
    trains_.push_back(train);
  }
  Train& train = trains_.back();
  msghdr& message = messages_[trains_.size() - 1].msg_hdr;
  if (joined) {
    message.msg_iov[message.msg_iovlen - 1].iov_len += header_size;  // it follows the tail before it in the scratch
  } else {
    message.msg_iov[message.msg_iovlen++] = {header, header_size};
  }
  if (payload) {
    message.msg_iov[message.msg_iovlen++] = {const_cast<std::uint8_t*>(write->payload), payload};
    message.msg_iov[message.msg_iovlen++] = {tail, tail_size};
  } else {
    message.msg_iov[message.msg_iovlen - 1].iov_len += tail_size;
  }
  train.is_closed = size < train.segment;
  train.bytes += size;
  ++train.packets;
  plane.stats.bytes_sent += size;
  ++plane.stats.packets_sent;
  if (capture_) [[unlikely]] {
    const PeerPlane& peer = peers_.plane(transmit.peer, queue.plane);
    const wire::Route route{plane.plan.address, peer.address, plane.sockets[queue.socket].port(), peer.port};
    capture_->record(now, queue.plane, route, tos, {{header, header_size}, {write ? write->payload : nullptr, payload}, {tail, tail_size}});
  }
  return size;
}

// A train leaves as soon as it is full: the checksum has just brought its payload into the cache that the kernel's copy
// will read it from.
void Sender::send_queue(SocketQueue& queue, Time now) {
  std::size_t gathered = 0;
  for (std::uint32_t at = queue.first; at != none; at = packets_[at].next) {
    const std::uint32_t size = append(queue, packets_[at].transmit, now);
    gathered += size;
    if (gathered + size <= most_train_bytes && packets_[at].next != none) continue;
    hand_over(planes_[queue.plane], queue);
    gathered = 0;
  }
  queue.first = queue.last = none;
}

void Sender::describe_trains(const Plane& plane, const Socket& socket) {
  for (std::uint32_t i = 0; i < trains_.size(); ++i) {
    const Train& train = trains_[i];
    msghdr& message = messages_[i].msg_hdr;
    if (train.packets == 1 && train.tos == socket.tos()) continue;
    message.msg_control = controls_[i].data();
    if (train.tos != socket.tos()) add_tos(message, plane.plan.address.is_v4, train.tos);
    if (train.packets > 1) add_control<std::uint16_t>(message, SOL_UDP, UDP_SEGMENT, static_cast<std::uint16_t>(train.segment));
  }
}

void Sender::hand_over(Plane& plane, SocketQueue& queue) {
  const Socket& socket = plane.sockets[queue.socket];
  describe_trains(plane, socket);
  std::uint32_t done = 0;
  const std::uint32_t count = static_cast<std::uint32_t>(trains_.size());
  bool is_second_try = false;
  while (done < count) {
    if (plane.is_blocked() || !stashes_[queue.plane].empty()) {
      stash(plane, queue, done++);
      continue;
    }
    const int sent = sendmmsg(socket.fd(), messages_.data() + done, count - done, MSG_DONTWAIT);
    if (sent > 0) {
      done += static_cast<std::uint32_t>(sent);
      plane.stats.sends += static_cast<std::uint64_t>(sent);
      is_second_try = false;
      continue;
    }
    if (errno == EINTR) continue;
    if (may_be_earlier(errno) && !is_second_try) {
      is_second_try = true;
      continue;
    }
    is_second_try = false;
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      plane.blocked_socket = queue.socket;
      ++plane.stats.send_blocked;
    } else if (trains_[done].packets > 1 && (errno == EIO || errno == EINVAL || errno == EOPNOTSUPP)) {
      has_gso_ = false;  // this kernel or interface cannot segment: from now on packet by packet
      stash(plane, queue, done++);
    } else {
      ++plane.stats.send_refused;
      ++done;
    }
  }
  trains_.clear();
  scratch_used_ = 0;
}

void Sender::stash(Plane&, SocketQueue& queue, std::uint32_t message) {
  Stashed s;
  s.socket = queue.socket;
  s.tos = trains_[message].tos;
  s.segment = trains_[message].segment;
  const msghdr& header = messages_[message].msg_hdr;
  std::memcpy(&s.to.storage, header.msg_name, header.msg_namelen);
  s.to.size = header.msg_namelen;
  for (std::size_t i = 0; i < header.msg_iovlen; ++i) {
    const auto* p = static_cast<const std::uint8_t*>(header.msg_iov[i].iov_base);
    s.bytes.insert(s.bytes.end(), p, p + header.msg_iov[i].iov_len);
  }
  stashes_[queue.plane].push_back(std::move(s));
}

// False: still no room.
bool Sender::send_bytes(Plane& plane, const Stashed& m) {
  const std::size_t step = has_gso_ ? m.bytes.size() : m.segment;
  for (std::size_t at = 0; at < m.bytes.size(); at += step) {
    iovec piece{const_cast<std::uint8_t*>(m.bytes.data() + at), std::min(step, m.bytes.size() - at)};
    alignas(cmsghdr) std::array<std::uint8_t, 64> control{};
    msghdr header{};
    header.msg_name = const_cast<sockaddr_storage*>(&m.to.storage);
    header.msg_namelen = m.to.size;
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    add_tos(header, plane.plan.address.is_v4, m.tos);
    if (piece.iov_len > m.segment) add_control<std::uint16_t>(header, SOL_UDP, UDP_SEGMENT, static_cast<std::uint16_t>(m.segment));
    const int fd = plane.sockets[m.socket].fd();
    ssize_t sent = sendmsg(fd, &header, MSG_DONTWAIT);
    if (sent < 0 && may_be_earlier(errno)) sent = sendmsg(fd, &header, MSG_DONTWAIT);
    if (sent >= 0) {
      ++plane.stats.sends;
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (at == 0) return false;
    }
    ++plane.stats.send_refused;
  }
  return true;
}

// Data first: acknowledgements alone would wake a peer that waits for the data.
void Sender::flush(Time now) {
  for (const bool control : {false, true}) {
    for (std::uint32_t at : active_) {
      SocketQueue& queue = queues_[at];
      if (queue.first == none) continue;
      const bool is_control = packets_[queue.first].transmit.traffic_class == proto::TrafficClass::control;
      if (is_control == control) send_queue(queue, now);
    }
  }
  active_.clear();
  count_ = 0;
}

void Sender::send_held(Time now) {
  for (std::uint32_t p = 0; p < planes_.size(); ++p) {
    Plane& plane = planes_[p];
    auto& stash = stashes_[p];
    while (!stash.empty() && !plane.is_blocked()) {
      if (!send_bytes(plane, stash.front())) {
        plane.blocked_socket = stash.front().socket;
        break;
      }
      stash.pop_front();
    }
    OwnedDatagram held;
    while (!plane.is_blocked() && plane.weather.release(now, held)) {
      Stashed s;
      s.socket = static_cast<std::uint8_t>(plane.socket_of(held.entropy));
      s.tos = held.tos;
      s.segment = static_cast<std::uint32_t>(held.bytes.size());
      s.to = held.to;
      s.bytes = std::move(held.bytes);
      plane.stats.bytes_sent += s.bytes.size();
      ++plane.stats.packets_sent;
      if (!send_bytes(plane, s)) {
        plane.blocked_socket = s.socket;
        stash.push_back(std::move(s));
      }
    }
  }
}

Time Sender::deadline() const {
  Time at = Time::never();
  for (const Plane& plane : planes_) at = std::min(at, plane.weather.deadline());
  return at;
}

}  // namespace softmrc::udp
