// The requests of the control protocol, by name. Each handler gets the request, and throws HostError with an error.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "control/control_server.h"
#include "control/request_args.h"
#include "host/faults.h"
#include "host/host_error.h"
#include "host/planes.h"
#include "udp/views.h"

namespace softmrc::control {

std::string hex_of(const wire::EvBytes& bytes) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : bytes) (text += digits[byte >> 4]) += digits[byte & 15];
  return text;
}

proto::EvValue ev_value(const RequestArgs& args, const char* name) {
  if (!args.is_text(name)) return static_cast<std::uint32_t>(args.whole(name, 0, 0xFFFFFFFF));
  const std::string& text = args.text(name);
  wire::EvBytes bytes{};
  bool is_hex = text.size() == 2 * bytes.size();
  for (std::size_t i = 0; is_hex && i < bytes.size(); ++i) {
    const char* const at = text.data() + 2 * i;
    const auto [to, error] = std::from_chars(at, at + 2, bytes[i], 16);
    is_hex = error == std::errc{} && to == at + 2;
  }
  if (!is_hex) args.refuse(name, "a number of 32 bits, or " + std::to_string(2 * bytes.size()) + " hexadecimal digits");
  return bytes;
}

namespace {

constexpr std::int64_t protocol = 1;
constexpr std::size_t longest_program = 1024;
constexpr std::int64_t max_events = 4096;
constexpr std::size_t max_probes = 1024;  // in a batch

std::uint32_t plane_of(const RequestArgs& args, udp::Device& device) {
  return static_cast<std::uint32_t>(args.whole("plane", 0, device.planes() - 1));
}

// Names ------------------------------------------------------------------------------------------------------------

constexpr std::array qp_states{"reset", "init", "rtr", "rts", "error"};
constexpr std::array statuses{"success",        "flushed",          "retry_exceeded", "remote_access",
                              "remote_invalid", "remote_operation", "local_protocol", "peer_error"};
constexpr std::array refusals{
    "malformed",      "bad_icrc",      "unknown_qp",    "wrong_peer",      "wrong_state",
    "unknown_peer",   "out_of_window", "remote_access", "invalid_request", "bad_acknowledgement",
    "unknown_answer", "wrong_pair",    "unproven",      "last_port",       "wrong_proof",
    "unsealed",       "forged",        "replayed"};
constexpr std::array event_types {
#define X(name, notable, meaning) #name,
  SOFTMRC_EVENTS(X)
#undef X
};

#define SOFTMRC_ADD(name) found.emplace_back(#name, stats.name);
#define SOFTMRC_COUNTERS_OF(Stats, COUNTERS)     \
  Json::Object counters_of(const Stats& stats) { \
    Json::Object found;                          \
    COUNTERS(SOFTMRC_ADD)                        \
    return found;                                \
  }
SOFTMRC_COUNTERS_OF(udp::PlaneStats, SOFTMRC_PLANE_COUNTERS)
SOFTMRC_COUNTERS_OF(udp::FaultStats, SOFTMRC_FAULT_COUNTERS)
SOFTMRC_COUNTERS_OF(udp::LaneStats, SOFTMRC_LANE_COUNTERS)
SOFTMRC_COUNTERS_OF(proto::EndpointStats, SOFTMRC_ENDPOINT_COUNTERS)
SOFTMRC_COUNTERS_OF(proto::QpStats, SOFTMRC_QP_COUNTERS)
#undef SOFTMRC_COUNTERS_OF
#undef SOFTMRC_ADD

// What it is -------------------------------------------------------------------------------------------------------

std::string program() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  while (!text.empty() && text.back() == '\0') text.pop_back();
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text.substr(0, longest_program);
}

Json::Object info(udp::Device& device, const DeviceInfo& facts, const RequestArgs&) {
  Json::List planes;
  for (std::size_t p = 0; p < device.plan().planes.size(); ++p) {
    const udp::PlaneConfig& plane = device.plan().planes[p];
    planes.push_back(Json::Object{{"address", udp::text_of(plane.address)},
                                  {"interface", plane.interface},
                                  {"link", plane.link},
                                  {"speed_bps", p < facts.speeds_bps.size() ? facts.speeds_bps[p] : 0}});
  }
  return {{"protocol", protocol},
          {"pid", getpid()},
          {"number", facts.number},
          {"program", program()},
          {"kind", facts.kind},
          {"started", facts.started},
          {"planes", std::move(planes)},
          {"lanes", device.lanes()},
          {"open_lanes", device.open_lanes()},
          {"mtu", facts.mtu},
          {"settings", facts.settings}};
}

