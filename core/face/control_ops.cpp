// What can be asked of a device, by name. Each is given the request, and throws Refusal with the words of the answer.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <iterator>

#include "face/control.h"
#include "face/faults.h"
#include "face/planes.h"
#include "face/refusal.h"
#include "udp/views.h"

namespace softmrc::face {
namespace {

constexpr std::int64_t protocol = 1;
constexpr std::size_t longest_program = 1024;
constexpr std::int64_t most_events = 4096;

// A request, as its operation reads it.
class Asked {
 public:
  explicit Asked(const Json& object) : object_(object) {}

  bool has(const char* name) const { return object_.find(name) != nullptr; }
  bool is_text(const char* name) const { return has(name) && object_.find(name)->as_text(); }
  std::int64_t whole(const char* name, std::int64_t least, std::int64_t most) const {
    const Json* found = object_.find(name);
    const std::int64_t* value = found ? found->as_whole() : nullptr;
    if (!value || *value < least || *value > most) refuse(name, std::to_string(least) + " to " + std::to_string(most));
    return *value;
  }
  std::int64_t whole(const char* name, std::int64_t least, std::int64_t most, std::int64_t otherwise) const {
    return has(name) ? whole(name, least, most) : otherwise;
  }
  bool flag(const char* name) const {
    const Json* found = object_.find(name);
    const bool* value = found ? found->as_flag() : nullptr;
    if (!value) refuse(name, "true or false");
    return *value;
  }
  bool flag(const char* name, bool otherwise) const { return has(name) ? flag(name) : otherwise; }
  const std::string& text(const char* name) const {
    const Json* found = object_.find(name);
    const std::string* value = found ? found->as_text() : nullptr;
    if (!value) refuse(name, "a text");
    return *value;
  }
  std::vector<std::uint64_t> numbers(const char* name) const {
    const Json* found = object_.find(name);
    const Json::List* list = found ? found->as_list() : nullptr;
    if (!list) refuse(name, "a list of numbers");
    std::vector<std::uint64_t> values;
    for (const Json& one : *list) {
      if (!one.as_whole() || *one.as_whole() < 0) refuse(name, "a list of numbers");
      values.push_back(static_cast<std::uint64_t>(*one.as_whole()));
    }
    return values;
  }
  [[noreturn]] void refuse(const char* name, const std::string& allowed) const {
    const Json* found = object_.find(name);
    throw Refusal(std::string(name) + " is " + (found ? found->text() : "missing") + "; allowed: " + allowed);
  }

 private:
  const Json& object_;
};

std::uint32_t plane_of(const Asked& asked, udp::Device& device) {
  return static_cast<std::uint32_t>(asked.whole("plane", 0, device.planes() - 1));
}

// Names ------------------------------------------------------------------------------------------------------------

template <std::size_t Count, typename Enum>
std::string named(const std::array<const char*, Count>& names, Enum value) {
  const auto at = static_cast<std::size_t>(value);
  return at < Count ? names[at] : std::to_string(at);
}

constexpr std::array qp_states{"reset", "init", "rtr", "rts", "error"};
constexpr std::array ev_states{"good", "skip", "assumed_bad", "denied"};
constexpr std::array statuses{"success", "flushed", "retry_exceeded", "remote_access", "remote_invalid", "remote_operation",
                              "local_protocol", "peer_error"};
constexpr std::array refusals{"malformed", "bad_icrc", "unknown_qp", "wrong_peer", "wrong_state", "unknown_peer", "out_of_window",
                              "remote_access", "invalid_request", "bad_acknowledgement", "unknown_answer", "wrong_pair", "unproven",
                              "last_port", "wrong_proof"};
constexpr std::array event_types{
#define X(name, notable, meaning) #name,
    SOFTMRC_EVENTS(X)
#undef X
};

std::string hex_of(const wire::EvBytes& bytes) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : bytes) (text += digits[byte >> 4]) += digits[byte & 15];
  return text;
}

