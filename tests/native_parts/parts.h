// Parts of the core by themselves, for tests that compare one of them with a plain model. Times are picoseconds.
#pragma once

#include <nanobind/nanobind.h>

namespace softmrc::python {

void bind_parts(nanobind::module_& m);
void bind_sim_parts(nanobind::module_& m);
void bind_host(nanobind::module_& m);
void bind_handshake_parts(nanobind::module_& m);
void bind_seal_parts(nanobind::module_& m);
void bind_noise_parts(nanobind::module_& m);

}  // namespace softmrc::python
