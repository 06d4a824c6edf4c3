// Which cipher this processor is faster at.
#pragma once

#include "crypto/crypto.h"

namespace softmrc::crypto {

// Seconds that it takes this process to encrypt so many bytes, the best of a few tries.
double measure(Cipher cipher, std::size_t bytes);
// Measured once, at the first call.
Cipher faster_cipher();

}  // namespace softmrc::crypto
