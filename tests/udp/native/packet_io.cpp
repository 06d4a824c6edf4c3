// Faults around a link that only records: whatever is sent comes out as the faults say and the counters tell, by the
// seed. And a plane on a kernel that has no room, cannot segment, or speaks of earlier errors: all leaves once, and in
// order. Prints what it saw; exits with 1 where something does not hold.
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "udp/kernel_compat.h"
#include "udp/plane.h"
#include "wire/packet.h"

using namespace softmrc;
using udp::FaultInjector;
using udp::Faults;
using udp::GsoBatch;
using Packet = std::vector<std::uint8_t>;

namespace {

constexpr std::size_t trimmed_size = wire::Bth::size + wire::Meth::size + wire::Reth::size;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::_Exit(1);
}

struct Sent {
  std::uint32_t socket = 0;
  std::uint8_t tos = 0;
  Packet bytes;
  bool is_in_place = false;  // in the sender's own memory
  bool operator==(const Sent&) const = default;
};

Packet joined(const iovec* pieces, std::size_t count) {
  Packet bytes;
  for (const iovec& piece : std::span(pieces, count)) {
    const auto* p = static_cast<std::uint8_t*>(piece.iov_base);
    bytes.insert(bytes.end(), p, p + piece.iov_len);
  }
  return bytes;
}

struct Kernel {
  Prng prng{1, "kernel"};
  bool segments = true;
  bool spoke = false;  // of an earlier error, and does not do so twice in a row
  std::uint64_t refusals = 0;
  std::uint64_t trains_tried = 0;
  std::vector<Packet> sent;
};
Kernel kernel;

struct Memory final : udp::PacketIo {
  std::vector<std::uint8_t> own;
  std::vector<Sent> sent;
  std::vector<udp::GroBatch> waiting;
  int reports = 0;

  void send(Time, std::uint32_t socket, std::span<const GsoBatch> batches) override {
    for (const GsoBatch& batch : batches) {
      require(batch.packets == (batch.bytes + batch.segment - 1) / batch.segment, "a batch knows how many it has");
      std::vector<iovec> pieces;
      batch.for_each_packet(pieces, [&](const GsoBatch& packet) {
        Sent one{socket, packet.tos, joined(packet.pieces, packet.piece_count), true};
        for (const iovec& piece : std::span(packet.pieces, packet.piece_count)) {
          const auto* p = static_cast<std::uint8_t*>(piece.iov_base);
          one.is_in_place = one.is_in_place && p >= own.data() && p + piece.iov_len <= own.data() + own.size();
        }
        require(one.bytes.size() == packet.bytes && packet.packets == 1, "a packet has its bytes");
        sent.push_back(one);
      });
    }
  }
  void send_delayed(Time) override {}
  Time deadline() const override { return Time::never(); }
  std::span<const udp::GroBatch> receive(udp::Receiver&) override { return waiting; }
  bool next_error(std::uint32_t, udp::SendError& out) override {
    out.is_port_unreachable = true;
    return reports-- > 0;
  }
};

// Writes of one size, the last one shorter, each different from all others, in pieces that respect nothing.
struct Load {
  udp::Destination to;
  wire::Address address{wire::Ipv4{127, 0, 0, 1}};
  std::vector<Packet> packets;
  std::vector<std::vector<iovec>> pieces;
  std::vector<GsoBatch> batches;

  Load(std::uint64_t seed, Memory& memory, std::uint32_t count = 30) {
    Prng prng(seed, "load");
    std::uint32_t number = 0;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> shapes;
    for (std::uint32_t t = 0; t < count; ++t) {
      const std::uint32_t in_train = 1 + prng.below(12);
      const std::uint32_t payload = 4 * (10 + prng.below(100));
      std::uint32_t size = 0;
      for (std::uint32_t i = 0; i < in_train; ++i) {
        wire::Packet packet;
        packet.bth.psn = number++;
        wire::Write write;
        write.reth.va = prng.bits();
        write.payload_size = i + 1 == in_train ? payload - 4 * prng.below(8) : payload;
        Packet content(write.payload_size);
        for (auto& byte : content) byte = static_cast<std::uint8_t>(prng.bits());
        write.payload = content.data();
        packet.body = write;
        Packet bytes(wire::packet_size(packet) + wire::icrc_size);
        wire::emit(packet, bytes);
        if (i == 0) size = static_cast<std::uint32_t>(bytes.size());
        packets.push_back(bytes);
        memory.own.insert(memory.own.end(), bytes.begin(), bytes.end());
      }
      shapes.emplace_back(size, in_train);
    }
    std::size_t at = 0, of = 0;
    for (const auto& [size, in_train] : shapes) {
      GsoBatch batch;
      batch.to = &to;
      batch.address = &address;
      batch.tos = 2;
      batch.segment = size;
      batch.packets = in_train;
      for (std::uint32_t i = 0; i < in_train; ++i) batch.bytes += static_cast<std::uint32_t>(packets[of++].size());
      pieces.emplace_back();
      for (std::size_t done = 0; done < batch.bytes;) {
        const std::size_t some = std::min<std::size_t>(1 + prng.below(300), batch.bytes - done);
        pieces.back().push_back({memory.own.data() + at, some});
        at += some;
        done += some;
      }
      batches.push_back(batch);
    }
    for (std::size_t t = 0; t < batches.size(); ++t) {
      batches[t].pieces = pieces[t].data();
      batches[t].piece_count = static_cast<std::uint32_t>(pieces[t].size());
    }
  }
};