Json capture_of(udp::Device& device) {
  const auto capture = device.capture();
  if (!capture) return {};
  return Json::Object{{"path", capture->path}, {"packets", capture->packets}};
}

Json::List planes_of(udp::Device& device) {
  Json::List planes;
  for (const udp::PlaneView& view : udp::view_planes(device)) {
    Json::Object plane = counters_of(view.stats);
    plane.emplace_back("is_up", view.is_up);
    plane.emplace_back("is_admin_up", view.is_admin_up);
    plane.emplace_back("is_link_up", view.is_link_up);
    plane.emplace_back("link_mtu", view.link_index ? udp::link_mtu(view.link_index) : 0);
    plane.emplace_back("path_mtu", view.path_mtu);
    plane.emplace_back("interface", view.interface);
    plane.emplace_back("has_gso", view.has_gso);
    plane.emplace_back("source_ports", Json::List(view.source_ports.begin(), view.source_ports.end()));
    plane.emplace_back("faulted", counters_of(view.faulted));
    planes.push_back(std::move(plane));
  }
  return planes;
}

Json::Object stats(udp::Device& device, const DeviceInfo&, const RequestArgs&) {
  Json::List lanes;
  std::size_t pairs = 0;
  for (const udp::LaneView& view : udp::view_lanes(device)) {
    pairs += view.queue_pairs;
    Json::Object lane = counters_of(view.engine), thread = counters_of(view.lane);
    std::move(thread.begin(), thread.end(), std::back_inserter(lane));
    lanes.push_back(std::move(lane));
  }
  return {{"planes", planes_of(device)}, {"lanes", std::move(lanes)},   {"queue_pairs", pairs},
          {"peers", device.peers()},     {"regions", device.regions()}, {"capture", capture_of(device)}};
}

Json peer_of(udp::Device& device, std::uint32_t qpn, std::uint32_t known_as) {
  const std::uint32_t peer = device.name_of_peer(qpn % device.lanes(), known_as);
  Json::List planes;
  for (const udp::PeerPlane& plane : device.planes_of_peer(peer)) {
    const std::string address = udp::text_of(plane.address);
    planes.push_back((plane.address.is_v4 ? address : "[" + address + "]") + ":" + std::to_string(plane.port));
  }
  if (planes.empty()) return {};
  return Json::Object{{"number", peer}, {"planes", std::move(planes)}};
}

Json::List evs_of(const udp::QueuePairView& view) {
  Json::List evs;
  for (std::size_t i = 0; i < view.evs.size(); ++i) {
    const proto::Ev& ev = view.evs[i];
    evs.push_back(Json::Object{{"ev", i},
                               {"value", view.wide.empty() ? Json(ev.value) : Json(hex_of(view.wide[i]))},
                               {"plane", ev.port},
                               {"state", named(ev_state_names, ev.state)},
                               {"drops", ev.drops},
                               {"damping", ev.damping},
                               {"is_spare", static_cast<bool>(ev.is_spare)}});
  }
  return evs;
}

Json::Object qps(udp::Device& device, const DeviceInfo&, const RequestArgs& args) {
  const auto qpn = static_cast<std::uint32_t>(args.whole("qpn", 1, 0xFFFFFF, 0));
  const bool with_evs = args.flag("evs", true);
  Json::List found;
  for (const udp::QueuePairView& view : udp::view_queue_pairs(device, qpn, with_evs)) {
    const proto::QpView& state = view.state;
    Json::Object pair{{"qpn", view.qpn}, {"lane", view.qpn % device.lanes()}, {"state", named(qp_states, state.state)}};
    if (state.has_left_reset) {
      pair.emplace_back("peer", peer_of(device, view.qpn, state.peer));
#define X(name) pair.emplace_back(#name, state.name);
      SOFTMRC_QP_VIEW(X)
#undef X
      pair.emplace_back("port_window_bytes",
                        Json::List(state.port_window_bytes.begin(), state.port_window_bytes.end()));
      const udp::Profiles::AssignedIds given = device.profiles().assigned_to(view.qpn);
      pair.emplace_back("ev_profile", given.evs);
      pair.emplace_back("cc_profile", given.control);
      pair.emplace_back("stats", counters_of(view.stats));
      if (with_evs) pair.emplace_back("evs", evs_of(view));
    }
    found.push_back(std::move(pair));
  }
  if (qpn && found.empty()) args.refuse("qpn", "a queue pair of this device");
  return {{"qps", std::move(found)}};
}

