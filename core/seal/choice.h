// Which cipher this processor is faster at, and whose code for it.
#pragma once

#include "seal/crypto.h"

namespace softmrc::seal {

// Seconds that it takes this process to seal so many bytes, the best of a few tries.
double measure(Cipher cipher, Engine engine, std::size_t bytes);
// Measured once each, when somebody first asks.
Engine faster_engine(Cipher cipher);
Cipher faster_cipher();

}  // namespace softmrc::seal
