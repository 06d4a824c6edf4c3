// The kernels for any processor of this architecture.
#define SOFTMRC_KERNELS plain
#include "collectives/reduce_kernels.h"