// What happened ----------------------------------------------------------------------------------------------------

// As tables have them.
std::string numbered(const char* form, std::uint32_t number) {
  char text[16];
  std::snprintf(text, sizeof text, form, number);
  return text;
}

std::string told(const proto::Event& event) {
  using enum proto::EventType;
  const auto named = [](const auto& names, auto value) {  // as people write it
    std::string name = control::named(names, value);
    std::replace(name.begin(), name.end(), '_', ' ');
    return name;
  };
  const std::string plane = "plane " + std::to_string(event.port), pair = "queue pair " + numbered("0x%x", event.qpn);
  const std::string path = "path " + numbered("0x%08x", event.ev);
  switch (event.type) {
    case qp_state:
      return pair + " is in " + named(qp_states, event.code) + (event.value ? ": " + named(statuses, event.value) : "");
    case ev_state:
      return pair + ": " + path + " on " + plane + " is " + named(ev_state_names, event.code) + ", " +
             host::counted(event.value, "packet") + " lost there so far";
    case port_state: return plane + " is " + (event.code ? "up" : "down");
    case peer_ports: {
      std::string up;
      for (std::size_t p = 0; p < host::max_planes; ++p)
        if (event.value >> p & 1) up += (up.empty() ? "" : ", ") + std::to_string(p);
      return "peer " + std::to_string(event.code) + " can use planes " + up;
    }
    case probe_answer:
      return "a probe by " + path + " came back on " + plane + " after " + std::to_string(event.value / 1'000'000) +
             " us";
    case packet_refused:
      return "a packet on " + plane + (event.qpn ? " for " + pair : "") +
             " was refused: " + named(refusals, event.code);
    default: return "";
  }
}

Json::Object events(udp::Device& device, const DeviceInfo& facts, const RequestArgs& args) {
  std::vector<std::uint64_t> from;
  if (args.has("since")) from = args.numbers("since");
  const auto most = static_cast<std::size_t>(args.whole("most", 1, max_events, 256));
  std::vector<proto::Event> found;
  std::uint64_t lost = device.recent_events(from, found);
  std::erase_if(found, [&](const proto::Event& event) {  // what a profile does not want told
    return event.type == proto::EventType::ev_state &&
           !device.profiles().tells(event.qpn, static_cast<proto::EvState>(event.code));
  });
  if (!args.has("since")) lost = 0;  // who asks for the first time has missed nothing
  if (found.size() > most) {
    lost += args.has("since") ? found.size() - most : 0;
    found.erase(found.begin(), found.end() - static_cast<std::ptrdiff_t>(most));
  }
  Json::List rows;
  for (const proto::Event& event : found)
    rows.push_back(Json::Object{{"at", facts.started + static_cast<double>(event.at_ps) / 1e12},
                                {"at_ps", event.at_ps},
                                {"type", named(event_types, event.type)},
                                {"qpn", event.qpn},
                                {"plane", event.port},
                                {"ev", event.ev},
                                {"psn", event.psn},
                                {"code", event.code},
                                {"value", event.value},
                                {"took", event.took},
                                {"text", told(event)}});
  return {{"events", std::move(rows)}, {"next", Json::List(from.begin(), from.end())}, {"lost", lost}};
}

Json::Object bursts(udp::Device&, const DeviceInfo& facts, const RequestArgs& args) {
  if (!facts.bursts) throw HostError("bursts are recorded in NCCL's plugin only; this device is of " + facts.kind);
  const auto seconds = [](Duration time) { return static_cast<double>(time.ps) / 1e12; };
  Json::List rows;
  for (const Burst& burst : facts.bursts->since(args.whole("since", 0, 0x7FFFFFFF, 0)))
    rows.push_back(Json::Object{{"number", burst.number},
                                {"peer", burst.peer},
                                {"begun", facts.started + seconds(burst.begun - Time{})},
                                {"took_s", seconds(burst.ended - burst.begun)},
                                {"bytes", burst.bytes},
                                {"requests", burst.requests},
                                {"waited_s", seconds(burst.waited)},
                                {"resent", burst.resent}});
  return {{"bursts", std::move(rows)}};
}

