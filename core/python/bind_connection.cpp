// The writes and messages of a connection.
#include <nanobind/stl/optional.h>

#include <unordered_map>
#include <utility>

#include "python/bind.h"
#include "udp/completion_tracker.h"
#include "udp/device.h"

namespace nb = nanobind;

namespace softmrc::python {

using namespace udp;

namespace {

// With the memory of writes under way, which is let go of where the GIL is held. `release` is due after every call.
class ConnectionTracker {
 public:
  ConnectionTracker(Device& device, std::uint32_t qpn, std::uint32_t send_cq, std::uint32_t recv_cq)
      : device_(device),
        tracker_(device.lane_of(qpn), qpn, device.part_of_cq(send_cq, qpn % device.lanes()),
                 device.part_of_cq(recv_cq, qpn % device.lanes())) {}

  CompletionTracker* operator->() { return &tracker_; }

  nb::tuple post(nb::object source, std::uint64_t remote_va, std::uint32_t rkey, std::optional<std::uint32_t> imm) {
    const Buffer& buffer = nb::cast<const Buffer&>(source);
    if (buffer.size() > 0xFFFFFFFF)
      raise_if(proto::Error{proto::Error::Kind::config, "length", std::to_string(buffer.size()),
                            "a whole number from 0 to 4,294,967,295"});
    proto::WorkRequest request;
    request.wr_id = tracker_.next_number();
    request.data = buffer.data();
    request.remote_va = remote_va;
    request.rkey = rkey;
    request.length = static_cast<std::uint32_t>(buffer.size());
    request.imm = imm.value_or(0);
    request.has_imm = imm.has_value();
    sources_.emplace(request.wr_id, std::move(source));
    proto::PostStatus status;
    {
      const GilRelease released;
      status = tracker_.post(request);
    }
    if (status != proto::PostStatus::ok) sources_.extract(request.wr_id);
    release();
    return nb::make_tuple(request.wr_id, status);
  }

  bool wait_for_write(std::uint64_t number, double timeout_s) {
    wait_in_slices(timeout_s,
                   [&](Duration slice) { return tracker_.wait_for_write(number, slice) || device_.is_closed(); });
    release();
    return !tracker_.is_pending(number);
  }

  // Added to the list here, so that nothing can come between taking it and keeping it. False: there will be none.
  bool wait_for_message(nb::list taken, double timeout_s) {
    CompletionTracker::Message message;
    auto arrival = CompletionTracker::RecvResult::timed_out;
    wait_in_slices(timeout_s, [&](Duration slice) {
      arrival = tracker_.wait_for_message(message, slice);
      if (arrival == CompletionTracker::RecvResult::timed_out && device_.is_closed())
        arrival = CompletionTracker::RecvResult::none_will_come;
      return arrival != CompletionTracker::RecvResult::timed_out;
    });
    if (arrival == CompletionTracker::RecvResult::message) taken.append(nb::make_tuple(message.imm, message.length));
    return arrival != CompletionTracker::RecvResult::none_will_come;
  }

  bool poll_writes() {
    const bool was_readable = tracker_.poll_writes();
    release();
    return was_readable;
  }

  // Of a queue pair that was destroyed.
  void release_sources() { const auto let_go = std::exchange(sources_, {}); }

 private:
  void release() {
    for (const std::uint64_t number : tracker_.take_ended()) sources_.extract(number);  // whose end may call anything
  }

  Device& device_;  // which closes as a whole when one of its lanes fails
  CompletionTracker tracker_;
  std::unordered_map<std::uint64_t, nb::object> sources_;  // Buffers
};

}  // namespace

void bind_connection(nb::module_& m) {
  using Tracker = ConnectionTracker;
  nb::class_<Tracker>(m, "CompletionTracker")
      .def(nb::init<Device&, std::uint32_t, std::uint32_t, std::uint32_t>(), nb::keep_alive<1, 2>(), nb::arg("device"),
           nb::arg("qpn"), nb::arg("send_cq"), nb::arg("recv_cq"))
      .def("post", &Tracker::post, nb::arg("source"), nb::arg("remote_va"), nb::arg("rkey"), nb::arg("imm").none())
      .def("wait_for_write", &Tracker::wait_for_write, nb::arg("number"), nb::arg("timeout_s"))
      .def("wait_for_message", &Tracker::wait_for_message, nb::arg("taken"), nb::arg("timeout_s"))
      .def("put_back", [](Tracker& t, std::uint32_t imm, std::uint32_t length) { t->put_back({imm, length}); },
           nb::arg("imm"), nb::arg("length"))
      .def("poll_writes", &Tracker::poll_writes)
      .def("poll_messages", [](Tracker& t) { return t->poll_messages(); })
      .def_prop_ro("has_arrival", [](Tracker& t) { return t->has_arrival(); })
      .def_prop_ro("last_number", [](Tracker& t) { return t->last_number(); })
      .def("is_pending", [](Tracker& t, std::uint64_t number) { return t->is_pending(number); }, nb::arg("number"))
      .def("has_failed", [](Tracker& t, std::uint64_t number) { return t->has_failed(number); }, nb::arg("number"))
      .def_prop_ro("first_failure", [](Tracker& t) {
    const auto status = t->first_failure();
    return status ? std::optional(static_cast<std::uint8_t>(*status)) : std::nullopt;
  }).def("close", [](Tracker& t) {
    t->close();
  }).def("release_sources", &Tracker::release_sources);
}

}  // namespace softmrc::python
