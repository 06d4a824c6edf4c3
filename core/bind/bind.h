// The only folder that includes nanobind. Each function below binds one room of the core.
#pragma once

#include <nanobind/nanobind.h>

namespace softmrc::bind {

void bind_wire(nanobind::module_& m);

}  // namespace softmrc::bind