// What can be changed ----------------------------------------------------------------------------------------------

Json::Object faults(udp::Device& device, const DeviceInfo&, const RequestArgs& args) {
  if (args.has("set")) {
    const std::vector<udp::Faults> wanted = host::parse_faults(args.text("set"), device.planes());
    for (std::uint32_t p = 0; p < wanted.size(); ++p) device.set_faults(p, wanted[p]);
  }
  Json::List rows;
  for (std::uint32_t p = 0; p < device.planes(); ++p) {
    const udp::Faults now = device.faults(p);
    Json::Object row;
#define X(name) row.emplace_back(#name, now.name);
    SOFTMRC_FAULT_SHARES(X)
#undef X
    row.emplace_back("delay_us", static_cast<double>(now.delay.ps) / 1e6);
    row.emplace_back("reorder_delay_us", static_cast<double>(now.reorder_delay.ps) / 1e6);
    row.emplace_back("black_hole", now.black_hole);
    row.emplace_back("mtu", now.mtu);
    rows.push_back(std::move(row));
  }
  return {{"faults", std::move(rows)}};
}

Json::Object capture(udp::Device& device, const DeviceInfo&, const RequestArgs& args) {
  if (args.has("start")) {
    const std::string& path = args.text("start");
    if (!path.starts_with("/") || path.find('\0') != std::string::npos)
      args.refuse("start", "the absolute name of a file");
    if (const auto running = device.capture())
      throw HostError("a capture to " + running->path + " runs already; stop it first");
    device.start_capture(
        path, static_cast<std::uint64_t>(args.whole("most_bytes", 1, std::int64_t{1} << 50, std::int64_t{1} << 30)));
  } else if (args.has("stop")) {
    if (!args.flag("stop")) args.refuse("stop", "true");
    const auto was = device.capture();
    if (!was) throw HostError("no capture runs");
    return {{"capture", Json::Object{{"path", was->path}, {"packets", device.stop_capture()}}}};
  }
  return {{"capture", capture_of(device)}};
}

Json::Object port(udp::Device& device, const DeviceInfo&, const RequestArgs& args) {
  const std::uint32_t plane = plane_of(args, device);
  device.set_port(plane, args.flag("up"));
  return {{"planes", planes_of(device)}};
}

// Words about EVs: what was done, what was not and why; whether anything comes after the first that was not.
class BatchReply {
 public:
  explicit BatchReply(bool stops) : stops_(stops) {}
  bool goes_on() const { return !stops_ || failed_.empty(); }
  void add(const char* whose, std::uint32_t number, std::uint64_t ev, const proto::MaybeError& problem) {
    if (problem) failed_.push_back(Json::Object{{whose, number}, {"ev", ev}, {"error", host::to_string(*problem)}});
    else ++done_;
  }
  Json::Object told() { return {{"done", done_}, {"failed", std::move(failed_)}}; }

 private:
  bool stops_;
  std::int64_t done_ = 0;
  Json::List failed_;
};

proto::MaybeError change_ev(proto::Endpoint& engine, Time now, std::uint32_t qpn, std::uint32_t ev, bool is_denied) {
  return is_denied ? engine.deny_ev(now, qpn, ev) : engine.allow_ev(now, qpn, ev);
}

// Every queue pair that has it has it by the profile's word, then, and those to come will.
Json::Object change_listed(udp::Device& device, const RequestArgs& args, bool is_denied) {
  if (args.has("qpn") || args.has("plane") || !args.has("evs"))
    throw HostError(host::message("profile", "needs evs, and neither qpn nor plane", ""));
  const auto number = static_cast<std::uint32_t>(args.whole("profile", 1, 0xFFFFFFFF));
  BatchReply batch(args.flag("stop", false));
  for (const std::uint32_t listed : args.numbers<std::uint32_t>("evs")) {
    const auto problem = device.profiles().deny(number, listed, is_denied);
    batch.add("profile", number, listed, problem);
    if (!batch.goes_on()) break;
    const auto profile = device.profiles().find(number);
    if (problem || !profile) continue;
    const proto::EvProfile& evs = std::get<udp::PathProfile>(profile->body).evs;
    for (const std::uint32_t qpn : device.profiles().users(number))
      device.lane_of(qpn).with_engine_and_send([&](proto::Endpoint& engine, Time now) {
        for (const std::uint16_t ev : udp::places_of(engine, qpn, evs, listed))
          change_ev(engine, now, qpn, ev, is_denied);
        return 0;
      });
  }
  return batch.told();
}

