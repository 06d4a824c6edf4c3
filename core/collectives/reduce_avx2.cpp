// The kernels for processors with AVX2 and F16C; the build gives this file alone the options for them.
#if defined(__x86_64__)
#define SOFTMRC_KERNELS avx2
#include "collectives/reduce_kernels.h"
#endif