template <typename Stats>
Json::Object counters_of(const Stats& stats);
template <>
Json::Object counters_of(const udp::PlaneStats& stats) {
  Json::Object found;
#define X(name) found.emplace_back(#name, stats.name);
  SOFTMRC_PLANE_COUNTERS(X)
#undef X
  return found;
}
template <>
Json::Object counters_of(const udp::FaultStats& stats) {
  Json::Object found;
#define X(name) found.emplace_back(#name, stats.name);
  SOFTMRC_FAULT_COUNTERS(X)
#undef X
  return found;
}
template <>
Json::Object counters_of(const udp::LaneView& view) {
  Json::Object found;
#define X(name) found.emplace_back(#name, view.engine.name);
  SOFTMRC_ENDPOINT_COUNTERS(X)
#undef X
#define X(name) found.emplace_back(#name, view.lane.name);
  SOFTMRC_LANE_COUNTERS(X)
#undef X
  return found;
}
template <>
Json::Object counters_of(const proto::QpStats& stats) {
  Json::Object found;
#define X(name) found.emplace_back(#name, stats.name);
  SOFTMRC_QP_COUNTERS(X)
#undef X
  return found;
}

// What it is -------------------------------------------------------------------------------------------------------

std::string program() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  while (!text.empty() && text.back() == '\0') text.pop_back();
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text.substr(0, longest_program);
}

Json::Object info(udp::Device& device, const Facts& facts, const Asked&) {
  Json::List planes;
  for (std::size_t p = 0; p < device.plan().planes.size(); ++p) {
    const udp::PlanePlan& plane = device.plan().planes[p];
    planes.push_back(Json::Object{{"address", udp::text_of(plane.address)}, {"interface", plane.interface}, {"link", plane.link},
                                  {"speed_bps", p < facts.speeds_bps.size() ? facts.speeds_bps[p] : 0}});
  }
  return {{"protocol", protocol}, {"pid", getpid()}, {"number", facts.number}, {"program", program()}, {"kind", facts.kind},
          {"started", facts.started}, {"planes", std::move(planes)}, {"lanes", device.lanes()}, {"open_lanes", device.open_lanes()},
          {"mtu", facts.mtu}, {"settings", facts.settings}};
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
    plane.emplace_back("source_ports", Json::List(view.source_ports.begin(), view.source_ports.end()));
    plane.emplace_back("faulted", counters_of(view.faulted));
    planes.push_back(std::move(plane));
  }
  return planes;
}

Json::Object stats(udp::Device& device, const Facts&, const Asked&) {
  Json::List lanes;
  std::size_t pairs = 0;
  for (const udp::LaneView& view : udp::view_lanes(device)) {
    pairs += view.queue_pairs;
    lanes.push_back(counters_of(view));
  }
  return {{"planes", planes_of(device)}, {"lanes", std::move(lanes)}, {"queue_pairs", pairs}, {"peers", device.peers()},
          {"regions", device.regions()}, {"capture", capture_of(device)}};
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
    evs.push_back(Json::Object{{"ev", i}, {"value", view.wide.empty() ? Json(ev.value) : Json(hex_of(view.wide[i]))}, {"plane", ev.port},
                               {"state", named(ev_states, ev.state)}, {"drops", ev.drops}, {"damping", ev.damping},
                               {"is_spare", static_cast<bool>(ev.is_spare)}});
  }
  return evs;
}

