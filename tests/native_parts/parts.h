// Parts of the core by themselves, for tests that compare one of them with a plain model. Times are picoseconds.
#pragma once

#include <nanobind/nanobind.h>

namespace softmrc::bind {

void bind_parts(nanobind::module_& m);
void bind_sim_parts(nanobind::module_& m);
void bind_face(nanobind::module_& m);
void bind_seal_parts(nanobind::module_& m);

}  // namespace softmrc::bind
