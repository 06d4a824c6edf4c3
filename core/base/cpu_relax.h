// One breath inside a loop that waits for another thread: lets the processor's other half work, and saves power.
#pragma once

namespace softmrc {

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // takes about as long as x86's pause; yield takes no time at all on most processors
#endif
}

}  // namespace softmrc