Json::Object qps(udp::Device& device, const Facts&, const Asked& asked) {
  const auto qpn = static_cast<std::uint32_t>(asked.whole("qpn", 1, 0xFFFFFF, 0));
  const bool with_evs = asked.flag("evs", true);
  Json::List found;
  for (const udp::QueuePairView& view : udp::view_queue_pairs(device, qpn, with_evs)) {
    const proto::QpView& state = view.state;
    Json::Object pair{{"qpn", view.qpn}, {"lane", view.qpn % device.lanes()}, {"state", named(qp_states, state.state)}};
    if (state.has_left_reset) {
      pair.emplace_back("peer", peer_of(device, view.qpn, state.peer));
#define X(name) pair.emplace_back(#name, state.name);
      X(dest_qpn) X(window_bytes) X(bytes_in_flight) X(packets_in_flight) X(messages) X(next_psn) X(expected_psn)
      X(out_of_order) X(base_rtt_us) X(smoothed_rtt_us) X(receives_posted) X(data_ports)
#undef X
      pair.emplace_back("port_window_bytes", Json::List(state.port_window_bytes.begin(), state.port_window_bytes.end()));
      pair.emplace_back("stats", counters_of(view.stats));
      if (with_evs) pair.emplace_back("evs", evs_of(view));
    }
    found.push_back(std::move(pair));
  }
  if (qpn && found.empty()) asked.refuse("qpn", "a queue pair of this device");
  return {{"qps", std::move(found)}};
}

// What happened ----------------------------------------------------------------------------------------------------

std::string told(const proto::Event& event) {
  using enum proto::EventType;
  const std::string plane = "plane " + std::to_string(event.port), pair = "queue pair " + std::to_string(event.qpn);
  switch (event.type) {
    case qp_state:
      return pair + " is in " + named(qp_states, event.code) + (event.value ? ": " + named(statuses, event.value) : "");
    case ev_state:
      return pair + ": path " + std::to_string(event.ev) + " on " + plane + " is " + named(ev_states, event.code) + ", " + std::to_string(event.value) +
             " packets lost there so far";
    case port_state: return plane + " is " + (event.code ? "up" : "down");
    case peer_ports: {
      std::string up;
      for (std::size_t p = 0; p < most_planes; ++p)
        if (event.value >> p & 1) up += (up.empty() ? "" : ", ") + std::to_string(p);
      return "peer " + std::to_string(event.code) + " can use planes " + up;
    }
    case probe_answer: return "a probe by path " + std::to_string(event.ev) + " came back on " + plane + " after " + std::to_string(event.value / 1'000'000) + " us";
    case packet_refused: return "a packet on " + plane + (event.qpn ? " for " + pair : "") + " was refused: " + named(refusals, event.code);
    default: return "";
  }
}

Json::Object events(udp::Device& device, const Facts& facts, const Asked& asked) {
  std::vector<std::uint64_t> from;
  if (asked.has("since")) from = asked.numbers("since");
  const auto most = static_cast<std::size_t>(asked.whole("most", 1, most_events, 256));
  std::vector<proto::Event> found;
  std::uint64_t lost = device.recent_events(from, found);
  if (!asked.has("since")) lost = 0;  // who asks for the first time has missed nothing
  if (found.size() > most) {
    lost += asked.has("since") ? found.size() - most : 0;
    found.erase(found.begin(), found.end() - static_cast<std::ptrdiff_t>(most));
  }
  Json::List rows;
  for (const proto::Event& event : found)
    rows.push_back(Json::Object{{"at", facts.started + static_cast<double>(event.at_ps) / 1e12}, {"at_ps", event.at_ps},
                                {"type", named(event_types, event.type)}, {"qpn", event.qpn}, {"plane", event.port}, {"ev", event.ev},
                                {"psn", event.psn}, {"code", event.code}, {"value", event.value}, {"text", told(event)}});
  return {{"events", std::move(rows)}, {"next", Json::List(from.begin(), from.end())}, {"lost", lost}};
}

// What can be changed ----------------------------------------------------------------------------------------------

Json::Object faults(udp::Device& device, const Facts&, const Asked& asked) {
  if (asked.has("set")) {
    const std::vector<udp::Faults> wanted = parse_faults(asked.text("set"), device.planes());
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
    rows.push_back(std::move(row));
  }
  return {{"faults", std::move(rows)}};
}

