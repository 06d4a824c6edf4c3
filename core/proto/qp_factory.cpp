#include "proto/qp_factory.h"

#include "proto/endpoint.h"

namespace softmrc::proto {

MaybeError PlainQpFactory::init(Endpoint& engine, Time, std::uint32_t qpn, const InitAttributes& attributes, bool) {
  return engine.modify_init(qpn, attributes);
}

MaybeError PlainQpFactory::connect(Endpoint& engine, Time now, std::uint32_t qpn, const RtrAttributes& attributes) {
  return engine.modify_rtr(now, qpn, attributes);
}

void PlainQpFactory::destroy(Endpoint& engine, Time now, std::uint32_t qpn) { engine.destroy_qp(now, qpn); }

}  // namespace softmrc::proto