// spec: controller-batches
Json::Object change_evs(udp::Device& device, const RequestArgs& args, bool is_denied) {
  if (args.has("profile")) return change_listed(device, args, is_denied);
  const auto qpn = static_cast<std::uint32_t>(args.whole("qpn", 1, 0xFFFFFF, 0));
  if (args.has("evs") == args.has("plane")) throw HostError(host::message("evs", "needs either evs or plane", ""));
  std::vector<std::uint64_t> wanted;
  if (args.has("evs")) wanted = args.numbers("evs");
  const std::uint32_t plane = args.has("plane") ? plane_of(args, device) : 0;
  BatchReply batch(args.flag("stop", false));
  const auto views = udp::view_queue_pairs(device, qpn, true);
  if (qpn && views.empty()) args.refuse("qpn", "a queue pair of this device");
  for (const udp::QueuePairView& view : views) {
    if (!view.state.has_left_reset && !qpn) continue;
    std::vector<std::uint64_t> evs = wanted;
    if (args.has("plane"))
      for (std::size_t i = 0; i < view.evs.size(); ++i)
        if (view.evs[i].port == plane) evs.push_back(i);
    device.lane_of(view.qpn).with_engine_and_send([&](proto::Endpoint& engine, Time now) {
      for (const std::uint64_t ev : evs)
        if (batch.goes_on())
          batch.add("qpn", view.qpn, ev,
                    change_ev(engine, now, view.qpn, static_cast<std::uint32_t>(std::min<std::uint64_t>(ev, ~0u)),
                              is_denied));
      return 0;
    });
  }
  return batch.told();
}

Json::Object deny(udp::Device& device, const DeviceInfo&, const RequestArgs& args) {
  return change_evs(device, args, true);
}
Json::Object allow(udp::Device& device, const DeviceInfo&, const RequestArgs& args) {
  return change_evs(device, args, false);
}

// In the list, for queue pairs to come; and where copies are meant too, in every queue pair that has it.
Json::Object replace_listed(udp::Device& device, const RequestArgs& args) {
  if (args.has("qpn")) throw HostError(host::message("qpn", "cannot be combined with profile", ""));
  const auto number = static_cast<std::uint32_t>(args.whole("profile", 1, 0xFFFFFFFF)),
             listed = static_cast<std::uint32_t>(args.whole("ev", 0, 0xFFFF));
  const proto::EvValue value = ev_value(args, "value");
  const auto before = device.profiles().find(number);
  host::raise_if(device.profiles().replace(number, listed, value));
  std::size_t copies = 0;
  if (args.flag("all_copies", false) && before)
    for (const std::uint32_t qpn : device.profiles().users(number))
      host::raise_if(device.lane_of(qpn).with_engine_and_send([&](proto::Endpoint& engine, Time now) {
        proto::MaybeError problem;
        for (const std::uint16_t ev :
             udp::places_of(engine, qpn, std::get<udp::PathProfile>(before->body).evs, listed)) {
          if (!problem) problem = engine.replace_ev(now, qpn, ev, value);
          copies += !problem;
        }
        return problem;
      }));
  return {{"copies", copies}};
}

Json::Object replace(udp::Device& device, const DeviceInfo&, const RequestArgs& args) {
  if (args.has("profile")) return replace_listed(device, args);
  const auto qpn = static_cast<std::uint32_t>(args.whole("qpn", 1, 0xFFFFFF)),
             ev = static_cast<std::uint32_t>(args.whole("ev", 0, 0xFFFF));
  const proto::EvValue value = ev_value(args, "value");
  host::raise_if(device.lane_of(qpn).with_engine_and_send(
      [&](proto::Endpoint& engine, Time now) { return engine.replace_ev(now, qpn, ev, value); }));
  return {};
}