Json::Object capture(udp::Device& device, const Facts&, const Asked& asked) {
  if (asked.has("start")) {
    const std::string& path = asked.text("start");
    if (!path.starts_with("/") || path.find('\0') != std::string::npos) asked.refuse("start", "the absolute name of a file");
    if (const auto running = device.capture()) throw Refusal("a capture to " + running->path + " runs already; stop it first");
    device.start_capture(path, static_cast<std::uint64_t>(asked.whole("most_bytes", 1, std::int64_t{1} << 50, std::int64_t{1} << 30)));
  } else if (asked.has("stop")) {
    if (!asked.flag("stop")) asked.refuse("stop", "true");
    const auto was = device.capture();
    if (!was) throw Refusal("no capture runs");
    return {{"capture", Json::Object{{"path", was->path}, {"packets", device.stop_capture()}}}};
  }
  return {{"capture", capture_of(device)}};
}

Json::Object port(udp::Device& device, const Facts&, const Asked& asked) {
  const std::uint32_t plane = plane_of(asked, device);
  device.set_port(plane, asked.flag("up"));
  return {{"planes", planes_of(device)}};
}

using EvChange = proto::Verdict (proto::Endpoint::*)(Time, std::uint32_t, std::uint32_t);

// As many as can be; of the others it is told why not.
Json::Object change_evs(udp::Device& device, const Asked& asked, EvChange change) {
  const auto qpn = static_cast<std::uint32_t>(asked.whole("qpn", 1, 0xFFFFFF, 0));
  if (asked.has("evs") == asked.has("plane")) throw Refusal("evs and plane: one of them says which paths");
  std::vector<std::uint64_t> wanted;
  if (asked.has("evs")) wanted = asked.numbers("evs");
  const std::uint32_t plane = asked.has("plane") ? plane_of(asked, device) : 0;
  std::int64_t done = 0;
  Json::List failed;
  const auto views = udp::view_queue_pairs(device, qpn, true);
  if (qpn && views.empty()) asked.refuse("qpn", "a queue pair of this device");
  for (const udp::QueuePairView& view : views) {
    if (!view.state.has_left_reset && !qpn) continue;
    std::vector<std::uint64_t> evs = wanted;
    if (asked.has("plane"))
      for (std::size_t i = 0; i < view.evs.size(); ++i)
        if (view.evs[i].port == plane) evs.push_back(i);
    device.lane_of(view.qpn).with_engine_and_send([&](proto::Endpoint& engine, Time now) {
      for (const std::uint64_t ev : evs) {
        const auto problem = (engine.*change)(now, view.qpn, static_cast<std::uint32_t>(std::min<std::uint64_t>(ev, ~0u)));
        if (problem) failed.push_back(Json::Object{{"qpn", view.qpn}, {"ev", ev}, {"error", face::in_words(*problem)}});
        else ++done;
      }
      return 0;
    });
  }
  return {{"done", done}, {"failed", std::move(failed)}};
}

Json::Object deny(udp::Device& device, const Facts&, const Asked& asked) { return change_evs(device, asked, &proto::Endpoint::deny_ev); }
Json::Object allow(udp::Device& device, const Facts&, const Asked& asked) { return change_evs(device, asked, &proto::Endpoint::allow_ev); }

proto::EvValue ev_value(const Asked& asked) {
  if (!asked.is_text("value")) return static_cast<std::uint32_t>(asked.whole("value", 0, 0xFFFFFFFF));
  const std::string& text = asked.text("value");
  wire::EvBytes bytes{};
  bool is_hex = text.size() == 2 * bytes.size();
  for (std::size_t i = 0; is_hex && i < bytes.size(); ++i) {
    const char* const at = text.data() + 2 * i;
    const auto [to, error] = std::from_chars(at, at + 2, bytes[i], 16);
    is_hex = error == std::errc{} && to == at + 2;
  }
  if (!is_hex) asked.refuse("value", "a number of 32 bits, or " + std::to_string(2 * bytes.size()) + " hexadecimal digits");
  return bytes;
}

