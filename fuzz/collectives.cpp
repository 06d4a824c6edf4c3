// A rank of a group, over two channels, whose peers are not to be trusted: they say what an honest peer would say, or
// something else, at the wrong time, twice, or of another size; they write where they were let, or elsewhere, and
// announce what they never wrote. Their queue pairs are honest, so everything arrives. The group may fail; but memory
// whose operation has ended is given back at once, so a late read or write of it is found, and when the group has
// failed nothing may be under way. Any input is a program; see `Machine::step` for its words.
#include <array>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "collectives/group.h"
#include "collectives/immediate.h"
#include "input.h"

namespace {

using namespace softmrc;
using namespace softmrc::collectives;
using fuzz::Input;

constexpr std::uint32_t ranks = 3;
constexpr std::uint32_t channels = 2;
constexpr std::uint32_t mtu = 4096;
constexpr std::uint32_t ring_key = 9, landing_key = 100;  // to the peers' memory: for messages, and for the rest
constexpr std::array<std::uint64_t, 8> sizes = {0, 8, 64, 4096, 8192, 12288, 65600, 300'000};

void expect(bool promise) {
  if (!promise) std::abort();
}

using Memory = std::unique_ptr<std::uint8_t[]>;

// What a rank would call, and the memory for it.
struct Asked {
  CollectiveCall call;
  std::vector<Memory> memory;

  Part part(std::uint64_t bytes) {
    // Exactly as large as it must be, so that a byte too many is seen.
    memory.emplace_back(new std::uint8_t[bytes]());
    return {memory.back().get(), bytes};
  }
};

Asked ask(Kind kind, DType dtype, ReduceOp op, std::int32_t root, std::uint64_t bytes, std::uint32_t rank) {
  Asked asked{{kind, dtype, op, 0.5, root, {}, {}}, {}};
  const bool is_root = root == static_cast<std::int32_t>(rank);
  std::size_t ins = 1, outs = 1;
  switch (kind) {
    case Kind::all_reduce: break;
    case Kind::reduce_scatter: ins = ranks; break;
    case Kind::all_gather: outs = ranks; break;
    case Kind::broadcast: ins = 0; break;
    case Kind::reduce: outs = is_root; break;
    case Kind::gather: outs = is_root ? ranks : 0; break;
    case Kind::scatter: ins = is_root ? ranks : 0; break;
    case Kind::all_to_all: ins = outs = ranks; break;
    case Kind::barrier: ins = outs = 0; break;
  }
  while (asked.call.inputs.size() < ins) asked.call.inputs.push_back(asked.part(bytes));
  while (asked.call.outputs.size() < outs) asked.call.outputs.push_back(asked.part(bytes));
  return asked;
}

proto::EndpointConfig engine_config() {
  proto::EndpointConfig config;
  config.sack_threshold_bytes = 1;
  config.max_events = 16;
  return config;
}

void connect(proto::Endpoint& engine, Time now, std::uint32_t qpn, std::uint32_t dest_qpn, std::uint32_t peer,
             std::uint32_t cq, proto::Domain domain = 0) {
  proto::InitAttributes init;
  init.send_cq = init.recv_cq = cq;
  init.domain = domain;
  proto::RtrAttributes rtr;
  rtr.peer = peer;
  rtr.dest_qpn = dest_qpn;
  rtr.mtu = mtu;
  proto::RtsAttributes rts;
  rts.retry_exponential = 1;
  expect(!engine.create_qp(qpn) && !engine.modify_init(qpn, init) && !engine.modify_rtr(now, qpn, rtr) &&
         !engine.modify_rts(now, qpn, rts));
}

std::uint32_t set_up(proto::Endpoint& engine) {
  auto evs = std::make_shared<proto::EvProfile>();
  evs->count = 2;
  auto window = std::make_shared<proto::CcProfile>();
  window->algorithm = "fixed_window";
  std::uint32_t id = 0;
  expect(!engine.add_ev_profile(evs, id) && !engine.add_cc_profile(window, id));
  return engine.create_cq();
}

// Only `Machine::settle` drives, and time stands still.
struct Stage final : proto::Driver {
  proto::Endpoint engine{engine_config()};
  proto::PlainQpFactory qp_factory;
  std::vector<proto::ProgressHandler*> progress_handlers;
  bool progress_requested = false;

  void run(proto::FunctionRef function) override { function(engine, now()); }
  void run_and_send(proto::FunctionRef function) override { function(engine, now()); }
  void send_pending() override {}
  bool wait_until(const std::function<bool()>& is_done, Duration) override { return is_done(); }
  void request_progress() override { progress_requested = true; }
  void add_progress_handler(proto::ProgressHandler* progress_handler) override {
    progress_handlers.push_back(progress_handler);
  }
  void remove_progress_handler(proto::ProgressHandler* progress_handler) override {
    std::erase(progress_handlers, progress_handler);
  }
  bool is_closed() const override { return false; }
  Time now() const override { return Time{1'000'000}; }

  void progress() {
    progress_requested = false;
    for (proto::ProgressHandler* progress_handler : progress_handlers) progress_handler->progress(engine, now());
  }
};

constexpr std::uint32_t message_qpn(std::uint32_t at, std::uint32_t of) { return 0x100 + 16 * at + 2 * of; }

// What an honest peer would say and write in a collective, on one channel.
struct Share {
  std::vector<MessageHeader> eager;
  MessageHeader grant;
  std::vector<Outbound> writes;
};

// One channel of a peer.
struct Peer {
  proto::Endpoint engine{engine_config()};
  std::uint32_t rank = 0;
  std::uint32_t channel = 0;
  std::uint32_t cq = 0;
  std::uint32_t ring_rkey = 0;  // of the ring that its messages go to
  std::uint64_t written = 0;
  MessageRing inbox;
  std::vector<std::uint8_t> landing = std::vector<std::uint8_t>(
      sizes.back());                           // what is written to it, one over the other
  std::deque<std::vector<std::uint8_t>> sent;  // what the engine may still read
  std::deque<MessageHeader> heard;
  std::vector<Share> shares;
};

class Machine {
 public:
  explicit Machine(Input& in) : in_(in), rank_(in.byte() % ranks) {
    std::vector<ChannelResources> homes;
    for (Stage& stage : stages_) {
      homes.push_back({&stage, &stage.qp_factory, set_up(stage.engine)});
      stage.engine.allow_domains(ranks);
      for (std::uint32_t peer = 0; peer + 1 < ranks; ++peer) stage.engine.add_peer();
    }
    group_ = std::make_unique<Group>(homes, RankInfo{rank_, ranks, mtu}, std::vector<proto::Domain>{1, 2, 3}, 7,
                                     std::make_shared<CompletionNotifier>());
    for (std::uint32_t i = 0; i < peers_.size(); ++i) join(i, homes[i / (ranks - 1)].cq);
    group_->start(8 * mtu);
  }

  ~Machine() {
    group_->close(Duration{0});
    for (const Pending& p : pending_) expect(p.work->has_ended());
  }

  void step() {
    switch (in_.byte() % 8) {
      case 0: issue(); break;
      case 1: send(); break;
      case 2: receive(); break;
      case 3: speak_in_collective(); break;
      case 4: speak_of_send(); break;
      case 5: speak_at_random(); break;
      case 6: write_slice(); break;
      default: write_at_random(); break;
    }
    settle();
  }

 private:
  struct Pending {
    std::shared_ptr<Work> work;
    std::vector<Memory> memory;
  };

  void join(std::uint32_t number, std::uint32_t cq) {
    Peer& peer = peers_[number];
    const std::uint32_t index = number % (ranks - 1);  // also who it is to the engine
    peer.channel = number / (ranks - 1);
    peer.rank = index < rank_ ? index : index + 1;
    peer.cq = set_up(peer.engine);
    peer.inbox.open(peer.channel ? MessageRing::narrow_ring : MessageRing::wide_ring);
    peer.engine.add_peer();
    peer.ring_rkey = group_->ring_rkey(peer.channel, peer.rank);
    expect(peer.engine.add_region({peer.inbox.inbound(), 0, peer.inbox.ring_bytes(), ring_key}));
    for (std::uint32_t i = 0; i < 8; ++i)
      expect(peer.engine.add_region({peer.landing.data(), 0, peer.landing.size(), landing_key + i}));
    Stage& stage = stages_[peer.channel];
    for (std::uint32_t k : {0, 1}) {
      const std::uint32_t here = message_qpn(rank_, peer.rank) + k, there = message_qpn(peer.rank, rank_) + k;
      connect(stage.engine, stage.now(), here, there, index, cq, group_->domain(peer.rank));
      connect(peer.engine, stage.now(), there, here, 0, peer.cq);
      for (std::uint32_t i = 0; i < 64; ++i) peer.engine.post_receive(there, k);
    }
    const std::uint32_t qpn = message_qpn(rank_, peer.rank);
    group_->connect(peer.channel, peer.rank, qpn, qpn + 1, ring_key);
  }

  Peer& any_peer() { return peers_[in_.byte() % peers_.size()]; }
  std::uint64_t any_size() { return sizes[in_.byte() % sizes.size()]; }
  DType any_dtype() { return static_cast<DType>(in_.byte() % element_bytes.size()); }

  // What the callers of this rank do.
  void issue() {
    const auto kind = static_cast<Kind>(in_.byte() % kind_names.size());
    const DType dtype = any_dtype();
    const std::uint8_t how = in_.byte();
    const auto op = static_cast<ReduceOp>(how % op_names.size());
    const std::size_t forced = how / op_names.size() % (algorithm_names.size() + 1);  // 0: none
    std::optional<Algorithm> algorithm;
    if (forced > 0) algorithm = static_cast<Algorithm>(forced - 1);
    const bool is_rooted = kind == Kind::broadcast || kind == Kind::reduce || kind == Kind::gather ||
                           kind == Kind::scatter;
    const std::int32_t root = is_rooted ? in_.byte() % static_cast<std::int32_t>(ranks) : -1;
    const std::uint64_t bytes = kind == Kind::barrier ? 0 : any_size() / size_of(dtype) * size_of(dtype);
    Asked mine = ask(kind, dtype, op, root, bytes, rank_);
    if (!check(mine.call, {rank_, ranks, mtu}).empty()) return;
    ++issued_;
    group_->force(algorithm);
    pending_.push_back({group_->issue(mine.call, 1e6), std::move(mine.memory)});
    for (Peer& peer : peers_) {
      const Asked its = ask(kind, dtype, op, root, bytes, peer.rank);
      auto stripes = cut_into_stripes(plan(its.call, {peer.rank, ranks, 8 * mtu, {}, algorithm}), channels, 8 * mtu);
      stripes.resize(channels);
      peer.shares.push_back(stripes[peer.channel] ? share_of(*stripes[peer.channel]) : Share{});
    }
  }

  Share share_of(const Operation& op) const {
    Share share;
    share.grant.number = issued_;
    share.grant.descriptor = op.descriptor;
    share.grant.type = MessageType::grant;
    share.grant.rkey = landing_key;
    for (const Inbound& in : op.ins)
      if (in.peer == rank_ && !in.is_eager) share.grant.bytes += in.total;
    for (const Outbound& out : op.outs) {
      if (out.peer != rank_) continue;
      if (!out.is_eager) {
        share.writes.push_back(out);
        continue;
      }
      MessageHeader& eager = share.eager.emplace_back(share.grant);
      eager.type = MessageType::eager;
      eager.bytes = out.bytes;
      eager.step = out.index;
    }
    return share;
  }

  void send() {
    Asked asked;
    const Part from = asked.part(any_size());
    const std::uint32_t to = any_peer().rank;
    pending_.push_back({group_->send(from, DType::uint8, to, in_.byte() & 1, 1e6), std::move(asked.memory)});
  }

  void receive() {
    Asked asked;
    const Part to = asked.part(any_size());
    const std::uint8_t bits = in_.byte();
    const std::int32_t source = bits & 2 ? -1 : static_cast<std::int32_t>(any_peer().rank);
    pending_.push_back({group_->receive(to, DType::uint8, source, bits & 1, 1e6), std::move(asked.memory)});
  }

  // What the peers say: right in all but what the bits ask for.
  void speak_in_collective() {
    Peer& peer = any_peer();
    MessageHeader header;
    if (!peer.shares.empty()) {
      const Share& share = peer.shares[peer.shares.size() - 1 - in_.byte() % peer.shares.size()];
      const std::uint8_t which = in_.byte();
      header = which & 1 && !share.eager.empty() ? share.eager[which / 2 % share.eager.size()] : share.grant;
    }
    speak(peer, header, header.type == MessageType::eager ? header.bytes : 0);
  }

  void speak_of_send() {
    Peer& peer = any_peer();
    MessageHeader header;
    const std::uint8_t bits = in_.byte();
    header.tag = bits & 1;
    header.descriptor.dtype = DType::uint8;
    if (bits & 2) {
      header.type = MessageType::accept;
      if (!peer.heard.empty()) header = peer.heard[in_.byte() % peer.heard.size()];
      header.type = MessageType::accept;
      header.rkey = landing_key;
      return speak(peer, header, 0);
    }
    header.type = MessageType::offer;
    header.number = ++offers_;
    header.bytes = any_size();
    header.has_payload = header.bytes <= 4096;
    speak(peer, header, header.has_payload ? header.bytes : 0);
  }

  void speak_at_random() {
    Peer& peer = any_peer();
    MessageHeader header;
    const wire::Bytes raw = in_.bytes(sizeof header);
    std::memcpy(static_cast<void*>(&header), raw.data(), raw.size());
    speak(peer, header, header.payload % (max_payload + 1));
  }

  void speak(Peer& peer, MessageHeader header, std::uint64_t payload) {
    const std::uint16_t wrong = static_cast<std::uint16_t>(in_.byte() | in_.byte() << 8);
    if (wrong & 1) header.type = static_cast<MessageType>(in_.byte() % 16);
    if (wrong & 2) header.number += in_.byte() - 128u;
    if (wrong & 4) header.bytes = wrong & 8 ? in_.longword() : any_size();
    if (wrong & 16) header.descriptor.dtype = static_cast<DType>(in_.byte());
    if (wrong & 32) header.descriptor.kind = static_cast<Kind>(in_.byte());
    if (wrong & 64) payload = in_.word() % (max_payload + 1);
    if (wrong & 128) header.consumed = in_.longword();
    if (wrong & 256) header.taken = in_.word();
    if (wrong & 512) header.rkey = in_.word();
    if (wrong & 1024) header.has_payload ^= 1;
    if (wrong & 4096) header.step = in_.byte() % 4;
    header.payload = static_cast<std::uint16_t>(payload);
    if (wrong & 2048) header.payload = static_cast<std::uint16_t>(in_.word());
    std::vector<std::uint8_t> bytes(sizeof header + payload, 0xC3);
    std::memcpy(bytes.data(), &header, sizeof header);
    const std::uint64_t size = (bytes.size() + 63) / 64 * 64, ring = peer.inbox.ring_bytes();
    const std::uint64_t room = ring - peer.written % ring;
    if (size > room) peer.written += room;
    write(peer, 0, peer.ring_rkey, peer.written % ring, std::move(bytes), 0);
    peer.written += size;
  }

  // What the peers write where they were let.
  void write_slice() {
    Peer& peer = any_peer();
    const std::uint8_t wrong = in_.byte();
    MessageHeader let;
    for (const MessageHeader& header : peer.heard)
      if (header.type == MessageType::grant || header.type == MessageType::accept) let = header;
    if (let.type == MessageType::accept)
      return write(peer, 1, let.rkey, 0, std::vector<std::uint8_t>(let.bytes, 1), send_bit | let.number);
    if (peer.shares.empty()) return;
    const Share& share = peer.shares[(let.number - 1) % peer.shares.size()];
    if (share.writes.empty()) return;
    const Outbound& out = share.writes[in_.byte() % share.writes.size()];
    for (std::uint32_t slice = 0; slice < out.slices.count; ++slice) {
      std::uint64_t at = slice * out.slices.size;
      std::uint64_t bytes = std::min(out.slices.size, out.bytes - at);
      if (wrong & 1) at += in_.byte();
      if (wrong & 2) bytes = 1 + in_.byte();
      write(peer, 1, let.rkey + out.index, at, std::vector<std::uint8_t>(bytes, 1),
            immediate_of(share.grant.number, out.index));
    }
  }

  void write_at_random() {
    Peer& peer = any_peer();
    const std::uint8_t bits = in_.byte();
    std::uint32_t rkey = peer.ring_rkey;
    if (bits & 1 && !peer.heard.empty()) rkey = peer.heard[in_.byte() % peer.heard.size()].rkey + (bits >> 4);
    write(peer, bits >> 1 & 1, rkey, bits & 4 ? in_.word() : in_.byte(), std::vector<std::uint8_t>(1 + in_.byte(), 1),
          in_.word());
  }

  void write(Peer& peer, std::uint32_t qp, std::uint32_t rkey, std::uint64_t va, std::vector<std::uint8_t> bytes,
             std::uint32_t imm) {
    if (bytes.empty()) return;
    peer.sent.push_back(std::move(bytes));
    proto::WorkRequest request;
    request.data = peer.sent.back().data();
    request.length = static_cast<std::uint32_t>(peer.sent.back().size());
    request.remote_va = va;
    request.rkey = rkey;
    request.imm = imm;
    request.has_imm = true;
    peer.engine.post_write(stages_[peer.channel].now(), message_qpn(peer.rank, rank_) + qp, request);
  }

  // Everything arrives, everybody listens, and what has ended is forgotten.
  void settle() {
    for (int rounds = 0; rounds < 1000; ++rounds) {
      bool moved = false;
      for (std::uint32_t k = 0; k < channels; ++k) moved |= exchange(k);
      if (!moved) break;
      for (Stage& stage : stages_) stage.progress();
    }
    const bool has_failed = !group_->error().empty();
    for (const Pending& p : pending_) expect(p.work->has_ended() || !has_failed);
    std::erase_if(pending_, [](const Pending& p) { return p.work->has_ended(); });
  }

  // On one channel.
  bool exchange(std::uint32_t channel) {
    bool moved = stages_[channel].progress_requested;
    proto::Endpoint& engine = stages_[channel].engine;
    const Time now = stages_[channel].now();
    Peer* const peers = &peers_[channel * (ranks - 1)];
    proto::Transmit t;
    proto::Arrival arrival;
    for (std::uint32_t i = 0; i + 1 < ranks; ++i) {
      arrival.peer = i;
      for (; peers[i].engine.poll_transmit(now, 1, t); moved = true) engine.handle_packet(now, t.packet, arrival);
      arrival.peer = 0;
    }
    for (; engine.poll_transmit(now, 1, t); moved = true) peers[t.peer].engine.handle_packet(now, t.packet, arrival);
    for (std::uint32_t i = 0; i + 1 < ranks; ++i) listen(peers[i], now);
    return moved;
  }

  void listen(Peer& peer, Time now) {
    proto::Completion completion;
    while (peer.engine.poll_completions(peer.cq, {&completion, 1})) {
      if (completion.kind != proto::CompletionKind::receive_imm ||
          completion.status != proto::CompletionStatus::success)
        continue;
      peer.engine.post_receive(completion.qpn, completion.wr_id);
      if (completion.wr_id != 0) continue;
      const MessageRing::Received got = peer.inbox.receive(peer.engine, now, completion.length);
      expect(got.is_valid);
      peer.heard.push_back(got.header);
      if (peer.heard.size() > 4) peer.heard.pop_front();
    }
  }

  Input& in_;
  const std::uint32_t rank_;
  std::array<Stage, channels> stages_;
  std::unique_ptr<Group> group_;
  std::array<Peer, channels*(ranks - 1)> peers_;  // channel by channel
  std::vector<Pending> pending_;
  std::uint32_t issued_ = 0;
  std::uint32_t offers_ = 0;
};

}  // namespace

// Rings are large, and an input takes less time than fresh memory for them.
extern "C" const char* __asan_default_options() { return "quarantine_size_mb=16"; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  Machine machine(input);
  for (int steps = 0; steps < 200 && !input.empty(); ++steps) machine.step();
  return 0;
}
