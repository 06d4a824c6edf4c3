#include "sim/workload.h"

namespace softmrc::sim {

std::uint32_t Workload::add(const Flow& flow) {
  SOFTMRC_CHECK(!flow.is_write() || (flow.source != flow.destination && flow.bytes > 0));
  flows_.push_back(flow);
  return static_cast<std::uint32_t>(flows_.size() - 1);
}

std::uint32_t Workload::add(std::uint32_t source, std::uint32_t destination, std::uint32_t bytes, Time start) {
  Flow flow;
  flow.source = source;
  flow.destination = destination;
  flow.bytes = bytes;
  flow.start = start;
  return add(flow);
}

void Workload::add_dependency(std::uint32_t earlier, std::uint32_t later, Duration think) {
  SOFTMRC_CHECK(earlier < later && later < flows_.size());
  dependencies_.push_back({earlier, later, think});
  ++flows_[later].waits_for;
  flows_[later].start = Time::never();
}

bool Workload::is_local() const {
  return std::all_of(dependencies_.begin(), dependencies_.end(), [this](const Dependency& d) {
    const Flow& earlier = flows_[d.earlier];
    const bool ends_at_source = chain_on_acknowledgement_ || !earlier.is_write();
    return (ends_at_source ? earlier.source : earlier.destination) == flows_[d.later].source;
  });
}

std::vector<std::uint32_t> Workload::stuck() const {
  std::vector<std::uint32_t> stuck;
  for (std::uint32_t i = 0; i < flows_.size(); ++i)
    if (flows_[i].completed == Time::never()) stuck.push_back(i);
  return stuck;
}

}  // namespace softmrc::sim