struct Run {
  Memory memory;
  Load load;
  FaultInjector foul;
  Time now{0};

  Run(std::uint64_t load_seed, std::uint64_t seed, const Faults& faults) : load(load_seed, memory) {
    foul.set_up(seed, 0, {});
    foul.wrap(memory);
    foul.set(faults);
  }
  void send() {
    for (std::size_t t = 0; t < load.batches.size(); ++t) foul.send(now, t % 3, {&load.batches[t], 1});
  }
  // Until nothing is held any more.
  void finish() {
    for (Time at = foul.deadline(); at != Time::never(); at = foul.deadline()) {
      require(at > now, "what is due has left");
      const std::size_t before = memory.sent.size();
      foul.send_delayed(Time{at.ps - 1});
      require(memory.sent.size() == before, "nothing leaves early");
      foul.send_delayed(now = at);
      require(memory.sent.size() > before, "what is due leaves");
    }
  }
};

// The packet that this one was, and how many bits of it are not as they were.
std::pair<std::uint32_t, int> likest(const std::vector<Packet>& known, const Sent& sent) {
  const bool is_trimmed = sent.tos >> 2 == wire::DscpMap{}.trimmed;
  std::pair<std::uint32_t, int> best{0, 1 << 20};
  for (std::uint32_t number = 0; number < known.size(); ++number) {
    if (is_trimmed ? sent.bytes.size() != trimmed_size : sent.bytes.size() != known[number].size()) continue;
    int flipped = 0;
    for (std::size_t i = 0; i < sent.bytes.size() && flipped < 2; ++i)
      flipped += std::popcount(static_cast<unsigned>(sent.bytes[i] ^ known[number][i]));
    if (flipped < best.second) best = {number, flipped};
  }
  return best;
}

void loss_thins_trains_and_copies_nothing(std::uint64_t seed) {
  Faults faults;
  faults.drop = 0.2;
  Run run(seed, seed, faults);
  run.send();
  require(run.foul.stats().dropped > 0 && run.foul.deadline() == Time::never(), "some are dropped, none held");
  require(run.memory.sent.size() + run.foul.stats().dropped == run.load.packets.size(), "the others leave");
  auto next = run.load.packets.begin();
  for (const Sent& sent : run.memory.sent) {
    require(sent.is_in_place, "from the sender's memory");
    next = std::find(next, run.load.packets.end(), sent.bytes);
    require(next++ != run.load.packets.end(), "as they were, in their order");
  }
}

void a_storm_adds_up(std::uint64_t seed) {
  Faults faults;
  faults.drop = faults.duplicate = faults.reorder = faults.corrupt = faults.mark = faults.trim = 0.1;
  faults.delay = microseconds(5);
  Run run(seed, seed, faults);
  run.send();
  require(run.memory.sent.empty(), "all are delayed");
  run.finish();
  const udp::FaultStats& stats = run.foul.stats();
  require(stats.dropped && stats.duplicated && stats.reordered && stats.corrupted && stats.marked && stats.trimmed,
          "of every kind");
  require(run.memory.sent.size() == run.load.packets.size() - stats.dropped + stats.duplicated,
          "as many as are counted");
  std::uint64_t corrupted = 0, marked = 0, trimmed = 0;
  std::uint32_t newest = 0, overtaken = 0;
  for (const Sent& sent : run.memory.sent) {
    const auto [number, flipped] = likest(run.load.packets, sent);
    require(flipped <= 1, "one bit at most");
    corrupted += flipped == 1;
    marked += (sent.tos & 3) == 3;
    trimmed += sent.bytes.size() == trimmed_size;
    overtaken += number < newest;
    newest = std::max(newest, number);
  }
  require(corrupted == stats.corrupted && marked == stats.marked, "what is counted is seen");
  require(trimmed >= stats.trimmed, "and so is what was trimmed, which may be duplicated");
  require(overtaken > 0, "some come late");
}

