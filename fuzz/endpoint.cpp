// An endpoint with queue pairs in every state, fed with whatever the fuzzer thinks of: raw datagrams, packets that are
// almost right, in batches or not, posts, timeouts, ports that come and go, polls at odd moments, a driver that was
// held up. Nothing may be written outside the registered regions, no check may fail, and the sanitizers must stay
// quiet. Any input is a program; see `Machine::step` for its words.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "input.h"
#include "proto/endpoint.h"

namespace {

using namespace softmrc;
using namespace softmrc::proto;
using fuzz::Input;

constexpr std::uint32_t ports = 3;
constexpr std::uint32_t qpns[] = {0x10, 0x11, 0x12, 0x13, 0x14, 0x15};
constexpr std::size_t guard = 64;
constexpr std::uint8_t fill = 0xA5;
constexpr std::uint64_t port_key = 9;

EndpointConfig endpoint_config(std::uint8_t bits) {
  EndpointConfig config;
  config.ports = ports;
  config.timestamps = bits & 1;
  config.trim_nack = bits & 2;
  config.peer_trim_nack = bits & 4;
  config.proves_addresses = bits & 8;
  config.max_events = 64;
  return config;
}

class Machine {
 public:
  explicit Machine(Input& input)
      : in_(input),
        endpoint_(endpoint_config(input.byte())),
        memory_(region_size + 2 * guard, fill),
        source_(1 << 16, 1) {
    auto evs = std::make_shared<EvProfile>();
    evs->count = 2 * ports;
    evs->spares = ports;
    auto nscc = std::make_shared<CcProfile>();
    auto fixed = std::make_shared<CcProfile>();
    fixed->algorithm = "fixed_window";
    std::uint32_t id = 0;
    if (endpoint_.add_ev_profile(evs, id) || endpoint_.add_cc_profile(nscc, id) || endpoint_.add_cc_profile(fixed, id))
      std::abort();
    cq_ = endpoint_.create_cq();
    endpoint_.add_peer();
    endpoint_.add_peer();
    if (!endpoint_.add_region({memory_.data() + guard, region_va, region_size, 7})) std::abort();
    for (std::uint32_t i = 0; i < 4; ++i)
      while (advance(i)) {}
    // One that failed before it had a peer, and one that is only a number.
    if (!advance(4) || !advance(4)) std::abort();
    endpoint_.modify_error(now_, qpns[4]);
    advance(5);
  }

  ~Machine() {
    for (std::size_t i = 0; i < guard; ++i)
      if (memory_[i] != fill || memory_[memory_.size() - 1 - i] != fill) std::abort();
  }

  void step() {
    const std::uint8_t word = in_.byte();
    if (word & 128) turn_batch();
    switch (word % 16) {
      case 0: return deliver(in_.bytes(in_.byte()));
      case 1:
      case 2:
      case 3: return deliver_write();
      case 4:
      case 5: return deliver_sack();
      case 6: return deliver_nack();
      case 7: return deliver_ack();
      case 8: return deliver_probe();
      case 9: return deliver_node_operation();
      case 10: return pass_time();
      case 11:
      case 12: return drain(in_.byte());
      case 13: return post();
      case 14: return control();
      default: return lifecycle();
    }
  }

 private:
  static constexpr std::uint64_t region_va = ~0ull - 9999;  // ends where the address space does
  static constexpr std::uint64_t region_size = 10000;

