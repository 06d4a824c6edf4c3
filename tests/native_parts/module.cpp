// The extension `_parts`, which the tests build and nothing installs. Its types and those of softmrc._core know each
// other.
#include "parts.h"
#include "python/bind.h"

NB_MODULE(_parts, m) {
  using namespace softmrc::python;
  m.doc() = "Parts of the core by themselves, for tests.";
  register_exceptions();
  bind_parts(m);
  bind_host(m);
  bind_handshake_parts(m);
  bind_sim_parts(m);
  bind_seal_parts(m);
  bind_noise_parts(m);
}
