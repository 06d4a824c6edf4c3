// The only folder that includes nanobind. Each function below binds one room of the core.
#pragma once

#include <nanobind/nanobind.h>

namespace softmrc::bind {

void bind_wire(nanobind::module_& m);
void bind_paths(nanobind::module_& m);    // entropy values and SRv6, in the same module as bind_wire
void bind_capture(nanobind::module_& m);  // pcapng, likewise

}  // namespace softmrc::bind