  // One state further on the way to RTS, or to RTR for the fourth; false when it is there, or can go nowhere.
  bool advance(std::uint32_t i) {
    const std::uint32_t qpn = qpns[i];
    const auto state = endpoint_.qp_state(qpn);
    if (!state) return !endpoint_.create_qp(qpn);
    switch (*state) {
      case QpState::reset: {
        InitAttributes init;
        init.cc_profile = i & 1;
        if (endpoint_.modify_init(qpn, init)) std::abort();
        return true;
      }
      case QpState::init: {
        RtrAttributes rtr;
        rtr.dest_qpn = 0x20 + i;
        rtr.mtu = 512;
        rtr.first_psn = Psn(0xFFFFF0);
        rtr.dynamic_mpr = i & 1;
        rtr.max_wimm_dest = 8;
        rtr.peer = i & 1;
        if (i & 2) rtr.port_key = rtr.peer_port_key = port_key;
        if (endpoint_.modify_rtr(now_, qpn, rtr)) std::abort();
        return true;
      }
      case QpState::rtr: {
        if (i == 3) return false;
        RtsAttributes rts;
        rts.first_psn = Psn(0xFFFFFA);
        rts.timeout = i;
        rts.retry_exponential = i == 0 ? 3 : retry_forever;
        rts.max_wimm = 8;
        if (endpoint_.modify_rts(now_, qpn, rts)) std::abort();
        return true;
      }
      default: return false;
    }
  }

  void turn_batch() {
    if (in_batch_) endpoint_.end_batch(now_);
    else endpoint_.begin_batch();
    in_batch_ = !in_batch_;
  }

  std::uint32_t any_qpn() { return qpns[in_.byte() % std::size(qpns)]; }

  Arrival arrival() {
    const std::uint8_t bits = in_.byte();
    Arrival a;
    a.port = bits & 3;
    a.peer = bits & 4 ? 1 : 0;
    a.congestion = bits & 8;
    a.trim = bits & 16 ? (bits & 32 ? Trim::trimmed_last_hop : Trim::trimmed) : Trim::none;
    if ((bits & 192) == 192) a.peer = no_peer;
    a.entropy = in_.byte();
    return a;
  }

  void deliver(wire::Bytes bytes) {
    const Arrival a = arrival();
    wire::ParseOptions options;
    options.has_icrc = in_.byte() & 1;
    options.trimmed = a.trim != Trim::none;
    // A copy of exactly this size, so that reading past its end is seen.
    const std::vector<std::uint8_t> exact(bytes.begin(), bytes.end());
    endpoint_.handle_datagram(now_, exact, a, options);
  }

  void deliver(const wire::Packet& packet) {
    std::vector<std::uint8_t> bytes(wire::packet_size(packet));
    bytes.resize(wire::emit(packet, bytes));
    // Sometimes one byte is wrong, sometimes the end is missing.
    const std::uint8_t damage = in_.byte();
    if (damage & 1 && !bytes.empty()) bytes[in_.byte() % bytes.size()] ^= in_.byte();
    if (damage & 2) bytes.resize(bytes.size() - std::min<std::size_t>(bytes.size(), in_.byte()));
    Arrival a = arrival();
    // Most packets should get as far as their queue pair.
    if (damage & 12 && packet.bth.dqp >= qpns[0]) a.peer = (packet.bth.dqp - qpns[0]) & 1;
    wire::ParseOptions options;
    options.has_icrc = false;
    options.trimmed = a.trim != Trim::none;
    endpoint_.handle_datagram(now_, bytes, a, options);
  }

  Psn near(Psn center) {
    const std::uint8_t how = in_.byte();
    if (how == 255) return Psn(in_.word());
    if (how >= 240) return center + (static_cast<std::int64_t>(in_.byte()) << 7);
    return center + (static_cast<std::int64_t>(how % 24) - 4);
  }

  wire::Packet to(std::uint32_t qpn, wire::Opcode opcode, Psn psn) {
    wire::Packet p;
    p.bth.opcode = opcode;
    p.bth.dqp = qpn;
    p.bth.psn = psn.value;
    return p;
  }