void the_seed_decides() {
  Faults faults;
  faults.drop = faults.duplicate = faults.reorder = faults.corrupt = faults.mark = faults.trim = 0.1;
  std::vector<std::vector<Sent>> runs;
  for (std::uint64_t seed : {1, 1, 2}) {
    Run run(9, seed, faults);
    run.send();
    run.finish();
    runs.push_back(run.memory.sent);
  }
  require(runs[0] == runs[1], "the same seed, the same faults");
  require(runs[0] != runs[2], "another seed, another");
}

void what_is_held_can_be_let_go() {
  Faults faults;
  faults.delay = seconds(3600);
  Run run(3, 3, faults);
  run.send();
  faults = Faults{};
  faults.black_hole = true;
  run.foul.set(faults);
  run.send();
  require(run.memory.sent.empty() && run.foul.stats().swallowed == run.load.packets.size(),
          "one is delayed, the next dropped");
  run.memory.own.assign(run.memory.own.size(), 0);  // it was the sender's, who may do with it as he likes
  run.foul.flush(run.now);
  require(run.memory.sent.size() == run.load.packets.size() && run.foul.deadline() == Time::never(),
          "all that was held leaves");
  for (std::size_t i = 0; i < run.load.packets.size(); ++i)
    require(run.memory.sent[i].bytes == run.load.packets[i], "in its order");
}

void what_comes_in_is_thinned() {
  udp::Receiver receiver;
  Faults faults;
  faults.drop = 0.3;
  Run run(4, 4, faults);
  std::size_t at = 0;
  const sockaddr_storage from{.ss_family = AF_INET};
  for (const GsoBatch& batch : run.load.batches) {
    udp::GroBatch in;
    in.from = &from;
    in.bytes = {run.memory.own.data() + at, batch.bytes};
    in.segment = batch.segment;
    in.tos = 3;
    at += batch.bytes;
    run.memory.waiting.push_back(in);
  }
  std::size_t came = 0;
  auto next = run.load.packets.begin();
  for (const udp::GroBatch& in : run.foul.receive(receiver)) {
    require(in.tos == 3, "as it came");
    for (std::size_t p = 0; p < in.bytes.size(); p += in.segment, ++came) {
      const auto one = in.bytes.subspan(p, std::min<std::size_t>(in.segment, in.bytes.size() - p));
      next = std::find(next, run.load.packets.end(), Packet(one.begin(), one.end()));
      require(next++ != run.load.packets.end(), "whole packets, in their order");
    }
  }
  require(came > 0 && run.foul.stats().dropped > 0 && came + run.foul.stats().dropped == run.load.packets.size(),
          "the others come in");

  udp::SendError error;
  run.memory.reports = 2;
  require(run.foul.next_error(0, error) && error.is_port_unreachable, "reports pass through loss");
  faults.black_hole = true;
  run.foul.set(faults);
  require(run.foul.receive(receiver).empty(), "nothing comes out of a black hole");
  require(run.foul.next_error(0, error) && !error.is_port_unreachable && !run.foul.next_error(0, error),
          "nor a report");
}

std::uint16_t segment_of(msghdr& header) {
  std::uint16_t size = 0;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c; c = CMSG_NXTHDR(&header, c))
    if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_SEGMENT) std::memcpy(&size, CMSG_DATA(c), sizeof size);
  return size;
}

int refuse(int error) {
  ++kernel.refusals;
  errno = error;
  return -1;
}

void a_plane_sends_all_once_and_in_order(std::uint64_t seed) {
  kernel = Kernel{};
  kernel.prng = Prng(seed, "kernel");
  kernel.segments = seed % 2;
  Memory memory;
  Load load(seed, memory);
  udp::Plane plane;
  plane.plan.address = wire::Ipv4{127, 0, 0, 1};
  plane.sockets.resize(3);
  Faults faults;
  faults.delay = seconds(1);
  std::size_t told = 0;
  for (std::size_t t = 0; t < load.batches.size();) {
    const std::size_t some = std::min<std::size_t>(1 + kernel.prng.below(3), load.batches.size() - t);
    if (kernel.prng.chance(0.2)) plane.set_faults(Time{0}, kernel.prng.chance(0.5) ? faults : Faults{});
    plane.io().send(Time{0}, static_cast<std::uint32_t>(t % 3), std::span(load.batches).subspan(t, some));
    for (std::size_t i = t; i < t + some; ++i)
      for (const iovec& piece : load.pieces[i])
        std::fill_n(static_cast<std::uint8_t*>(piece.iov_base), piece.iov_len, std::uint8_t{0});
    t += some;
    if (plane.is_blocked()) {
      require(kernel.sent.size() >= told, "what was sent stays so");
      told = kernel.sent.size();
      plane.io().send_delayed(Time{0});
      require(kernel.sent.size() == told, "nothing is tried where there is no room");
      if (kernel.prng.chance(0.5)) plane.blocked_socket = -1;
    }
    if (kernel.prng.chance(0.5)) plane.io().send_delayed(Time{0});
  }
  plane.set_faults(Time{0}, Faults{});
  for (int i = 0; i < 10'000 && kernel.sent.size() < load.packets.size(); ++i) {
    plane.blocked_socket = -1;
    plane.io().send_delayed(Time{0});
  }
  require(kernel.sent == load.packets, "each once, in order, as it was");
  require(plane.stats.packets_sent == load.packets.size() && plane.stats.send_refused == 0, "and so it is counted");
  require(plane.stats.send_blocked > 0 && kernel.refusals > 0, "though there was trouble");
  require(plane.has_gso == kernel.segments, "it knows whether batches are of use");
}