Json::Object replace(udp::Device& device, const Facts&, const Asked& asked) {
  const auto qpn = static_cast<std::uint32_t>(asked.whole("qpn", 1, 0xFFFFFF)), ev = static_cast<std::uint32_t>(asked.whole("ev", 0, 0xFFFF));
  const proto::EvValue value = ev_value(asked);
  raise_if(device.lane_of(qpn).with_engine_and_send([&](proto::Endpoint& engine, Time now) { return engine.replace_ev(now, qpn, ev, value); }));
  return {};
}

Json::Object probe(udp::Device& device, const Facts&, const Asked& asked) {
  const auto peer = static_cast<std::uint32_t>(asked.whole("peer", 0, 0xFFFFFFFE));
  if (device.planes_of_peer(peer).empty()) asked.refuse("peer", "the number of a peer of this device");
  const auto plane = static_cast<std::uint8_t>(plane_of(asked, device));
  const auto ev = static_cast<std::uint32_t>(asked.whole("ev", 0, 0xFFFFFFFF)), token = static_cast<std::uint32_t>(asked.whole("token", 0, 0xFFFFFFFF, 0));
  return {{"asked", device.probe(peer, plane, ev, token)}};
}

// The table --------------------------------------------------------------------------------------------------------

struct Operation {
  std::string_view name;
  Json::Object (*run)(udp::Device&, const Facts&, const Asked&);
  std::array<std::string_view, 4> takes;
};

constexpr Operation operations[] = {
    {"info", info, {}},
    {"stats", stats, {}},
    {"qps", qps, {"qpn", "evs"}},
    {"events", events, {"since", "most"}},
    {"faults", faults, {"set"}},
    {"capture", capture, {"start", "stop", "most_bytes"}},
    {"port", port, {"plane", "up"}},
    {"deny", deny, {"qpn", "evs", "plane"}},
    {"allow", allow, {"qpn", "evs", "plane"}},
    {"replace", replace, {"qpn", "ev", "value"}},
    {"probe", probe, {"peer", "plane", "ev", "token"}},
};

template <typename Range, typename Name>
std::string listed(const Range& all, Name name) {
  std::string text;
  for (const auto& one : all)
    if (const std::string_view each = name(one); !each.empty()) (text += text.empty() ? "" : ", ") += each;
  return text;
}

// A name that it does not take is a mistake, and better heard of than not heeded.
void check_names(const Operation& operation, const Json::Object& request) {
  for (const auto& [key, value] : request) {
    if (key == "op" || key == "id" || (!key.empty() && std::ranges::find(operation.takes, key) != operation.takes.end())) continue;
    const std::string taken = listed(operation.takes, [](std::string_view one) { return one; });
    throw Refusal(key + " is nothing that " + std::string(operation.name) + " takes; allowed: " + (taken.empty() ? "nothing more" : taken));
  }
}

Json::Object carry_out(udp::Device& device, const Facts& facts, const Json& request) {
  const Asked asked(request);
  const std::string& name = asked.text("op");
  for (const Operation& operation : operations) {
    if (name != operation.name) continue;
    check_names(operation, *request.as_object());
    return operation.run(device, facts, asked);
  }
  asked.refuse("op", listed(operations, [](const Operation& one) { return one.name; }));
}

}  // namespace

Json answer(udp::Device& device, const Facts& facts, const std::string& line) {
  Json id;
  bool has_id = false;
  const auto answered = [&](bool is_ok, Json::Object rest) {
    Json::Object all{{"ok", is_ok}};
    if (has_id) all.emplace_back("id", std::move(id));
    std::move(rest.begin(), rest.end(), std::back_inserter(all));
    return Json(std::move(all));
  };
  try {
    const Json request = parse_json(line);
    if (!request.as_object()) throw Refusal("a request is an object, with op");
    if (const Json* found = request.find("id"); found && (found->as_whole() || found->as_text())) {
      id = *found;
      has_id = true;
    }
    return answered(true, carry_out(device, facts, request));
  } catch (const std::exception& why) {
    return answered(false, {{"error", why.what()}});
  }
}

}  // namespace softmrc::face