  void deliver_write() {
    const std::uint32_t qpn = any_qpn();
    QueuePair* pair = endpoint_.qp(qpn);
    const std::uint8_t shape = in_.byte();
    wire::Packet p = to(qpn, static_cast<wire::Opcode>(0xC6 + shape % 6),
                        pair ? near(pair->responder().expected()) : Psn(0));
    p.bth.ack_request = shape & 8;
    p.bth.retransmission = shape & 16;
    p.bth.timestamped = shape & 32;
    auto& w = p.body.emplace<wire::Write>();
    w.meth = {static_cast<std::uint16_t>(in_.byte() % 12), in_.byte()};
    w.payload_size = shape & 64 ? 512 : in_.byte() + 1u;
    w.reth.dmalen = shape & 128 ? in_.word()
                                : (wire::is_last(p.bth.opcode) && wire::is_first(p.bth.opcode) ? w.payload_size
                                                                                               : 512 + w.payload_size);
    w.reth.rkey = in_.byte() % 8 ? 7 : in_.byte();
    const std::uint8_t where = in_.byte();
    w.reth.va = where == 255 ? in_.longword() : region_va + where * 40u;
    deliver(p);
  }

  void deliver_sack() {
    const std::uint32_t qpn = any_qpn();
    QueuePair* pair = endpoint_.qp(qpn);
    const Psn cack = pair ? near(pair->requester().next_psn() - in_.byte()) : Psn(0);
    wire::Packet p = to(qpn, wire::Opcode::sack, cack);
    auto& s = p.body.emplace<wire::Sack>();
    const std::uint8_t bits = in_.byte();
    s.cack_psn = cack.value;
    s.mark = static_cast<wire::Mark>(bits % 3);
    s.answers_probe = bits & 8;
    s.ack_psn_offset = static_cast<std::int16_t>(bits & 16 ? in_.word() : in_.byte());
    s.sack_offset = static_cast<std::int16_t>(bits & 32 ? in_.word() : in_.byte() % 80);
    s.bitmap = bits & 64 ? in_.longword() : 1ull << (bits & 63);
    s.mpr = bits & 128 ? in_.byte() : 0;
    rcvd_ += in_.byte();
    s.cc = {static_cast<std::uint16_t>(in_.byte()), 0, (bits & 4) != 0, static_cast<std::uint8_t>(in_.byte() & 127),
            rcvd_ & 0xFFFFFF};
    deliver(p);
  }

  void deliver_nack() {
    const std::uint32_t qpn = any_qpn();
    QueuePair* pair = endpoint_.qp(qpn);
    const Psn psn = pair ? near(pair->requester().next_psn() - in_.byte()) : Psn(0);
    wire::Packet p = to(qpn, wire::Opcode::nack, psn);
    auto& n = p.body.emplace<wire::Nack>();
    n.reason = static_cast<wire::NackReason>(in_.byte() % 32);
    n.nack_psn = psn.value;
    n.tx_timestamp = in_.byte();
    deliver(p);
  }

  void deliver_ack() {
    const std::uint32_t qpn = any_qpn();
    QueuePair* pair = endpoint_.qp(qpn);
    wire::Packet p = to(qpn, wire::Opcode::acknowledge,
                        pair ? near(pair->requester().next_psn() - in_.byte()) : Psn(0));
    const std::uint8_t syndrome = in_.byte();
    p.body = wire::Aeth{syndrome < 240 ? wire::Syndrome::ack : static_cast<wire::Syndrome>(in_.byte()),
                        in_.word() & 0xFFFFFF};
    if (syndrome < 200) std::get<wire::Aeth>(p.body).msn &= 0x0F;
    deliver(p);
  }

  void deliver_probe() {
    wire::Packet p = to(any_qpn(), wire::Opcode::probe, Psn(0));
    p.body.emplace<wire::Probe>().probe_id = in_.byte();
    deliver(p);
  }

  void deliver_node_operation() {
    const std::uint8_t bits = in_.byte();
    wire::Packet p = to(wire::endpoint_qpn, bits & 1 ? wire::Opcode::endpoint_request : wire::Opcode::endpoint_response,
                        Psn(in_.byte()));
    const std::uint64_t key = bits & 4 ? port_key : 0;
    if (bits & 1) p.body = wire::EndpointRequest{static_cast<wire::EndpointOp>(bits >> 1 & 1), 0, in_.word(), {}, key};
    else p.body = wire::EndpointResponse{static_cast<wire::EndpointOp>(bits >> 1 & 1), {}, key};
    // Or what an honest peer says to the last request, but for a bit.
    if ((bits & 9) == 8) {
      p.bth.psn = asked_.id;
      p.body = wire::EndpointResponse{asked_.request.op, asked_.request.timestamp,
                                      asked_.request.key ^ (bits >> 4 & 1)};
    }
    deliver(p);
  }