// A route that is gone for a moment refuses batches like an interface that cannot cut them. Which it was, time tells.
void a_plane_tries_trains_again_after_ever_longer_waits() {
  kernel = Kernel{};
  kernel.segments = false;
  Memory memory;
  Load load(5, memory);
  udp::Plane plane;
  plane.plan.address = wire::Ipv4{127, 0, 0, 1};
  plane.sockets.resize(1);
  const auto send_all = [&](Time now) {
    kernel.sent.clear();
    plane.io().send(now, 0, load.batches);
    for (int i = 0; i < 10'000 && kernel.sent.size() < load.packets.size(); ++i) {
      plane.blocked_socket = -1;
      plane.io().send_delayed(now);
    }
    require(kernel.sent == load.packets, "all are sent, batches or not");
  };
  std::vector<std::int64_t> tried;  // in quarters of a second
  std::int64_t at = 0;
  for (; at < 4 * 400; ++at) {
    const std::uint64_t before = kernel.trains_tried;
    send_all(Time{} + milliseconds(250) * at);
    if (kernel.trains_tried > before) tried.push_back(at);
  }
  for (std::size_t i = 0; i + 1 < tried.size(); ++i)
    require(tried[i + 1] - tried[i] == std::min(4 << i, 4 * 64), "after a second, two, four, and so on up to 64");
  require(tried.size() > 8 && plane.stats.gso_refused == tried.size(), "each is counted");
  kernel.segments = true;
  const auto is_whole = [&] {
    send_all(Time{} + milliseconds(250) * ++at);
    return plane.has_gso;
  };
  while (!is_whole()) require(at < 4 * 600, "what can be cut again is sent whole again");
  send_all(Time{} + milliseconds(250) * ++at);
  kernel.segments = false;
  send_all(Time{} + milliseconds(250) * at);
  const std::uint64_t before = kernel.trains_tried;
  for (const std::int64_t until = at + 3; at < until;) send_all(Time{} + milliseconds(250) * ++at);
  require(kernel.trains_tried == before, "the next wait is a second again");
  send_all(Time{} + milliseconds(250) * ++at);
  require(kernel.trains_tried > before, "and no longer");
}

}  // namespace

extern "C" int sendmmsg(int, mmsghdr* messages, unsigned count, int) {
  if (kernel.prng.chance(0.1)) return refuse(EINTR);
  if (kernel.prng.chance(0.2)) return refuse(EAGAIN);
  kernel.spoke = !kernel.spoke && kernel.prng.chance(0.2);
  if (kernel.spoke) return refuse(ECONNREFUSED);
  unsigned done = 0;
  for (const unsigned room = 1 + kernel.prng.below(count); done < room; ++done) {
    msghdr& header = messages[done].msg_hdr;
    const std::uint16_t segment = segment_of(header);
    kernel.trains_tried += segment != 0;
    if (segment && !kernel.segments) break;
    const Packet bytes = joined(header.msg_iov, header.msg_iovlen);
    const std::size_t step = segment ? segment : bytes.size();
    for (std::size_t at = 0; at < bytes.size(); at += step)
      kernel.sent.emplace_back(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                               bytes.begin() + static_cast<std::ptrdiff_t>(std::min(at + step, bytes.size())));
  }
  return done ? static_cast<int>(done) : refuse(EIO);
}

int main() {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    loss_thins_trains_and_copies_nothing(seed);
    a_storm_adds_up(seed);
    a_plane_sends_all_once_and_in_order(seed);
  }
  a_plane_tries_trains_again_after_ever_longer_waits();
  the_seed_decides();
  what_is_held_can_be_let_go();
  what_comes_in_is_thinned();
  std::puts("all holds");
}
