#include "bind/bind.h"

namespace softmrc::bind {

void bind_wire(nanobind::module_&) {}

}  // namespace softmrc::bind