  void pass_time() {
    const std::uint8_t bits = in_.byte();
    now_ = now_ + nanoseconds(static_cast<std::int64_t>(in_.byte()) << (bits % 24));
    if (bits & 32) now_ = std::max(now_, std::min(endpoint_.poll_timeout(), now_ + seconds(1)));
    if (bits & 64) endpoint_.handle_timeout(now_);
    if (bits & 128) endpoint_.handle_stall(now_);
  }

  void drain(std::uint8_t bits) {
    Transmit t;
    std::vector<std::uint8_t> bytes;
    for (unsigned left = bits; left && endpoint_.poll_transmit(now_, bits | 1u, t); --left) {
      bytes.resize(wire::packet_size(t.packet));
      if (wire::emit(t.packet, bytes) != bytes.size() || t.port >= ports) std::abort();
      if (const auto* request = std::get_if<wire::EndpointRequest>(&t.packet.body))
        asked_ = {t.packet.bth.psn, *request};
    }
    Completion completions[8];
    while (endpoint_.poll_completions(cq_, completions)) {}
    Event event;
    while (endpoint_.poll_event(event)) {}
  }

  void post() {
    const std::uint32_t qpn = any_qpn();
    const std::uint8_t bits = in_.byte();
    if (bits & 1) endpoint_.post_receive(qpn, bits);
    WorkRequest request;
    request.length = 1 + (bits & 2 ? in_.word() % static_cast<std::uint32_t>(source_.size()) : in_.byte());
    request.data = bits & 4 ? source_.data() : nullptr;
    if (bits & 32) request.length = 0;
    request.length = std::min<std::uint32_t>(request.length, static_cast<std::uint32_t>(source_.size()));
    request.has_imm = bits & 8;
    request.is_signaled = bits & 16;
    endpoint_.post_write(now_, qpn, request);
  }

  void control() {
    const std::uint8_t bits = in_.byte();
    const std::uint32_t qpn = any_qpn();
    QueuePair* pair = endpoint_.qp(qpn);
    switch (bits % 8) {
      case 0:
      case 1: return endpoint_.set_port(now_, in_.byte() % ports, bits & 8);
      case 2: static_cast<void>(endpoint_.probe(now_, bits >> 7, in_.byte() % 4, in_.byte(), 1)); return;
      default: break;
    }
    if (!pair) return;
    pair->build_evs();
    const auto ev = static_cast<std::uint16_t>(in_.byte() % pair->requester().evs().size());
    switch (bits % 8) {
      case 3: pair->deny_ev(now_, ev); break;
      case 4: pair->allow_ev(now_, ev); break;
      case 5: static_cast<void>(pair->replace_ev(now_, ev, in_.word())); break;
      case 6: pair->responder().set_window(8 + in_.byte() % 248); break;
      default: pair->responder().set_penalty(in_.byte() & 127); break;
    }
    endpoint_.wake(now_, qpn);
  }

  void lifecycle() {
    const std::uint32_t i = in_.byte() % std::size(qpns);
    const std::uint8_t bits = in_.byte();
    if (bits < 32) endpoint_.destroy_qp(now_, qpns[i]);
    else if (bits < 64) endpoint_.modify_error(now_, qpns[i]);
    else if (bits < 160) advance(i);
    else
      while (advance(i)) {}
  }

  Input& in_;
  Endpoint endpoint_;
  std::vector<std::uint8_t> memory_;
  std::vector<std::uint8_t> source_;
  Time now_{};
  bool in_batch_ = false;
  std::uint32_t cq_ = 0;
  std::uint32_t rcvd_ = 0;
  struct Asked {
    std::uint32_t id = 0;
    wire::EndpointRequest request;
  };
  Asked asked_;  // the last request that was polled
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  Machine machine(input);
  while (!input.empty()) machine.step();
  return 0;
}
