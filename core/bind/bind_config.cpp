#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind/bind.h"
#include "bind/wire_tuples.h"

namespace nb = nanobind;

namespace softmrc::bind {

using namespace proto;

namespace {

template <typename Class, typename Struct>
void def_psn(Class& c, const char* name, Psn Struct::*member) {
  c.def_prop_rw(
      name, [member](const Struct& s) { return (s.*member).value; },
      [member, name](Struct& s, std::uint32_t v) {
        if (v > Psn::mask) raise_if(Problem{Problem::Kind::config, name, std::to_string(v), "0 to " + std::to_string(Psn::mask)});
        s.*member = Psn(v);
      });
}

void bind_profiles(nb::module_& m) {
  nb::enum_<EvMode>(m, "EvMode")
      .value("AUTOMATIC", EvMode::automatic)
      .value("EXPLICIT", EvMode::explicit_)
      .value("GENERATED", EvMode::generated);
  nb::enum_<wire::EvFormat>(m, "EvFormat")
      .value("UDP", wire::EvFormat::udp)
      .value("STEV", wire::EvFormat::stev)
      .value("SRV6", wire::EvFormat::srv6);
  nb::enum_<CcAlgorithm>(m, "CcAlgorithm").value("NSCC", CcAlgorithm::nscc).value("FIXED_WINDOW", CcAlgorithm::fixed_window);

  nb::class_<EvProfile>(m, "EvProfile")
      .def(nb::init<>())
      .def_rw("mode", &EvProfile::mode)
      .def_rw("count", &EvProfile::count)
      .def_rw("spares", &EvProfile::spares)
      .def_rw("min_active", &EvProfile::min_active)
      .def_rw("value_bits", &EvProfile::value_bits)
      .def_rw("spray_quantum", &EvProfile::spray_quantum)
      .def_rw("skips_congested", &EvProfile::skips_congested)
      .def_rw("leaves_slow_ports", &EvProfile::leaves_slow_ports)
      .def_rw("format", &EvProfile::format)
      .def("set_layout", [](EvProfile& p, const nb::tuple& layout) { p.layout = layout_from(layout); })
      .def("add_entry", [](EvProfile& p, std::uint32_t value, std::uint8_t port) { p.entries.push_back({value, port}); })
      .def("add_entry", [](EvProfile& p, const nb::bytes& ev, std::uint8_t port) {
        p.entries.push_back({static_cast<std::uint32_t>(p.entries.size()), port});
        p.evs.push_back(ev_bytes_from(ev));
      });

  nb::class_<CcProfile> cc(m, "CcProfile");
  cc.def(nb::init<>())
      .def_rw("algorithm", &CcProfile::algorithm)
      .def_rw("rate_bps", &CcProfile::rate_bps)
      .def_rw("learn_base_rtt", &CcProfile::learn_base_rtt)
      .def_rw("trimming", &CcProfile::trimming)
      .def_rw("window_bytes", &CcProfile::window_bytes)
      .def_rw("max_window_bdp", &CcProfile::max_window_bdp)
      .def_rw("shared_window_bdp", &CcProfile::shared_window_bdp)
      .def_rw("gamma", &CcProfile::gamma)
      .def_rw("max_md_jump", &CcProfile::max_md_jump)
      .def_rw("qa_gate", &CcProfile::qa_gate);
  def_us(cc, "base_rtt_us", &CcProfile::base_rtt);
  def_us(cc, "min_base_rtt_us", &CcProfile::min_base_rtt);
  def_us(cc, "min_reorder_window_us", &CcProfile::min_reorder_window);
  def_us(cc, "target_delay_us", &CcProfile::target_delay);
}

}  // namespace

void bind_config(nb::module_& m) {
  bind_profiles(m);

  nb::class_<EndpointConfig> endpoint(m, "EndpointConfig");
  endpoint.def(nb::init<>())
      .def_rw("seed", &EndpointConfig::seed)
      .def_rw("secret", &EndpointConfig::secret)
      .def_rw("ports", &EndpointConfig::ports)
      .def_rw("sack_threshold_bytes", &EndpointConfig::sack_threshold_bytes)
      .def_rw("sack_first_packet", &EndpointConfig::sack_first_packet)
      .def_rw("timestamps", &EndpointConfig::timestamps)
      .def_rw("trim_nack", &EndpointConfig::trim_nack)
      .def_rw("peer_trim_nack", &EndpointConfig::peer_trim_nack)
      .def_rw("announces_ports", &EndpointConfig::announces_ports)
      .def_rw("proves_addresses", &EndpointConfig::proves_addresses)
      .def_rw("revival_answers", &EndpointConfig::revival_answers)
      .def_rw("answers_per_s", &EndpointConfig::answers_per_s)
      .def_rw("max_events", &EndpointConfig::max_events);
  def_us(endpoint, "probe_interval_us", &EndpointConfig::probe_interval);
  def_us(endpoint, "probe_interval_max_us", &EndpointConfig::probe_interval_max);

  nb::class_<InitAttributes>(m, "InitAttributes")
      .def(nb::init<>())
      .def_rw("ev_profile", &InitAttributes::ev_profile)
      .def_rw("cc_profile", &InitAttributes::cc_profile)
      .def_rw("send_cq", &InitAttributes::send_cq)
      .def_rw("recv_cq", &InitAttributes::recv_cq)
      .def_rw("domain", &InitAttributes::domain)
      .def_rw("hint_qps_per_peer", &InitAttributes::hint_qps_per_peer)
      .def_rw("hint_send_peers", &InitAttributes::hint_send_peers)
      .def_rw("hint_receive_peers", &InitAttributes::hint_receive_peers);

  nb::class_<RtrAttributes> rtr(m, "RtrAttributes");
  rtr.def(nb::init<>())
      .def_rw("peer", &RtrAttributes::peer)
      .def_rw("dest_qpn", &RtrAttributes::dest_qpn)
      .def_rw("mtu", &RtrAttributes::mtu)
      .def_rw("max_wimm_dest", &RtrAttributes::max_wimm_dest)
      .def_rw("mpr_dest", &RtrAttributes::mpr_dest)
      .def_rw("dynamic_mpr", &RtrAttributes::dynamic_mpr)
      .def_rw("port_key", &RtrAttributes::port_key)
      .def_rw("peer_port_key", &RtrAttributes::peer_port_key);
  def_psn(rtr, "first_psn", &RtrAttributes::first_psn);

  nb::class_<RtsAttributes> rts(m, "RtsAttributes");
  rts.def(nb::init<>())
      .def_rw("max_wimm", &RtsAttributes::max_wimm)
      .def_rw("mpr", &RtsAttributes::mpr)
      .def_rw("timeout", &RtsAttributes::timeout)
      .def_rw("retry_linear", &RtsAttributes::retry_linear)
      .def_rw("retry_exponential", &RtsAttributes::retry_exponential)
      .def_rw("max_send_wr", &RtsAttributes::max_send_wr);
  def_psn(rts, "first_psn", &RtsAttributes::first_psn);

  nb::class_<Buffer>(m, "Buffer")
      .def(nb::init<nb::object, bool>(), nb::arg("owner"), nb::arg("writable"))
      .def_prop_ro("size", &Buffer::size)
      .def_prop_ro("address", [](const Buffer& b) { return reinterpret_cast<std::uintptr_t>(b.data()); });
}

}  // namespace softmrc::bind
