#include "sim/link_faults.h"

namespace softmrc::sim {

void LinkFaults::apply(Time now, const Fault& f) {
  Kinds& kinds = kinds_[f.link];
  std::uint8_t& state = state_[f.link];
  state |= faulty_bit;
  switch (f.kind) {
    case FaultKind::down:
      state |= down_bit;
      kinds.dead_since = now;
      break;
    case FaultKind::black_hole: kinds.is_black_hole = true; break;
    case FaultKind::loss: kinds.loss = static_cast<float>(f.value); break;
    case FaultKind::corrupt: kinds.corrupt = static_cast<float>(f.value); break;
    case FaultKind::slow:
    case FaultKind::slow_scaled: break;
    case FaultKind::ev_loss:
      kinds.ev_loss = static_cast<float>(f.value);
      kinds.lossy_ev.reset();
      break;
    case FaultKind::heal:
      state = 0;
      kinds = Kinds{};
      break;
  }
}

bool LinkFaults::swallows(LinkId link, const SimPacket& p, LinkRng& draw) {
  Kinds& kinds = kinds_.at(link);
  if (is_down(link) || kinds.is_black_hole || draw.chance(static_cast<double>(kinds.loss))) return true;
  if (kinds.ev_loss <= 0 || p.is_control) return false;
  if (!kinds.lossy_ev) kinds.lossy_ev = p.entropy;
  return p.entropy == kinds.lossy_ev && draw.chance(static_cast<double>(kinds.ev_loss));
}

bool LinkFaults::corrupts(LinkId link, LinkRng& draw) const {
  const float share = kinds_.at(link).corrupt;
  return share > 0 && draw.chance(static_cast<double>(share));
}

}  // namespace softmrc::sim
