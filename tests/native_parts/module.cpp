// The extension `_parts`, which the tests build and nothing installs. Its types and those of softmrc._core know each other.
#include "bind/bind.h"
#include "parts.h"

NB_MODULE(_parts, m) {
  using namespace softmrc::bind;
  m.doc() = "Parts of the core by themselves, for tests.";
  translate_errors();
  bind_parts(m);
  bind_face(m);
  bind_sim_parts(m);
  bind_seal_parts(m);
}
