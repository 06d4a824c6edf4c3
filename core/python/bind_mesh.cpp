#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "python/bind.h"
#include "sim/mesh.h"
#include "sim/pump.h"

namespace nb = nanobind;

namespace softmrc::python {

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
  if (value >= limit)
    raise_if(proto::Error{proto::Error::Kind::config, field, std::to_string(value), "below " + std::to_string(limit)});
  return value;
}

// One plane, from one side to another.
struct Way {
  std::uint32_t sender, receiver, port;
};

Way checked(Mesh& mesh, std::uint32_t sender, std::uint32_t receiver, std::uint32_t port) {
  return {checked("sender", sender, mesh.sides()), checked("receiver", receiver, mesh.sides()),
          checked("port", port, mesh.side(0).config().ports)};
}

}  // namespace

void bind_mesh(nb::module_& m) {
  nb::class_<MeshFaults> faults(m, "MeshFaults");
  faults.def_rw("loss", &MeshFaults::loss)
      .def_rw("duplicate", &MeshFaults::duplicate)
      .def_rw("reorder", &MeshFaults::reorder)
      .def_rw("corrupt", &MeshFaults::corrupt)
      .def_rw("trim", &MeshFaults::trim)
      .def_rw("mark", &MeshFaults::mark)
      .def_rw("starve", &MeshFaults::starve)
      .def_rw("neck_bps", &MeshFaults::neck_bps)
      .def_rw("neck_bytes", &MeshFaults::neck_bytes)
      .def_rw("black_hole", &MeshFaults::black_hole)
      .def_rw("spares_control", &MeshFaults::spares_control);
  def_us(faults, "reorder_delay_us", &MeshFaults::reorder_delay);
  def_us(faults, "delay_us", &MeshFaults::delay);
  def_us(faults, "path_jitter_us", &MeshFaults::path_jitter);

  nb::class_<MeshConfig> config(m, "MeshConfig");
  config.def(nb::init<>())
      .def_rw("seed", &MeshConfig::seed)
      .def_rw("ports", &MeshConfig::ports)
      .def_rw("port_rate_bps", &MeshConfig::port_rate_bps)
      .def_rw("mark_above_bytes", &MeshConfig::mark_above_bytes)
      .def_rw("trim_above_bytes", &MeshConfig::trim_above_bytes)
      .def_rw("encode", &MeshConfig::encode)
      .def_rw("carry_payload", &MeshConfig::carry_payload);
  def_us(config, "starts_at_us", &MeshConfig::starts_at);
  def_us(config, "one_way_delay_us", &MeshConfig::one_way_delay);

  nb::class_<ProcessConfig> process(m, "ProcessConfig");
  process.def(nb::init<>())
      .def_rw("most_received", &ProcessConfig::max_received)
      .def_rw("most_waiting", &ProcessConfig::max_waiting)
      .def_rw("most_sent", &ProcessConfig::max_sent)
      .def_rw("port_burst", &ProcessConfig::port_burst)
      .def_rw("hold_up", &ProcessConfig::hold_up);
  def_us(process, "pace_us", &ProcessConfig::pace);
  def_us(process, "hold_up_us", &ProcessConfig::hold_up_time);

  nb::class_<Recorder>(m, "Recorder").def(nb::init<std::uint16_t>()).def("take", &Recorder::take);

  nb::class_<Mesh>(m, "Mesh")
      .def("__init__",
           [](Mesh* self, const MeshConfig& c, const std::vector<proto::EndpointConfig>& sides) {
    for (const proto::EndpointConfig& side : sides) raise_if(proto::validate(side));
    checked("sides", static_cast<std::uint32_t>(sides.size()), 255);
    new (self) Mesh(c, sides);
  })
      .def("side",
           [](Mesh& mesh, std::uint32_t side) -> proto::Endpoint& {
    return mesh.side(checked("side", side, mesh.sides()));
  }, nb::rv_policy::reference_internal)
      .def_prop_ro("now_ps", [](const Mesh& mesh) { return mesh.now().ps; })
      .def("faults",
           [](Mesh& mesh, std::uint32_t sender, std::uint32_t receiver, std::uint32_t port) -> MeshFaults& {
    const Way way = checked(mesh, sender, receiver, port);
    return mesh.faults(way.sender, way.receiver, way.port);
  }, nb::rv_policy::reference_internal)
      .def("watch_paths", &Mesh::watch_paths)
      .def("set_ev_dead",
           [](Mesh& mesh, std::uint32_t sender, std::uint32_t receiver, std::uint32_t port, std::uint32_t entropy,
              bool dead) {
    const Way way = checked(mesh, sender, receiver, port);
    mesh.set_ev_dead(way.sender, way.receiver, way.port, entropy, dead);
  })
      .def("set_ev_loss",
           [](Mesh& mesh, std::uint32_t sender, std::uint32_t receiver, std::uint32_t port, std::uint32_t entropy,
              double loss) {
    const Way way = checked(mesh, sender, receiver, port);
    mesh.set_ev_loss(way.sender, way.receiver, way.port, entropy, loss);
  })
      .def("set_process", [](Mesh& mesh, std::uint32_t side,
                             const ProcessConfig& c) { mesh.set_process(checked("side", side, mesh.sides()), c); })
      .def("restart",
           [](Mesh& mesh, std::uint32_t side, const proto::EndpointConfig& c) {
    raise_if(proto::validate(c));
    checked("ports", c.ports - mesh.side(0).config().ports, 1);
    mesh.restart(checked("side", side, mesh.sides()), c);
  })
      .def("kill", [](Mesh& mesh, std::uint32_t side,
                      bool host_says_so) { mesh.kill(checked("side", side, mesh.sides()), host_says_so); })
      .def("stall", [](Mesh& mesh, std::uint32_t side,
                       std::int64_t until) { mesh.stall(checked("side", side, mesh.sides()), Time{until}); })
      .def("flush", &Mesh::flush, nb::call_guard<GilRelease>())
      .def("run", [](Mesh& mesh, std::int64_t until) { mesh.run(Time{until}); }, nb::call_guard<GilRelease>())
      .def("run_until_completions",
           [](Mesh& mesh, std::int64_t until, std::uint32_t side, std::uint32_t cq, std::size_t count) {
    return mesh.run_until_completions(Time{until}, side, cq, count);
  }, nb::call_guard<GilRelease>())
      .def("pump",
           [](Mesh& mesh, std::int64_t limit, std::uint32_t side, std::uint32_t qpn, std::uint32_t cq,
              std::uint32_t rkey, std::uint64_t va, std::uint64_t region_length, const Buffer* source,
              std::uint32_t length, std::uint64_t count, std::uint32_t depth) {
    if (source && region_length > source->size())
      raise_if(proto::Error{proto::Error::Kind::config, "region_length", std::to_string(region_length),
                            "at most the source's size"});
    if (length == 0 || length > region_length)
      raise_if(proto::Error{proto::Error::Kind::config, "length", std::to_string(length),
                            "1 to the region's " + std::to_string(region_length)});
    PumpPlan plan{side, qpn, cq, rkey, va, region_length, source ? source->data() : nullptr, length, count, depth};
    PumpResult result;
    {
      GilRelease release;
      result = pump(mesh, plan, Time{limit});
    }
    return nb::make_tuple(result.completed, result.failed, result.out_of_order);
  },
           nb::arg("limit_ps"), nb::arg("side"), nb::arg("qpn"), nb::arg("cq"), nb::arg("rkey"), nb::arg("va"),
           nb::arg("region_length"), nb::arg("source").none(), nb::arg("length"), nb::arg("count"), nb::arg("depth"))
      .def("set_recorder",
           [](Mesh& mesh, std::uint32_t side, Recorder* recorder) {
    mesh.side(checked("side", side, mesh.sides())).set_trace(recorder);
  }, nb::arg("side"), nb::arg("recorder").none(), nb::keep_alive<1, 3>())
      .def_prop_ro("trace_hash", &Mesh::trace_hash)
      .def_prop_ro("packets_delivered", &Mesh::packets_delivered)
      .def("data_packets_sent",
           [](Mesh& mesh, std::uint32_t sender, std::uint32_t receiver, std::uint32_t port) {
    const Way way = checked(mesh, sender, receiver, port);
    return mesh.data_packets_sent(way.sender, way.receiver, way.port);
  })
      .def("last_polled_ps",
           [](Mesh& mesh, std::uint32_t sender, std::uint32_t receiver, std::uint32_t port, std::uint32_t entropy) {
    const Way way = checked(mesh, sender, receiver, port);
    return mesh.last_polled_at(way.sender, way.receiver, way.port, entropy).ps;
  }).def("counters", [](const Mesh& mesh) {
    const auto& c = mesh.counters();
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

}  // namespace softmrc::python
