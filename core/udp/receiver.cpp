#include "udp/receiver.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "udp/device_error.h"
#include "udp/kernel_compat.h"

namespace softmrc::udp {
namespace {

constexpr std::size_t control_bytes = 128;

void read_controls(msghdr& header, GroBatch& out) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO) {
      int size = 0;
      std::memcpy(&size, CMSG_DATA(c), sizeof size);
      out.segment = static_cast<std::uint32_t>(size);
    } else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) {
      out.tos = *CMSG_DATA(c);
    } else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS) {
      int tos = 0;
      std::memcpy(&tos, CMSG_DATA(c), sizeof tos);
      out.tos = static_cast<std::uint8_t>(tos);
    }
  }
}

}  // namespace

void Receiver::Free::operator()(std::uint8_t* p) const { munmap(p, max_messages * message_bytes); }

Receiver::Receiver() {
  void* p = mmap(nullptr, max_messages * message_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) fail_with_errno("cannot have memory for packets that come in");
  memory_.reset(static_cast<std::uint8_t*>(p));
  headers_.resize(max_messages);
  pieces_.resize(max_messages);
  names_.resize(max_messages);
  controls_.resize(max_messages * control_bytes);
  incoming_.reserve(max_messages);
}

const std::vector<GroBatch>& Receiver::receive(const Socket& socket, PlaneStats& stats) {
  incoming_.clear();
  for (std::uint32_t i = 0; i < batch_; ++i) {
    pieces_[i] = {memory_.get() + i * message_bytes, message_bytes};
    msghdr& h = headers_[i].msg_hdr;
    h.msg_name = &names_[i];
    h.msg_namelen = sizeof names_[i];
    h.msg_iov = &pieces_[i];
    h.msg_iovlen = 1;
    h.msg_control = controls_.data() + i * control_bytes;
    h.msg_controllen = control_bytes;
    h.msg_flags = 0;
  }
  const int got = recvmmsg(socket.fd(), headers_.data(), batch_, MSG_DONTWAIT, nullptr);
  may_have_more_ = got == static_cast<int>(batch_);
  std::size_t total = 0;
  for (int i = 0; i < got; ++i) {
    GroBatch in;
    msghdr& h = headers_[static_cast<std::size_t>(i)].msg_hdr;
    const std::size_t size = headers_[static_cast<std::size_t>(i)].msg_len;
    in.from = &names_[static_cast<std::size_t>(i)];
    in.bytes = {memory_.get() + static_cast<std::size_t>(i) * message_bytes, size};
    total += size;
    ++stats.receives;
    if (size == 0 || h.msg_flags & MSG_TRUNC) {
      ++stats.truncated;
      continue;
    }
    read_controls(h, in);
    if (in.segment == 0) in.segment = static_cast<std::uint32_t>(size);
    stats.packets_received += in.packets();
    stats.bytes_received += size;
    incoming_.push_back(in);
  }
  // Long GSO batches: few of them at a time. Single packets: many. Where they are mixed, by their mean.
  if (got > 0) {
    const std::size_t fit = max_bytes * static_cast<std::size_t>(got) / std::max<std::size_t>(total, 1);
    batch_ = static_cast<std::uint32_t>(std::clamp<std::size_t>(fit, few_messages, max_messages));
  }
  return incoming_;
}

}  // namespace softmrc::udp
