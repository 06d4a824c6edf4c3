#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind/bind.h"
#include "sim/pair.h"
#include "sim/pump.h"

namespace nb = nanobind;

namespace softmrc::bind {

using namespace sim;

namespace {

// Gathers every event of both sides, trace ones included, as records with the side in `reserved`.
class Recorder : public proto::TraceSink {
 public:
  explicit Recorder(std::uint16_t side) : side_(side) {}
  void on(const proto::Event& event) override {
    events_.push_back(event);
    events_.back().reserved = side_;
  }
  nb::bytes take() {
    nb::bytes raw(reinterpret_cast<const char*>(events_.data()), events_.size() * sizeof(proto::Event));
    events_.clear();
    return raw;
  }

 private:
  std::uint16_t side_;
  std::vector<proto::Event> events_;
};

std::uint32_t checked(const char* field, std::uint32_t value, std::uint32_t limit) {
  if (value >= limit) raise_if(proto::Problem{proto::Problem::Kind::config, field, std::to_string(value), "below " + std::to_string(limit)});
  return value;
}

}  // namespace

void bind_pair(nb::module_& m) {
  nb::class_<Weather> weather(m, "Weather");
  weather.def_rw("loss", &Weather::loss)
      .def_rw("duplicate", &Weather::duplicate)
      .def_rw("reorder", &Weather::reorder)
      .def_rw("corrupt", &Weather::corrupt)
      .def_rw("trim", &Weather::trim)
      .def_rw("mark", &Weather::mark)
      .def_rw("starve", &Weather::starve)
      .def_rw("neck_bps", &Weather::neck_bps)
      .def_rw("neck_bytes", &Weather::neck_bytes)
      .def_rw("black_hole", &Weather::black_hole)
      .def_rw("spares_control", &Weather::spares_control);
  def_us(weather, "reorder_delay_us", &Weather::reorder_delay);
  def_us(weather, "delay_us", &Weather::delay);
  def_us(weather, "path_jitter_us", &Weather::path_jitter);

  nb::class_<PairConfig> config(m, "PairConfig");
  config.def(nb::init<>())
      .def_rw("seed", &PairConfig::seed)
      .def_rw("ports", &PairConfig::ports)
      .def_rw("port_rate_bps", &PairConfig::port_rate_bps)
      .def_rw("mark_above_bytes", &PairConfig::mark_above_bytes)
      .def_rw("trim_above_bytes", &PairConfig::trim_above_bytes)
      .def_rw("encode", &PairConfig::encode)
      .def_rw("carry_payload", &PairConfig::carry_payload);
  def_us(config, "one_way_delay_us", &PairConfig::one_way_delay);

  nb::class_<ProcessConfig> process(m, "ProcessConfig");
  process.def(nb::init<>())
      .def_rw("most_received", &ProcessConfig::most_received)
      .def_rw("most_waiting", &ProcessConfig::most_waiting)
      .def_rw("most_sent", &ProcessConfig::most_sent)
      .def_rw("port_burst", &ProcessConfig::port_burst)
      .def_rw("hold_up", &ProcessConfig::hold_up);
  def_us(process, "pace_us", &ProcessConfig::pace);
  def_us(process, "hold_up_us", &ProcessConfig::hold_up_time);

  nb::class_<Recorder>(m, "Recorder").def(nb::init<std::uint16_t>()).def("take", &Recorder::take);

  nb::class_<Pair>(m, "Pair")
      .def("__init__", [](Pair* self, const PairConfig& c, const proto::EndpointConfig& a, const proto::EndpointConfig& b) {
        raise_if(proto::validate(a));
        raise_if(proto::validate(b));
        new (self) Pair(c, a, b);
      })
      .def("side", [](Pair& p, std::uint32_t side) -> proto::Endpoint& { return p.side(checked("side", side, 2)); }, nb::rv_policy::reference_internal)
      .def("peer_id", &Pair::peer_id)
      .def_prop_ro("now_ps", [](const Pair& p) { return p.now().ps; })
      .def("weather", [](Pair& p, std::uint32_t sender, std::uint32_t port) -> Weather& {
        return p.weather(checked("sender", sender, 2), checked("port", port, p.side(0).config().ports));
      }, nb::rv_policy::reference_internal)
      .def("watch_paths", &Pair::watch_paths)
      .def("set_ev_dead", [](Pair& p, std::uint32_t sender, std::uint32_t port, std::uint32_t entropy, bool dead) {
        p.set_ev_dead(checked("sender", sender, 2), checked("port", port, p.side(0).config().ports), entropy, dead);
      })
      .def("set_ev_loss", [](Pair& p, std::uint32_t sender, std::uint32_t port, std::uint32_t entropy, double loss) {
        p.set_ev_loss(checked("sender", sender, 2), checked("port", port, p.side(0).config().ports), entropy, loss);
      })
      .def("set_process", [](Pair& p, std::uint32_t side, const ProcessConfig& c) { p.set_process(checked("side", side, 2), c); })
      .def("restart", [](Pair& p, std::uint32_t side, const proto::EndpointConfig& c) {
        raise_if(proto::validate(c));
        checked("ports", c.ports - p.side(0).config().ports, 1);
        p.restart(checked("side", side, 2), c);
      })
      .def("stall", [](Pair& p, std::uint32_t side, std::int64_t until) { p.stall(checked("side", side, 2), Time{until}); })
      .def("flush", &Pair::flush, nb::call_guard<WithoutGil>())
      .def("run", [](Pair& p, std::int64_t until) { p.run(Time{until}); }, nb::call_guard<WithoutGil>())
      .def("run_until_completions", [](Pair& p, std::int64_t until, std::uint32_t side, std::uint32_t cq, std::size_t count) {
        return p.run_until_completions(Time{until}, side, cq, count);
      }, nb::call_guard<WithoutGil>())
      .def("pump", [](Pair& p, std::int64_t limit, std::uint32_t side, std::uint32_t qpn, std::uint32_t cq, std::uint32_t rkey,
                      std::uint64_t va, std::uint64_t region_length, const Buffer* source, std::uint32_t length,
                      std::uint64_t count, std::uint32_t depth) {
        if (source && region_length > source->size())
          raise_if(proto::Problem{proto::Problem::Kind::config, "region_length", std::to_string(region_length), "at most the source's size"});
        if (length == 0 || length > region_length)
          raise_if(proto::Problem{proto::Problem::Kind::config, "length", std::to_string(length), "1 to the region's " + std::to_string(region_length)});
        PumpPlan plan{side, qpn, cq, rkey, va, region_length, source ? source->data() : nullptr, length, count, depth};
        PumpResult result;
        {
          WithoutGil release;
          result = pump(p, plan, Time{limit});
        }
        return nb::make_tuple(result.completed, result.failed, result.out_of_order);
      }, nb::arg("limit_ps"), nb::arg("side"), nb::arg("qpn"), nb::arg("cq"), nb::arg("rkey"), nb::arg("va"),
         nb::arg("region_length"), nb::arg("source").none(), nb::arg("length"), nb::arg("count"), nb::arg("depth"))
      .def("set_recorder", [](Pair& p, std::uint32_t side, Recorder* recorder) { p.side(checked("side", side, 2)).set_trace(recorder); },
           nb::arg("side"), nb::arg("recorder").none(), nb::keep_alive<1, 3>())
      .def_prop_ro("trace_hash", &Pair::trace_hash)
      .def_prop_ro("packets_delivered", &Pair::packets_delivered)
      .def("data_packets_sent", &Pair::data_packets_sent)
      .def("last_polled_ps", [](const Pair& p, std::uint32_t sender, std::uint32_t port, std::uint32_t entropy) {
        return p.last_polled_at(sender, port, entropy).ps;
      })
      .def("counters", [](const Pair& p) {
        const auto& c = p.counters();
        nb::dict d;
        d["lost"] = c.lost;
        d["duplicated"] = c.duplicated;
        d["reordered"] = c.reordered;
        d["corrupted"] = c.corrupted;
        d["trimmed"] = c.trimmed;
        d["marked"] = c.marked;
        d["swallowed"] = c.swallowed;
        d["starved"] = c.starved;
        d["overflowed"] = c.overflowed;
        return d;
      });
}

}  // namespace softmrc::bind
