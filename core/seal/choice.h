// Which cipher this processor is faster at.
#pragma once

#include "seal/crypto.h"

namespace softmrc::seal {

// Seconds that it takes this process to seal so many bytes, the best of a few tries.
double measure(Cipher cipher, std::size_t bytes);
// Measured once, when somebody first asks.
Cipher faster_cipher();

}  // namespace softmrc::seal