Json::Object probe(udp::Device& device, const DeviceInfo&, const RequestArgs& args) {
  const auto peer = static_cast<std::uint32_t>(args.whole("peer", 0, 0xFFFFFFFE));
  if (device.planes_of_peer(peer).empty()) args.refuse("peer", "the number of a peer of this device");
  const auto plane = static_cast<std::uint8_t>(plane_of(args, device));
  const auto evs = args.numbers<std::uint32_t>("evs");
  if (evs.size() > max_probes) args.refuse("evs", "at most " + std::to_string(max_probes));
  const auto token = static_cast<std::uint32_t>(args.whole("token", 0, 0xFFFFFFFF, 0));
  proto::TrafficClass treated = proto::TrafficClass::data_no_trim;
  if (args.has("dscp")) treated = proto::with_dscp(static_cast<std::uint8_t>(args.whole("dscp", 0, proto::max_dscp)));
  return {{"asked", device.probe(peer, plane, evs, token, treated)}};
}

// The table --------------------------------------------------------------------------------------------------------

constexpr ControlOp operations[] = {
    {"info", info, {}},
    {"stats", stats, {}},
    {"qps", qps, {"qpn", "evs"}},
    {"events", events, {"since", "most"}},
    {"bursts", bursts, {"since"}},
    {"faults", faults, {"set"}},
    {"capture", capture, {"start", "stop", "most_bytes"}},
    {"port", port, {"plane", "up"}},
    {"deny", deny, {"qpn", "profile", "evs", "plane", "stop"}},
    {"allow", allow, {"qpn", "profile", "evs", "plane", "stop"}},
    {"replace", replace, {"qpn", "profile", "ev", "value", "all_copies"}},
    {"probe", probe, {"peer", "plane", "evs", "token", "dscp"}},
};

template <typename Range, typename Name>
std::string listed(const Range& all, Name name) {
  std::string text;
  for (const auto& one : all)
    if (const std::string_view each = name(one); !each.empty()) (text += text.empty() ? "" : ", ") += each;
  return text;
}

// An argument that it does not take is a mistake, and refused rather than ignored.
void check_names(const ControlOp& operation, const Json::Object& request) {
  for (const auto& [key, value] : request) {
    if (key == "op" || key == "id" ||
        (!key.empty() && std::ranges::find(operation.takes, key) != operation.takes.end()))
      continue;
    const std::string taken = listed(operation.takes, [](std::string_view one) { return one; });
    throw HostError(host::message(key, "no such argument of " + std::string(operation.name), "",
                                  taken.empty() ? "It takes none." : "It takes " + taken + "."));
  }
}

const ControlOp* operation_called(const std::string& name) {
  for (const ControlOp& one : operations)
    if (name == one.name) return &one;
  for (const ControlOp& one : profile_operations)
    if (name == one.name) return &one;
  return nullptr;
}

Json::Object carry_out(udp::Device& device, const DeviceInfo& facts, const Json& request) {
  const RequestArgs args(request);
  const auto name = [](const ControlOp& one) { return one.name; };
  const ControlOp* operation = operation_called(args.text("op"));
  if (!operation) args.refuse("op", "one of " + listed(operations, name) + ", " + listed(profile_operations, name));
  check_names(*operation, *request.as_object());
  return operation->run(device, facts, args);
}

}  // namespace

Json answer(udp::Device& device, const DeviceInfo& facts, const std::string& line) {
  Json id;
  bool has_id = false;
  const auto answered = [&](bool is_ok, Json::Object rest) {
    Json::Object all{{"ok", is_ok}};
    if (has_id) all.emplace_back("id", std::move(id));
    std::move(rest.begin(), rest.end(), std::back_inserter(all));
    return Json(std::move(all));
  };
  try {
    const Json request = host::parse_json(line);
    if (!request.as_object()) throw HostError("a request is an object, with op");
    if (const Json* found = request.find("id"); found && (found->as_int() || found->as_string())) {
      id = *found;
      has_id = true;
    }
    return answered(true, carry_out(device, facts, request));
  } catch (const std::exception& why) {
    return answered(false, {{"error", why.what()}});
  }
}

}  // namespace softmrc::control
